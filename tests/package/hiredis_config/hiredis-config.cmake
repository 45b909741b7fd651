# SPDX-License-Identifier: MIT
# Stands for the CMake package that newer hiredis installs: one target, hiredis::hiredis.
find_path(hiredis_include_dir hiredis/hiredis.h REQUIRED)
find_library(hiredis_library hiredis REQUIRED)
add_library(hiredis::hiredis UNKNOWN IMPORTED)
set_target_properties(hiredis::hiredis PROPERTIES
    IMPORTED_LOCATION ${hiredis_library} INTERFACE_INCLUDE_DIRECTORIES ${hiredis_include_dir})
set(hiredis_VERSION 1.0.0)
