# SPDX-License-Identifier: MIT
# Finds hiredis, 0.14.1 or later, and defines the target redlatch::hiredis. Uses the first of these that works:
# - a target hiredis::hiredis, or a CMake package that defines it
# - pkg-config
# - a search for header and library
# RedlatchHiredis_HEADER_DIR is the folder that contains hiredis/hiredis.h. RedlatchHiredis_LIBRARY is the library.

if(NOT TARGET hiredis::hiredis)
    find_package(hiredis CONFIG QUIET GLOBAL)
endif()

if(TARGET hiredis::hiredis)
    set(RedlatchHiredis_TARGET hiredis::hiredis)
    set(RedlatchHiredis_VERSION ${hiredis_VERSION})
    if(NOT RedlatchHiredis_VERSION)
        set(RedlatchHiredis_VERSION 0.14.1) # from the surrounding project, which is responsible for the version
    endif()
    set(redlatch_hiredis_needed RedlatchHiredis_TARGET)
else()
    find_package(PkgConfig QUIET)
    if(PkgConfig_FOUND)
        pkg_check_modules(RedlatchHiredis_PC QUIET hiredis)
    endif()
    # Some hiredis.pc files name the folder above hiredis/, others hiredis/ itself.
    set(redlatch_hiredis_hints ${RedlatchHiredis_PC_INCLUDE_DIRS})
    foreach(dir IN LISTS RedlatchHiredis_PC_INCLUDE_DIRS)
        list(APPEND redlatch_hiredis_hints ${dir}/..)
    endforeach()
    find_path(RedlatchHiredis_HEADER_DIR hiredis/hiredis.h HINTS ${redlatch_hiredis_hints})
    find_library(RedlatchHiredis_LIBRARY hiredis HINTS ${RedlatchHiredis_PC_LIBRARY_DIRS})
    mark_as_advanced(RedlatchHiredis_HEADER_DIR RedlatchHiredis_LIBRARY)

    if(RedlatchHiredis_HEADER_DIR)
        file(STRINGS ${RedlatchHiredis_HEADER_DIR}/hiredis/hiredis.h redlatch_hiredis_defines
            REGEX "#define HIREDIS_(MAJOR|MINOR|PATCH) ")
        string(REGEX MATCHALL "[0-9]+" RedlatchHiredis_VERSION "${redlatch_hiredis_defines}")
        list(JOIN RedlatchHiredis_VERSION . RedlatchHiredis_VERSION)
    endif()
    set(redlatch_hiredis_needed RedlatchHiredis_LIBRARY RedlatchHiredis_HEADER_DIR)
endif()

if(NOT RedlatchHiredis_FIND_VERSION)
    set(RedlatchHiredis_FIND_VERSION 0.14.1)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(RedlatchHiredis
    REQUIRED_VARS ${redlatch_hiredis_needed}
    VERSION_VAR RedlatchHiredis_VERSION
    REASON_FAILURE_MESSAGE "install hiredis 0.14.1 or later (Debian, Ubuntu: libhiredis-dev)")

if(RedlatchHiredis_FOUND AND NOT TARGET redlatch::hiredis)
    # GLOBAL, so that a project with redlatch as a subdirectory sees it, too.
    add_library(redlatch::hiredis INTERFACE IMPORTED GLOBAL)
    if(RedlatchHiredis_TARGET)
        target_link_libraries(redlatch::hiredis INTERFACE ${RedlatchHiredis_TARGET})
    else()
        target_include_directories(redlatch::hiredis INTERFACE ${RedlatchHiredis_HEADER_DIR})
        target_link_libraries(redlatch::hiredis INTERFACE ${RedlatchHiredis_LIBRARY})
    endif()
endif()
