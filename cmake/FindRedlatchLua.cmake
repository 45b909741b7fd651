# SPDX-License-Identifier: MIT
# Finds Lua 5.1, the version inside Redis, and defines the target redlatch::lua. Uses the first of these that works:
# - pkg-config
# - a search for header and library
# CMake's own FindLua prefers newer versions, which have another C interface.

find_package(PkgConfig QUIET)
if(PkgConfig_FOUND)
    foreach(name IN ITEMS lua5.1 lua-5.1 lua51)
        pkg_check_modules(RedlatchLua_PC QUIET ${name})
        if(RedlatchLua_PC_FOUND)
            break()
        endif()
    endforeach()
endif()
find_path(RedlatchLua_HEADER_DIR lua.hpp HINTS ${RedlatchLua_PC_INCLUDE_DIRS}
    PATH_SUFFIXES lua5.1 lua-5.1 lua51 lua/5.1)
find_library(RedlatchLua_LIBRARY NAMES lua5.1 lua-5.1 lua51 HINTS ${RedlatchLua_PC_LIBRARY_DIRS})
mark_as_advanced(RedlatchLua_HEADER_DIR RedlatchLua_LIBRARY)

set(RedlatchLua_VERSION "")
if(EXISTS ${RedlatchLua_HEADER_DIR}/lua.h)
    file(STRINGS ${RedlatchLua_HEADER_DIR}/lua.h redlatch_lua_version REGEX "#define LUA_VERSION_NUM[ \t]")
    if(redlatch_lua_version MATCHES "501")
        set(RedlatchLua_VERSION 5.1)
    endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(RedlatchLua
    REQUIRED_VARS RedlatchLua_LIBRARY RedlatchLua_HEADER_DIR RedlatchLua_VERSION
    VERSION_VAR RedlatchLua_VERSION
    REASON_FAILURE_MESSAGE "install Lua 5.1 (Debian, Ubuntu: liblua5.1-0-dev)")

if(RedlatchLua_FOUND AND NOT TARGET redlatch::lua)
    # GLOBAL, so that a project with redlatch as a subdirectory sees it, too.
    add_library(redlatch::lua INTERFACE IMPORTED GLOBAL)
    target_include_directories(redlatch::lua INTERFACE ${RedlatchLua_HEADER_DIR})
    target_link_libraries(redlatch::lua INTERFACE ${RedlatchLua_LIBRARY})
endif()
