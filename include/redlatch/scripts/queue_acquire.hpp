// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/giving_back.hpp"
#include "redlatch/scripts/hold_levels.hpp"
#include "redlatch/scripts/lock_queue.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/wanted_until.hpp"

// How a lock of lock_queue.hpp is acquired. The common cases come first, before the functions that only the others need:
// to define all of them costs as much as three commands.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

// Precedes queue_acquire_free. Each writes the hold and returns the answer.
inline constexpr ScriptText unfenced_enter{R"lua(
local function enter(lock, counter, owner, lease)
    redis.call('hincrby', lock, owner, '1')
    return give_lease(lock, lease)
end
)lua"};
inline constexpr ScriptText unfenced_blocked{R"lua(
local function gone() return -2 end
local function blocked(left, foreign)
    if foreign then return {left, foreign} end
    return left
end
)lua"};
inline constexpr ScriptText unfenced_acquire = joined<unfenced_enter, unfenced_blocked>;

inline constexpr ScriptText unfenced_answers{R"lua(
local function reenter(owner, current, count, lease) return enter_again(lock, owner, current, count, lease) end
local function is_refusal(answer) return answer ~= nil end
)lua"};

// The lock is free, and nobody queues.
inline constexpr ScriptText queue_acquire_free{R"lua(
-- KEYS: lock, channel, queue, places (, token counter).  ARGV: owner, wanted count (1 = a first hold), lease in ms, wanted
-- until, publish command, way ('0' = asks once, '1' = queues up, '2' = waits without a place).
-- Answer: nil = held; n >= 0 = blocked for n ms, with no place in the queue; {n, 0} = blocked, with a place;
-- {n, 1} = likewise, and the holder's release grants nothing; -2 = the hold to re-enter is gone. Of a fenced lock:
-- {1, token}, {0, n}, {0, n, 0}, {0, n, 1}, {-2, 0}.
local owner, count, lease, way = ARGV[1], ARGV[2], ARGV[3], ARGV[6]
publish, now = ARGV[5], time_in_ms()
if now > tonumber(ARGV[4]) then return late(now) end
if redis.call('exists', lock, places) == 0 then
    if count ~= '1' then return gone() end
    return enter(lock, counter, owner, lease)
end
)lua"};

// Precedes queue_up.
inline constexpr ScriptText queue_entry{R"lua(
local id, number, kind = string.sub(owner, 1, 36), string.sub(owner, 38), counter and 'f' or 'p'
)lua"};

// Gives a waiter a place.
inline constexpr ScriptText queue_up{R"lua(
local keys_last = '120000'

-- Returns the answer to one that has to ask again after `left` ms. Queues it up if it wants that.
local function wait(left, foreign)
    if way == '2' and redis.call('exists', places) == 1 then
        redis.pcall('hset', places, 'polled', string.format('%.0f', now + 500))
    end
    -- A command in lower case reaches subscribers of other nodes, who cannot be counted: no queue.
    if way ~= '1' or publish == 'publish' then return blocked(left) end
    local is_new
    local function queue_up()
        local function enter_place()
            return redis.call('hset', places, id, place_text(number, lease, now + 60000, now + left, kind)) == 1
        end
        is_new = enter_place()
        -- The server has evicted the list alone: all queue up anew.
        if not is_new and redis.call('exists', queue) == 0 then
            redis.call('del', places)
            is_new = enter_place()
        end
        if is_new then redis.call('rpush', queue, id) end
        redis.call('pexpire', queue, keys_last)
        redis.call('pexpire', places, keys_last)
    end
    if pcall(queue_up) then return blocked(left, foreign) end
    -- One that may not queue up waits as ever.
    if is_new then
        redis.pcall('lrem', queue, '-1', id)
        redis.pcall('hdel', places, id)
    end
    return blocked(left)
end
)lua"};

// Another client holds the lock.
inline constexpr ScriptText queue_wait{R"lua(
local holders = redis.call('hkeys', lock)
local holder, is_shared = holders[1], #holders > 1
local function wait_for_holder()
    local left = redis.call('pttl', lock)
    if left == -1 then return no_lease() end
    return wait(left, is_foreign(holder) and 1 or 0)
end
if holder and holder ~= owner and not is_shared then return count == '1' and wait_for_holder() or gone() end
)lua"};

inline constexpr ScriptText queue_acquire{R"lua(
local current = holder and redis.call('hget', lock, owner)
if not current and count ~= '1' then return gone() end
-- In a read-write lock this owner may be a reader, which is not a hold of this lock.
if is_shared and redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
end
if current then return reenter(owner, current, count, lease) end
if holder then return wait_for_holder() end
-- The lock is free, and there is a queue, or there was one.
local left = left_of('turn')
if left > 0 and way ~= '2' then return wait(left, 0) end
local answer = enter(lock, counter, owner, lease)
if is_refusal(answer) then return answer end
leave_place(id, number)
tell_head(now + lease)
return answer
)lua"};

}  // namespace parts

inline constexpr ScriptText queue_acquire =
    joined<parts::wanted_until, parts::first_level, parts::queue_keys, parts::unfenced_acquire,
           parts::queue_acquire_free, parts::no_lease, parts::queue_entry, parts::queue_up, parts::queue_wait,
           parts::more_levels, parts::unfenced, parts::lock_queue, parts::queue_places, parts::unfenced_answers,
           parts::queue_acquire>;

}  // namespace scripts

// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::queue_acquire>{scripts::queue_acquire,
    "42b9ad740cbba01dfb129685a6926e5f38ed2133"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
