# SPDX-License-Identifier: MIT
# Compiles the library for systems that are not at hand: cmake -P cmake/platforms.cmake
# Prints a line for each target. Fails if one does not compile. The compiler is the Python package ziglang, which has the
# headers of the C libraries; pip installs it below build/ once. Nothing is linked or run. `-DONLY=regex` selects targets.
cmake_minimum_required(VERSION 3.25)
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
include(${CMAKE_CURRENT_LIST_DIR}/setup.cmake)
include(${root}/tests/package/python_tool.cmake)
redlatch_setup(hiredis)
redlatch_python_tool(zig ziglang 0.17.1)
if(NOT zig)
    message(FATAL_ERROR "No zig: ${zig_REASON}")
endif()
cmake_path(GET zig PARENT_PATH bin)

# arm-linux-musleabihf has 64-bit time on a 32-bit system.
set(targets x86_64-macos aarch64-macos x86_64-freebsd x86_64-linux-musl arm-linux-musleabihf arm-linux-gnueabihf
    aarch64-linux-gnu x86-linux-gnu)
if(ONLY)
    list(FILTER targets INCLUDE REGEX "${ONLY}")
endif()

set(dir ${root}/build/platforms)
file(MAKE_DIRECTORY ${dir}/include)
# Only the headers of hiredis, which are the same everywhere: those of the C library beside them are not.
find_path(hiredis hiredis/hiredis.h PATHS /usr/include /usr/local/include NO_CACHE REQUIRED)
file(COPY ${hiredis}/hiredis DESTINATION ${dir}/include)
file(WRITE ${dir}/all.cpp "#include <redlatch/redlatch.hpp>\n")

set(failed 0)
foreach(target IN LISTS targets)
    execute_process(COMMAND ${bin}/python -m ziglang c++ -target ${target} -std=c++20 -Wall -Wextra -Werror
        -c ${dir}/all.cpp -o ${dir}/all.o -I ${root}/include -isystem ${dir}/include
        OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE status)
    if(status EQUAL 0)
        message("${target}: compiled")
    else()
        message("${target}: failed\n${said}")
        set(failed 1)
    endif()
endforeach()
if(failed)
    message(FATAL_ERROR "The library does not compile everywhere.")
endif()
