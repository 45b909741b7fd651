# SPDX-License-Identifier: MIT
# The targets redlatch::redlatch, redlatch::asio and redlatch::compiled are always there. The components tls, testing and
# module have needs of their own.
include(CMakeFindDependencyMacro)

# An optional component that is refused is not found, and redlatch with a required one is not found either.
macro(redlatch_refuse_component component reason)
    set(${CMAKE_FIND_PACKAGE_NAME}_${component}_FOUND FALSE)
    if(${CMAKE_FIND_PACKAGE_NAME}_FIND_REQUIRED_${component})
        set(${CMAKE_FIND_PACKAGE_NAME}_FOUND FALSE)
        set(${CMAKE_FIND_PACKAGE_NAME}_NOT_FOUND_MESSAGE "${reason}")
        return()
    endif()
endmacro()

foreach(component IN LISTS ${CMAKE_FIND_PACKAGE_NAME}_FIND_COMPONENTS)
    set(${CMAKE_FIND_PACKAGE_NAME}_${component}_FOUND TRUE)
    if(NOT component MATCHES "^(asio|compiled|module|testing|tls)$")
        redlatch_refuse_component(${component}
            "redlatch has no component '${component}'. Its components are asio, compiled, module, testing and tls.")
    elseif(component STREQUAL "module" AND CMAKE_VERSION VERSION_LESS 3.28)
        redlatch_refuse_component(module "redlatch::module needs CMake 3.28 or later; this is ${CMAKE_VERSION}.")
    endif()
endforeach()

# redlatch_component_needs(<component> <arguments of find_package>): without the package an optional component is not
# found, and redlatch with a required one is not found either.
macro(redlatch_component_needs component package)
    if("${component}" IN_LIST ${CMAKE_FIND_PACKAGE_NAME}_FIND_COMPONENTS)
        if(${CMAKE_FIND_PACKAGE_NAME}_FIND_REQUIRED_${component})
            find_dependency(${package} ${ARGN})
        else()
            find_package(${package} ${ARGN} QUIET)
            set(${CMAKE_FIND_PACKAGE_NAME}_${component}_FOUND ${${package}_FOUND})
        endif()
    endif()
endmacro()

set(redlatch_module_path "${CMAKE_MODULE_PATH}")
list(PREPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")
find_dependency(Threads)
find_dependency(RedlatchHiredis)
redlatch_component_needs(tls OpenSSL 1.1.1)
redlatch_component_needs(testing RedlatchLua)
set(CMAKE_MODULE_PATH "${redlatch_module_path}")
unset(redlatch_module_path)

include("${CMAKE_CURRENT_LIST_DIR}/redlatchTargets.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/compiled.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/module.cmake")
if(NOT TARGET redlatch::compiled)
    redlatch_add_compiled()
endif()
if("module" IN_LIST ${CMAKE_FIND_PACKAGE_NAME}_FIND_COMPONENTS AND ${CMAKE_FIND_PACKAGE_NAME}_module_FOUND
    AND NOT TARGET redlatch::module)
    redlatch_add_module()
endif()
