# SPDX-License-Identifier: MIT
# Hostile bytes, found by libFuzzer under ASan and UBSan: cmake -P cmake/fuzz.cmake
# Runs every tests/fuzz/*_fuzz.cpp for -DSECONDS=60 in all, or until -DRUNS=10000000 inputs in all; `-DONLY=regex` takes
# those whose names match. What they learn stays in build/fuzz for the next time. Fails on a finding, and says in which
# file the input is: run the program on it to see more.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/setup.cmake)
redlatch_setup(clang clang-runtime hiredis)
find_program(clang NAMES clang++-14 NO_CACHE REQUIRED)

if(NOT DEFINED SECONDS)
    set(SECONDS 60)
endif()
if(NOT DEFINED RUNS)
    set(RUNS 10000000)
endif()
cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
set(build ${root}/build/fuzz)
file(GLOB sources ${root}/tests/fuzz/*_fuzz.cpp)
if(ONLY)
    list(FILTER sources INCLUDE REGEX "/(${ONLY})_fuzz.cpp$")
endif()
list(LENGTH sources count)
if(count EQUAL 0)
    message(FATAL_ERROR "There is no such program in tests/fuzz")
endif()
math(EXPR seconds "(${SECONDS} + ${count} - 1) / ${count}")
math(EXPR runs "(${RUNS} + ${count} - 1) / ${count}")

foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    file(MAKE_DIRECTORY ${build}/${name})
    execute_process(COMMAND ${clang} -std=c++20 -O1 -g1 -fsanitize=fuzzer,address,undefined -fno-sanitize=vptr
        -fno-sanitize-recover=all -I${root}/include -I${root}/tests ${source} -lhiredis -pthread -o ${build}/${name}.bin
        RESULT_VARIABLE status)
    if(status)
        message(FATAL_ERROR "${name} could not be built")
    endif()
endforeach()

set(findings 0)
foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    string(REPLACE "_fuzz" "" subject ${name})
    set(dictionary "")
    if(EXISTS ${root}/tests/fuzz/${subject}.dict)
        set(dictionary -dict=${root}/tests/fuzz/${subject}.dict)
    endif()
    execute_process(COMMAND ${build}/${name}.bin -max_total_time=${seconds} -runs=${runs} -max_len=1024 -len_control=0 -timeout=60
        -rss_limit_mb=3000 -print_final_stats=1 -artifact_prefix=${build}/${name}- ${dictionary} ${build}/${name}
        OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE status)
    string(REGEX MATCH "stat::number_of_executed_units: ([0-9]+)" ignored "${said}")
    set(executed ${CMAKE_MATCH_1})
    if(status EQUAL 0)
        set(result "${executed} inputs, nothing found")
    else()
        math(EXPR findings "${findings} + 1")
        set(result "FOUND something:\n${said}")
    endif()
    execute_process(COMMAND ${CMAKE_COMMAND} -E echo "${subject}: ${result}")
endforeach()
if(findings)
    message(FATAL_ERROR "A hostile server or caller can do harm.")
endif()
