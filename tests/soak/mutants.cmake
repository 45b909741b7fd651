# SPDX-License-Identifier: MIT
# Proves that the soak finds bugs: cmake -P tests/soak/mutants.cmake
# Breaks the library on purpose, one way at a time, and expects a soak of half a minute to fail with the complaint
# beside it. Prints a line for each mutant and `soak mutants: caught=N survived=0`. Fails if one survives.
# `-DONLY=regex`, `-DSHARE=1/2` and `-DCHECK=ON`: see ../mutations/tree.cmake.
cmake_minimum_required(VERSION 3.25)
include(${CMAKE_CURRENT_LIST_DIR}/../mutations/tree.cmake)
set(build ${root}/build/soak_mutants/build_${share})
if(NOT CHECK)
    include(${root}/cmake/setup.cmake)
    redlatch_setup(compiler clang make redis hiredis)
    copy_tree(${root}/build/soak_mutants/tree_${share})
endif()

# The soak must fail with a complaint that matches `complaint`; under faults of one kind only, if that is named.
function(try_mutant name complaint)
    build_mutant(${name} ${build} -DREDLATCH_BUILD_SOAK=ON -DREDLATCH_BUILD_TESTS=OFF)
    execute_process(COMMAND ${build}/bin/redlatch_soak 30 1 ${ARGN} OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE failed)
    set(how "")
    if(failed)
        string(REGEX MATCH "WRONG: [^\n]*(${complaint})[^\n]*" how "${said}")
    endif()
    set(caught_by "${how}" PARENT_SCOPE)
endfunction()

# An acquire takes the lock from its holder: SET without NX.
mutate(takes_it_from_others scripts/rlock.hpp
    "if redis.call('exists', lock) == 0 then"
    "if redis.call('hexists', lock, owner) == 0 then"
    "rlock: overlap")

# A release frees the lock and notifies no waiter.
mutate(release_without_publish scripts/rlock.hpp
    "    redis.call('del', lock)\n    return redis.call(publish, channel, '0')"
    "    redis.call('del', lock)\n    return 1"
    "rlock: nobody came in")

# After a loss of data the tokens start again from the beginning.
mutate(tokens_begin_anew scripts/fenced_lock.hpp
    "math.max(last + 1, now[1] * 1000000 + now[2])"
    "last + 1"
    "fenced: token does not rise")

# The watchdog continues although the server reports that the hold is gone.
mutate(renewal_refusal_ignored lock/leases.hpp
    "case Renewed::refused: lose_at_server(*hold); break;"
    "case Renewed::refused: hold->renewed(sent, timeout); break;"
    "overlap|lost update|told only after")

# More permits are granted than there are.
mutate(semaphore_takes_too_many scripts/semaphore.hpp
    "if taken + wanted <= available then"
    "if taken + wanted <= available + 1 then"
    "semaphore: more permits")

# A free lock goes to any caller.
mutate(fair_lets_others_pass scripts/fair_lock.hpp
    "if free and (not head or head == owner) then"
    "if free then"
    "fair: overtaken")

# All holds of a thread have the same number, and a late release ends the next one.
mutate(numbers_used_again lock/lock_core.hpp
    "Claim claim{owner, number, count, lease_of(lease, settings)};"
    "Claim claim{owner, count == 1 ? owner : number, count, lease_of(lease, settings)};"
    "overlap|lost update|ended before its lease"
    release_held_back)

# The beginning of a refused script is not undone: a resent release counts as done.
mutate(right_missing_halfway scripts/all_or_none.hpp
    "if changes[k].undo then redis.pcall(unpack(changes[k].undo)) end"
    ""
    "soak:semaphore:[0-9]*: [0-9]* permits are there"
    right_missing)

sum_up("soak mutants")
