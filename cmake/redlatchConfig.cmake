# SPDX-License-Identifier: MIT
include(CMakeFindDependencyMacro)

set(redlatch_module_path "${CMAKE_MODULE_PATH}")
list(PREPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")
find_dependency(Threads)
find_dependency(RedlatchHiredis)
set(CMAKE_MODULE_PATH "${redlatch_module_path}")
unset(redlatch_module_path)

include("${CMAKE_CURRENT_LIST_DIR}/redlatchTargets.cmake")
