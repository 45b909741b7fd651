# SPDX-License-Identifier: MIT
include(CMakeFindDependencyMacro)

set(redlatch_module_path "${CMAKE_MODULE_PATH}")
list(PREPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")
find_dependency(Threads)
find_dependency(RedlatchHiredis)
if("tls" IN_LIST ${CMAKE_FIND_PACKAGE_NAME}_FIND_COMPONENTS)
    find_dependency(OpenSSL 1.1.1)
endif()
set(CMAKE_MODULE_PATH "${redlatch_module_path}")
unset(redlatch_module_path)

include("${CMAKE_CURRENT_LIST_DIR}/redlatchTargets.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/compiled.cmake")
if(NOT TARGET redlatch::compiled)
    redlatch_add_compiled()
endif()
