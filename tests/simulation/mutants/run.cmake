# SPDX-License-Identifier: MIT
# Proves that the simulation finds bugs: cmake -P tests/simulation/mutants/run.cmake
# Breaks the library on purpose, one way at a time, and expects one of 20,000 seeds to fail. Prints a line for each
# mutant and `simulation mutants: caught=N survived=0`. Fails if one survives. `-DONLY=regex`, `-DSHARE=1/2` and `-DCHECK=ON`: see
# ../../mutations/tree.cmake.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../../mutations/tree.cmake)
set(build ${root}/build/simulation_mutants/build_${share})
if(NOT CHECK)
    include(${root}/cmake/setup.cmake)
    redlatch_setup(compiler clang make pkg-config hiredis lua)
    copy_tree(${root}/build/simulation_mutants/tree_${share})
endif()

function(try_mutant name)
    build_mutant(${name} ${build} -DREDLATCH_BUILD_SIMULATION=ON -DREDLATCH_BUILD_TESTS=OFF)
    execute_process(COMMAND ${build}/bin/redlatch_simulation --first OUTPUT_VARIABLE said ERROR_VARIABLE said
        RESULT_VARIABLE failed)
    set(how "")
    if(failed)
        string(REGEX MATCH "(seed|pair run) [0-9]+[^\n]*" how "${said}")
        if(NOT how)  # it crashed
            set(how "${failed}")
        endif()
    endif()
    set(caught_by "${how}" PARENT_SCOPE)
endfunction()

include(${CMAKE_CURRENT_LIST_DIR}/mutants.cmake)
sum_up("simulation mutants")
