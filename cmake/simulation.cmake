# SPDX-License-Identifier: MIT
# Runs the library's code against a modelled server, with a virtual clock and a seeded scheduler: cmake -P cmake/simulation.cmake
# A seed repeats its run exactly, switch by switch. Prints the seeds that failed, a line `simulation: ... failures=0`, and
# how often each command arrived later than all marks and leases. Of 20,000 seeds, each must have done so. Then forces each
# pair of what can happen to an operation at each step of its life, and prints a line `pairs: ... failures=0`.
#   -DSEED=n       runs only this seed
#   -DCOUNT=n      runs n seeds, from SEED on (default: 20,000 seeds from 1 on)
#   -DKIND=rlock   runs one kind of primitive; with -DKIND=pairs a seed is the number of a run of pairs
#   -DTRACE=ON     prints all events
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/setup.cmake)
redlatch_setup(compiler make pkg-config hiredis lua)

set(arguments "")
if(SEED)
    list(APPEND arguments --seed ${SEED})
    if(NOT COUNT)
        set(COUNT 1)
    endif()
endif()
if(COUNT)
    list(APPEND arguments --count ${COUNT})
endif()
if(KIND)
    list(APPEND arguments --kind ${KIND})
endif()
if(TRACE)
    list(APPEND arguments --trace)
endif()

cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
redlatch_build(built ${root}/build/simulation STDERR TARGETS redlatch_simulation OPTIONS -DCMAKE_BUILD_TYPE=Debug
    "-DCMAKE_CXX_FLAGS_DEBUG=-O0 -g1" -DREDLATCH_BUILD_SIMULATION=ON -DREDLATCH_BUILD_TESTS=OFF
    -DREDLATCH_BUILD_EXAMPLES=OFF -DREDLATCH_BUILD_BENCH=OFF)
if(NOT built)
    message(FATAL_ERROR "The simulation could not be built.")
endif()
execute_process(COMMAND ${root}/build/simulation/bin/redlatch_simulation ${arguments} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
    message(FATAL_ERROR "redlatch_simulation ended with ${status}")
endif()
