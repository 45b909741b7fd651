# SPDX-License-Identifier: MIT
# A copy of the tree that is broken on purpose, one way at a time. Used by run.cmake and by the mutants of soak and
# simulation. They define `try_mutant(name ...)`, which builds and tries a mutant, and sets `caught_by` to the evidence,
# or to "". `-DONLY=regex` selects mutants by name. `-DSHARE=1/3` takes the first of every three, in folders of its own, so
# that several shares can run at a time. `-DCHECK=ON` tries none, but checks that each still fits the library.
cmake_path(SET root NORMALIZE ${CMAKE_CURRENT_LIST_DIR}/../..)
set(caught 0)
set(survived 0)
set(fits 0)
set(share 1)
set(shares 1)
if(SHARE MATCHES "^([0-9]+)/([0-9]+)$")
    set(share ${CMAKE_MATCH_1})
    set(shares ${CMAKE_MATCH_2})
endif()

function(copy_tree to)
    file(REMOVE_RECURSE ${to})
    file(COPY ${root}/include ${root}/examples ${root}/tests ${root}/cmake ${root}/CMakeLists.txt DESTINATION ${to})
    set(copy ${to} PARENT_SCOPE)
endfunction()

# Replaces `from` by `to` in `file` of the library, once, and tries the result.
function(mutate name file from to)
    if(ONLY AND NOT name MATCHES "^(${ONLY})$")
        return()
    endif()
    file(READ ${root}/include/redlatch/${file} text)
    string(FIND "${text}" "${from}" at)
    if(at EQUAL -1)
        message(FATAL_ERROR "${name}: include/redlatch/${file} does not hold\n${from}")
    endif()
    math(EXPR fits "${fits} + 1")
    set(fits ${fits} PARENT_SCOPE)
    math(EXPR turn "(${fits} - ${share}) % ${shares}")
    if(CHECK OR NOT turn EQUAL 0)
        return()
    endif()
    string(LENGTH "${from}" length)
    math(EXPR after "${at} + ${length}")
    string(SUBSTRING "${text}" 0 ${at} before)
    string(SUBSTRING "${text}" ${after} -1 after)
    file(WRITE ${copy}/include/redlatch/${file} "${before}${to}${after}")
    update_digests(${file})
    try_mutant(${name} ${ARGN})
    file(WRITE ${copy}/include/redlatch/${file} "${text}")
    update_digests(${file})
    if(caught_by)
        message(STATUS "caught    ${name}: ${caught_by}")
        math(EXPR caught "${caught} + 1")
    else()
        message(STATUS "SURVIVED  ${name}")
        math(EXPR survived "${survived} + 1")
    endif()
    set(caught ${caught} PARENT_SCOPE)
    set(survived ${survived} PARENT_SCOPE)
endfunction()

# A script with a stale digest would be sent as text each time, which tests of round trips notice.
function(update_digests file)
    if(file MATCHES "^scripts/")
        execute_process(COMMAND ${CMAKE_COMMAND} -P ${copy}/cmake/digests.cmake OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
    endif()
endfunction()

# Compiles with clang, which takes half the time of g++, and without a precompiled header, which each mutant would make
# anew for one or two files. A mutant may leave a parameter unused.
function(build_mutant name build)
    execute_process(COMMAND ${CMAKE_COMMAND} -S ${copy} -B ${build} -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_FLAGS_DEBUG=-O0 -w"
        -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
        -DREDLATCH_BUILD_EXAMPLES=OFF -DREDLATCH_BUILD_BENCH=OFF ${ARGN} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND ${CMAKE_COMMAND} --build ${build} --parallel 2
        OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE failed)
    if(failed)
        message(FATAL_ERROR "${name} does not compile, which proves nothing:\n${said}")
    endif()
endfunction()

function(sum_up what)
    if(CHECK)
        message(STATUS "${what}: ${fits} fit the library")
        return()
    endif()
    message(STATUS "${what}: caught=${caught} survived=${survived}")
    if(survived)
        message(FATAL_ERROR "A bug that nothing notices.")
    endif()
endfunction()
