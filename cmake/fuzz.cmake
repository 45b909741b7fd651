# SPDX-License-Identifier: MIT
# Fuzzes the library with hostile bytes by libFuzzer under ASan and UBSan: cmake -P cmake/fuzz.cmake
# Runs every tests/fuzz/*_fuzz.cpp. Keeps their corpus in build/fuzz for the next run. Fails on a finding and prints the file
# with the input: run the program on that file to reproduce it.
#   -DSECONDS=60      time for all programs together
#   -DRUNS=10000000   number of inputs for all programs together; the first limit reached ends the run
#   -DONLY=regex      selects programs by name
#   -DSANITIZE=OFF    runs without sanitizers, to measure the speed
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

set(sanitizers -fsanitize=fuzzer,address,undefined -fno-sanitize=vptr -fno-sanitize-recover=all)
if(DEFINED SANITIZE AND NOT SANITIZE)
    set(sanitizers -fsanitize=fuzzer)
endif()

foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    file(MAKE_DIRECTORY ${build}/${name})
    execute_process(COMMAND ${clang} -std=c++20 -O1 -g1 ${sanitizers} -I${root}/include -I${root}/tests ${source} -lhiredis -pthread -o ${build}/${name}.bin
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
    # A source may limit the length of its inputs: `// fuzz: max_len=256`.
    set(max_len 1024)
    file(STRINGS ${source} setting REGEX "^// fuzz: max_len=[0-9]+")
    if(setting MATCHES "([0-9]+)")
        set(max_len ${CMAKE_MATCH_1})
    endif()
    execute_process(COMMAND ${build}/${name}.bin -max_total_time=${seconds} -runs=${runs} -max_len=${max_len} -len_control=0 -timeout=60
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
