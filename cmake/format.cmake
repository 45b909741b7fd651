# SPDX-License-Identifier: MIT
# Checks the layout of every C++ file with clang-format 14. `cmake -DFIX=ON -P cmake/format.cmake` corrects it.
cmake_minimum_required(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
find_program(clang_format NAMES clang-format-14 NO_CACHE REQUIRED)

file(GLOB_RECURSE sources ${root}/include/*.[hi]pp ${root}/tests/*.[ch]pp ${root}/examples/*.[ch]pp)
set(mode --dry-run -Werror)
if(FIX)
    set(mode -i)
endif()
execute_process(COMMAND ${clang_format} --style=file ${mode} ${sources} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
    message(FATAL_ERROR "Run: cmake -DFIX=ON -P cmake/format.cmake")
endif()
