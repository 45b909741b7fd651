# SPDX-License-Identifier: MIT
# Runs all primitives in many processes, under all kinds of injected faults: cmake -DSECONDS=60 -DSEED=1 -P cmake/soak.cmake
# Prints a line that begins with `soak:`. Fails if a check fails. The same seed (or REDLATCH_SEED) repeats the same faults at the
# same times. Without one, each run uses a new seed.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/setup.cmake)
redlatch_setup(compiler make hiredis redis)

if(NOT SECONDS)
    set(SECONDS 60)
endif()
if(NOT DEFINED SEED AND DEFINED ENV{REDLATCH_SEED})
    set(SEED $ENV{REDLATCH_SEED})
endif()
if(NOT DEFINED SEED)
    string(RANDOM LENGTH 9 ALPHABET 123456789 SEED)
endif()

cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
redlatch_build(built ${root}/build/soak TARGETS redlatch_soak OPTIONS -DCMAKE_BUILD_TYPE=Debug
    "-DCMAKE_CXX_FLAGS_DEBUG=-O0 -g1" -DREDLATCH_BUILD_SOAK=ON -DREDLATCH_BUILD_TESTS=OFF -DREDLATCH_BUILD_EXAMPLES=OFF
    -DREDLATCH_BUILD_BENCH=OFF)
if(NOT built)
    message(FATAL_ERROR "The soak could not be built.")
endif()

execute_process(COMMAND ${root}/build/soak/bin/redlatch_soak ${SECONDS} ${SEED} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
    message(FATAL_ERROR "redlatch_soak ended with ${status}")
endif()
