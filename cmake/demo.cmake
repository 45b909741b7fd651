# SPDX-License-Identifier: MIT
# The flash sale: cmake -P cmake/demo.cmake [-- --without-lock | --segments 8]
# Builds examples/flash_sale.cpp and runs it. Fails if the program fails.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/setup.cmake)

set(needs compiler make hiredis)
if(NOT DEFINED ENV{REDLATCH_URL})
    list(APPEND needs redis)
endif()
redlatch_setup(${needs})

cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
redlatch_build(built ${root}/build/demo STDERR TARGETS flash_sale OPTIONS
    -DCMAKE_BUILD_TYPE=Release -DREDLATCH_BUILD_TESTS=OFF -DREDLATCH_BUILD_BENCH=OFF)
if(NOT built)
    message(FATAL_ERROR "The demo could not be built.")
endif()

# Also accepts the option without `--`, because users try that first.
redlatch_script_arguments(arguments)
if(NOT arguments AND CMAKE_ARGV3 STREQUAL "--without-lock")
    set(arguments --without-lock)
endif()
execute_process(COMMAND ${root}/build/demo/bin/flash_sale ${arguments} RESULT_VARIABLE status)
if(NOT status EQUAL 0)
    message(FATAL_ERROR "flash_sale ended with ${status}")
endif()
