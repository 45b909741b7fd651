# SPDX-License-Identifier: MIT
# The benchmark: cmake -P cmake/bench.cmake [-- --scenario uncontended --link unix ...]
# Writes only JSON lines to stdout. With --svg FILE it also draws them.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/setup.cmake)
redlatch_setup(compiler make hiredis redis)

cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
redlatch_build(built ${root}/build/bench STDERR TARGETS redlatch_bench OPTIONS
    -DCMAKE_BUILD_TYPE=Release -DREDLATCH_BUILD_TESTS=OFF -DREDLATCH_BUILD_EXAMPLES=OFF)
if(NOT built)
    message(FATAL_ERROR "The benchmark could not be built.")
endif()

redlatch_script_arguments(arguments)
execute_process(COMMAND ${root}/build/bench/bin/redlatch_bench ${arguments} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
    message(FATAL_ERROR "redlatch_bench ended with ${status}")
endif()
