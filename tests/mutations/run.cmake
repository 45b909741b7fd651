# SPDX-License-Identifier: MIT
# Proves that the tests find bugs: cmake -P tests/mutations/run.cmake
# Breaks the library on purpose, one way at a time, and expects the tests named beside it to fail. Prints a line for
# each mutation and `mutations: caught=N survived=0`. Fails if one survives. `-DONLY=regex`, `-DSHARE=1/2` and `-DCHECK=ON`: see
# tree.cmake.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/tree.cmake)
set(build ${root}/build/mutations/build_${share})
if(NOT CHECK)
    include(${root}/cmake/setup.cmake)
    redlatch_setup(compiler clang make pkg-config redis hiredis doctest lua)
    copy_tree(${root}/build/mutations/tree_${share})
endif()

# A test of the sources that match `tests` (below tests/) must fail.
function(try_mutant name tests)
    build_mutant(${name} ${build} -DREDLATCH_TEST_FORMS=compiled "-DREDLATCH_TEST_SOURCES=${tests}")
    execute_process(COMMAND ${CMAKE_CTEST_COMMAND} --test-dir ${build} --label-regex "^(unit|integration|faults|stress)$" --no-tests=error
        --stop-on-failure --timeout 60 OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE failed)
    set(how "")
    if(failed)
        string(REGEX MATCH "[a-z_]+\\.[a-z_0-9]+ \\([A-Za-z]+\\)" how "${said}")
        if(NOT how)
            set(how "ctest ended with ${failed}")
        endif()
    endif()
    set(caught_by "${how}" PARENT_SCOPE)
endfunction()

include(${CMAKE_CURRENT_LIST_DIR}/mutations.cmake)
sum_up("mutations")
