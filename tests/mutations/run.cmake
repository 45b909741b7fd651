# SPDX-License-Identifier: MIT
# The proof that the tests bite: cmake -P tests/mutations/run.cmake
# Breaks the library on purpose, one way at a time, in a copy of the tree, and expects the tests named beside it to fail.
# `-DONLY=regex` does those whose names match. Prints a line a mutation and `mutations: caught=N survived=0`; fails when one survives.
cmake_minimum_required(VERSION 3.25)
cmake_path(SET root NORMALIZE ${CMAKE_CURRENT_LIST_DIR}/../..)
include(${root}/cmake/setup.cmake)
redlatch_setup(compiler make redis hiredis doctest)

set(copy ${root}/build/mutations/tree)
set(build ${root}/build/mutations/build)
file(REMOVE_RECURSE ${copy})
file(COPY ${root}/include ${root}/tests ${root}/cmake ${root}/CMakeLists.txt DESTINATION ${copy})

set(caught 0)
set(survived 0)

# Replaces `from` by `to` in `file`, once; then a test of the sources that match `tests` (below tests/) must fail.
function(mutate name file from to tests)
    if(ONLY AND NOT name MATCHES "^(${ONLY})$")
        return()
    endif()
    file(READ ${root}/include/redlatch/${file} text)
    string(FIND "${text}" "${from}" at)
    if(at EQUAL -1)
        message(FATAL_ERROR "${name}: include/redlatch/${file} does not hold\n${from}")
    endif()
    string(LENGTH "${from}" length)
    math(EXPR after "${at} + ${length}")
    string(SUBSTRING "${text}" 0 ${at} before)
    string(SUBSTRING "${text}" ${after} -1 after)
    file(WRITE ${copy}/include/redlatch/${file} "${before}${to}${after}")

    execute_process(COMMAND ${CMAKE_COMMAND} -S ${copy} -B ${build} -DCMAKE_BUILD_TYPE=Debug
        -DREDLATCH_BUILD_EXAMPLES=OFF -DREDLATCH_BUILD_BENCH=OFF -DREDLATCH_TEST_FORMS=headers
        "-DREDLATCH_TEST_SOURCES=${tests}" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND ${CMAKE_COMMAND} --build ${build} --parallel 2
        OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE failed)
    if(failed)
        message(FATAL_ERROR "${name} does not compile, which proves nothing:\n${said}")
    endif()
    execute_process(COMMAND ${CMAKE_CTEST_COMMAND} --test-dir ${build} --label-regex "^(unit|integration|faults)$" --no-tests=error
        --stop-on-failure --timeout 60 OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE failed)
    file(WRITE ${copy}/include/redlatch/${file} "${text}")

    if(failed)
        string(REGEX MATCH "[0-9]+ tests? failed out of [0-9]+" how "${said}")
        message(STATUS "caught    ${name}: ${how}")
        math(EXPR caught "${caught} + 1")
    else()
        message(STATUS "SURVIVED  ${name}: ${tests}")
        math(EXPR survived "${survived} + 1")
    endif()
    set(caught ${caught} PARENT_SCOPE)
    set(survived ${survived} PARENT_SCOPE)
endfunction()

include(${CMAKE_CURRENT_LIST_DIR}/mutations.cmake)

message(STATUS "mutations: caught=${caught} survived=${survived}")
if(survived)
    message(FATAL_ERROR "A bug that no test notices.")
endif()
