# SPDX-License-Identifier: MIT
# The proof that the soak bites: cmake -P tests/soak/mutants.cmake [-DONLY=regex]
# Breaks the library on purpose, one way at a time, in a copy of the tree, and expects a soak of half a minute to fail with
# the word beside it. Prints a line a mutant and `soak mutants: caught=N survived=0`; fails when one survives.
cmake_minimum_required(VERSION 3.25)
cmake_path(SET root NORMALIZE ${CMAKE_CURRENT_LIST_DIR}/../..)
include(${root}/cmake/setup.cmake)
redlatch_setup(compiler make redis hiredis)

set(copy ${root}/build/soak_mutants/tree)
set(build ${root}/build/soak_mutants/build)
file(REMOVE_RECURSE ${copy})
file(COPY ${root}/include ${root}/tests ${root}/cmake ${root}/CMakeLists.txt DESTINATION ${copy})
set(caught 0)
set(survived 0)

# Replaces `from` by `to` in `file`, once; then the soak must fail, and say something that matches `complaint`.
function(mutate name file from to complaint)
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
    execute_process(COMMAND ${CMAKE_COMMAND} -S ${copy} -B ${build} -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_FLAGS_DEBUG=-O0 -g1"
        -DREDLATCH_BUILD_SOAK=ON -DREDLATCH_BUILD_TESTS=OFF -DREDLATCH_BUILD_EXAMPLES=OFF -DREDLATCH_BUILD_BENCH=OFF
        OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
    execute_process(COMMAND ${CMAKE_COMMAND} --build ${build} --target redlatch_soak OUTPUT_VARIABLE said ERROR_VARIABLE said
        RESULT_VARIABLE failed)
    if(failed)
        message(FATAL_ERROR "${name} does not compile, which proves nothing:\n${said}")
    endif()
    execute_process(COMMAND ${build}/bin/redlatch_soak 30 1 OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE failed)
    file(WRITE ${copy}/include/redlatch/${file} "${text}")

    string(REGEX MATCH "WRONG: [^\n]*(${complaint})[^\n]*" how "${said}")
    if(failed AND how)
        message(STATUS "caught    ${name}: ${how}")
        math(EXPR caught "${caught} + 1")
    else()
        message(STATUS "SURVIVED  ${name}")
        math(EXPR survived "${survived} + 1")
    endif()
    set(caught ${caught} PARENT_SCOPE)
    set(survived ${survived} PARENT_SCOPE)
endfunction()

# Takes the lock whoever holds it: SET without NX.
mutate(takes_it_from_others scripts/rlock.hpp
    "if redis.call('exists', lock) == 0 then"
    "if redis.call('hexists', lock, owner) == 0 then"
    "rlock: overlap")

# Frees the lock and tells nobody.
mutate(release_without_publish scripts/rlock.hpp
    "return redis.call(publish, channel, '0')\n)lua\"};\n\ninline constexpr std::string_view rlock_hand_over"
    "return 1\n)lua\"};\n\ninline constexpr std::string_view rlock_hand_over"
    "rlock: nobody came in")

# After a loss of data the tokens begin anew.
mutate(tokens_begin_anew scripts/fenced_lock.hpp
    "math.max(tonumber(redis.call('get', counter) or '0') + 1, now[1] * 1000000 + now[2])"
    "tonumber(redis.call('get', counter) or '0') + 1"
    "fenced: token does not rise")

# The watchdog goes on although the server says that the hold is gone.
mutate(renewal_refusal_ignored client/hold_keeper.hpp
    "case Renewed::refused: lose(*hold, \"the server says that it is not held any more\"); break;"
    "case Renewed::refused: hold->renewed(sent, timeout); break;"
    "overlap|lost update|told only after")

# More permits are out than there are.
mutate(semaphore_takes_too_many scripts/semaphore.hpp
    "if taken + wanted > available then break end"
    "if taken + wanted > available + 1 then break end"
    "semaphore: more permits")

# A free lock goes to whoever asks.
mutate(fair_lets_others_pass scripts/fair_lock.hpp
    "if free and (not head or head == owner) then"
    "if free then"
    "fair: overtaken")

message(STATUS "soak mutants: caught=${caught} survived=${survived}")
if(survived)
    message(FATAL_ERROR "A bug that the soak does not notice.")
endif()
