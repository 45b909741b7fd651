# SPDX-License-Identifier: MIT
# Everything that must hold: cmake -P cmake/test.cmake
#   test   g++, header tree: all of ctest
#   asan   clang++-14, single header, ASan and UBSan: unit, integration and fault tests
#   tsan   clang++-14, header tree, TSan: unit, integration and stress tests
# `cmake -DONLY=tsan -P cmake/test.cmake` does one of them. A later one runs even when an earlier one failed.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/setup.cmake)

cmake_path(GET CMAKE_CURRENT_LIST_DIR PARENT_PATH root)
set(stages test asan tsan)
if(ONLY)
    if(NOT ONLY IN_LIST stages)
        message(FATAL_ERROR "ONLY is one of: ${stages}")
    endif()
    set(stages ${ONLY})
endif()
redlatch_setup(compiler make clang clang-runtime format pkg-config redis redis-cli hiredis doctest spin)

cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
math(EXPR jobs "2 * ${cores}")
set(tests_only -DREDLATCH_BUILD_EXAMPLES=OFF -DREDLATCH_BUILD_BENCH=OFF)
set(summary "")
set(passed 0)
set(failed 0)

# TSan cannot map its shadow on kernels that randomise addresses by many bits: then without.
function(find_launcher out program)
    execute_process(COMMAND ${program} --count OUTPUT_VARIABLE said ERROR_VARIABLE said)
    if(said MATCHES "unexpected memory mapping")
        set(${out} setarch -R PARENT_SCOPE)
    else()
        set(${out} "" PARENT_SCOPE)
    endif()
endfunction()

foreach(stage IN LISTS stages)
    set(build ${root}/build/${stage})
    set(options -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_FLAGS_DEBUG=-O0 -g1")
    set(choice "")
    if(stage STREQUAL "test")
        list(APPEND options -DCMAKE_CXX_COMPILER=g++ -DREDLATCH_TEST_FORMS=headers)
    elseif(stage STREQUAL "asan")
        list(APPEND options -DCMAKE_CXX_COMPILER=clang++-14 -DREDLATCH_TEST_FORMS=single
            -DREDLATCH_SANITIZE=address,undefined ${tests_only})
        # After a fork ASan takes the stacks of the child's new threads for those of threads that are gone. What waits for
        # leases or silence waits five times as long here.
        set(choice --label-regex "^(unit|integration|faults)$"
            --exclude-regex "client_fork|processes|red_lock_(restart|fault)|cut_")
    elseif(stage STREQUAL "tsan")
        list(APPEND options -DCMAKE_CXX_COMPILER=clang++-14 -DREDLATCH_TEST_FORMS=headers
            -DREDLATCH_SANITIZE=thread ${tests_only})
        # What waits for leases waits five times as long here; the stress tests look for the races of those, too.
        set(choice --label-regex "^(unit|integration|stress)$" --exclude-regex "red_lock_(restart|fault)")
    endif()

    string(TIMESTAMP begun %s)
    set(log ${build}/ctest.log)
    file(REMOVE ${log})
    redlatch_build(built ${build} OPTIONS ${options})
    if(built)
        set(launcher "")
        if(stage STREQUAL "tsan")
            find_launcher(launcher ${build}/bin/redlatch_unit)
        endif()
        # Most tests wait for servers rather than for a CPU.
        execute_process(COMMAND ${launcher} ${CMAKE_CTEST_COMMAND} --test-dir ${build} --parallel ${jobs}
            --output-on-failure --no-tests=error --output-log ${log} ${choice})
    endif()
    string(TIMESTAMP ended %s)
    math(EXPR seconds "${ended} - ${begun}")

    set(result "could not be built")
    set(stage_failed 1)
    set(stage_total 1)
    if(built)
        set(result "ctest did not finish")
        if(EXISTS ${log})
            file(READ ${log} said)
            if(said MATCHES "[0-9]+% tests passed, ([0-9]+) tests failed out of ([0-9]+)")
                set(result ${CMAKE_MATCH_0})
                set(stage_failed ${CMAKE_MATCH_1})
                set(stage_total ${CMAKE_MATCH_2})
            endif()
        endif()
    endif()
    list(APPEND summary "${stage}: ${result} (${seconds} s)")
    math(EXPR failed "${failed} + ${stage_failed}")
    math(EXPR passed "${passed} + ${stage_total} - ${stage_failed}")
endforeach()

# SEND_ERROR sets the exit status and lets the last lines be the sum, in ctest's own words.
if(failed GREATER 0)
    message(SEND_ERROR "Not everything passed.")
endif()
math(EXPR total "${passed} + ${failed}")
math(EXPR percent "100 * ${passed} / ${total}")
list(APPEND summary "${percent}% tests passed, ${failed} tests failed out of ${total}")
foreach(line IN LISTS summary)
    execute_process(COMMAND ${CMAKE_COMMAND} -E echo "${line}")
endforeach()
