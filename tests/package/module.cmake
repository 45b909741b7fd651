# SPDX-License-Identifier: MIT
# Builds the installed module and a program that imports it, in BUILD, which is emptied first, by clang.
cmake_minimum_required(VERSION 3.25)
file(REMOVE_RECURSE ${BUILD})
file(MAKE_DIRECTORY ${BUILD})
set(compile ${COMPILER} -std=c++20)
foreach(command IN ITEMS
        "-I${PREFIX}/include;--precompile;${PREFIX}/include/redlatch/redlatch.cppm;-o;${BUILD}/redlatch.pcm"
        "${BUILD}/redlatch.pcm;-c;-o;${BUILD}/redlatch.o"
        # Without the include path: the program has nothing of the library but the module.
        "-fmodule-file=redlatch=${BUILD}/redlatch.pcm;-c;${CMAKE_CURRENT_LIST_DIR}/module/main.cpp;-o;${BUILD}/main.o"
        "${BUILD}/main.o;${BUILD}/redlatch.o;-lhiredis;-pthread;-o;${BUILD}/consumer")
    execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${compile} ${command})
endforeach()
execute_process(COMMAND_ERROR_IS_FATAL ANY COMMAND ${BUILD}/consumer OUTPUT_VARIABLE said)
if(NOT said STREQUAL "${VERSION}\n")
    message(FATAL_ERROR "the program says '${said}' instead of ${VERSION}")
endif()
