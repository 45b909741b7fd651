// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/all_or_none.hpp"
#include "redlatch/scripts/giving_back.hpp"
#include "redlatch/scripts/hold_levels.hpp"
#include "redlatch/scripts/lock_queue.hpp"
#include "redlatch/scripts/queue_release.hpp"
#include "redlatch/scripts/read_write_lock.hpp"
#include "redlatch/scripts/read_write_queue.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/wanted_until.hpp"

// The scripts that release the holds of a read-write lock: see read_write_lock.hpp for the keys.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr ScriptText read_leave{R"lua(
-- KEYS: lock, channel (, mark of a waiting writer, queue, places).
-- Answer: nil = not held by the owner (any more); 0 = released, no listeners notified; n = released, n listeners notified;
-- -1 = still held; -3 = released and granted to a waiter.

-- Releases levels of a read hold. Returns the answer. Also returns, if somebody may be in the queue, what to tell there:
-- `free` = how long the hold would have lasted, of a lock that is free now, and `message`, the one to all who wait;
-- otherwise `lasts` = after how many ms the present holds end, if waiters rely on a later time; `is_open` = true if readers
-- may enter now.
local function leave(owner, count, lease)
    local timeout = tag .. ':' .. owner .. ':rwlock_timeout:'
    local mode = redis.call('hget', lock, 'mode')
    local current = mode and redis.call('hget', lock, owner)
    if not current then return nil end
    if count ~= '0' then
        -- The hold lasts as long as the longest of its leases: the level below inherits it.
        local level = redis.call('pttl', timeout .. count)
        lease = math.max(lease, level)
        for i = count + 1, tonumber(current) do
            lease = math.max(lease, redis.call('pttl', timeout .. i))
        end
        local left = redis.call('pttl', lock)
        local changes = {{'hdel', lock, '', tidy = earlier_lease(lock, left)}}
        if lease > 0 then
            table.insert(changes, {'set', timeout .. count, '1', 'px', lease,
                                   undo = lease_again(timeout .. count, level)})
        end
        if current ~= count then
            table.insert(changes, {'hset', lock, owner, count, undo = {'hset', lock, 'mode', mode, owner, current}})
        end
        if math.max(left, 0) < lease then table.insert(changes, {'pexpire', lock, lease}) end
        for i = count + 1, tonumber(current) do table.insert(changes, {'del', timeout .. i}) end
        return all_or_none(changes) or -1
    end
    local left = mode == 'read' and read_lease(lock, tag, owner)
    local before = redis.call('pttl', lock)
    local head = left and queue and redis.pcall('lindex', queue, '0')
    local changes = {}
    if left == -2 then
        table.insert(changes, {'del', lock})
    else
        table.insert(changes, {'hdel', lock, owner, undo = {'hset', lock, 'mode', mode, owner, current},
                               tidy = earlier_lease(lock, before)})
        if left and left >= 0 then table.insert(changes, {'pexpire', lock, math.max(1, left)}) end
    end
    -- As the last change, because nothing undoes it.
    for i = 1, tonumber(current) do table.insert(changes, {'del', timeout .. i}) end
    local refusal = all_or_none(changes)
    if refusal then return refusal end
    if left == -2 and head then return nil, {free = before, message = '0'} end
    -- Waiting writers rely on the earlier lease, which may have been much longer: wake them.
    local is_shorter = left and left * 2 < before
    local answer = (left == -2 or is_shorter) and redis.call(publish, channel, '0') or 0
    if head then return answer, {lasts = is_shorter and math.max(left, 0)} end
    return answer
end
)lua"};

inline constexpr ScriptText write_leave{R"lua(
-- KEYS, answer: as of read_leave.

-- Like that of read_leave.
local function leave(writer, count, lease)
    local current = redis.call('hget', lock, writer)
    if not current then return nil end
    if count ~= '0' then return leave_level(lock, writer, current, count, lease) end
    local left = read_lease(lock, tag)
    local before = redis.call('pttl', lock)
    local head = queue and redis.pcall('lindex', queue, '0')
    if left == -2 then
        redis.call('del', lock)
        if head then return nil, {free = before, message = '1'} end
        return redis.call(publish, channel, '1')
    end
    -- The writer still holds as a reader, and others may join it.
    local changes = {{'hdel', lock, ''},
                     {'hset', lock, 'mode', 'read', undo = {'hset', lock, 'mode', 'write'}},
                     {'hdel', lock, writer, undo = {'hset', lock, writer, current}}}
    if left >= 0 then table.insert(changes, {'pexpire', lock, math.max(1, left)}) end
    local refusal = all_or_none(changes)
    if refusal then return refusal end
    local answer = redis.call(publish, channel, '1')
    if head then return answer, {lasts = math.max(left, 0), is_open = true} end
    return answer
end
)lua"};

// Follows a `leave`.
inline constexpr ScriptText read_write_release{R"lua(
-- ARGV: owner, remaining count, lease in ms for a remaining hold, publish command, tag.
publish, tag = ARGV[4], ARGV[5]
local answer, done = leave(ARGV[1], ARGV[2], ARGV[3])
if not done then return answer end
)lua"};

inline constexpr ScriptText read_write_released{R"lua(
return tell_queue(answer, done)
)lua"};

// Precedes give_up.
inline constexpr ScriptText read_write_give_up{R"lua(
-- A number had no hold. Perhaps nobody has told those who wait that the lock is free, or who holds it.
local tell_others = if_permitted(function()
    if redis.call('exists', queue) == 0 then return end
    local left = redis.call('pttl', lock)
    if left ~= -2 then return tell_waiters(now + math.max(left, 0), redis.call('hget', lock, 'mode') == 'read') end
    local turn = left_of('turn')
    -- A hold that expired has woken nobody.
    if turn == 0 then hand_on(0, '1') else tell_head(now + turn) end
end)

-- Releases a number of which no client knows whether it has a hold or a place.
local function release(owner, count, lease, command, of)
    publish, tag, now = command, of, time_in_ms()
    if queue then leave_place(entry_of(owner)) end
    local answer, done = leave(owner, count, lease)
    if done then return tell_queue(answer, done) end
    if answer == nil and queue then tell_others() end
    return answer
end
)lua"};

// The functions for the queue that a release needs.
inline constexpr ScriptText read_write_queue =
    joined<queue_words, read_write_entry, lock_queue, queue_places, read_write_tell, queue_turn, queue_undo,
           read_write_hand_on, queue_notify, read_write_tell_queue>;

inline constexpr ScriptText read_leaving =
    joined<all_or_none, read_write_release_keys, read_level, read_lease, read_leave>;
inline constexpr ScriptText write_leaving = joined<leaving_levels, read_write_release_keys, read_lease, write_leave>;

}  // namespace parts

inline constexpr ScriptText read_release = joined<parts::wanted_until, parts::read_leaving, parts::read_write_release,
                                                  parts::read_write_queue, parts::read_write_released>;
inline constexpr ScriptText read_give_up = joined<parts::wanted_until, parts::read_leaving, parts::read_write_queue,
                                                  parts::read_write_give_up, parts::give_up>;
inline constexpr ScriptText write_release = joined<parts::wanted_until, parts::write_leaving, parts::read_write_release,
                                                   parts::read_write_queue, parts::read_write_released>;
inline constexpr ScriptText write_give_up = joined<parts::wanted_until, parts::write_leaving, parts::read_write_queue,
                                                   parts::read_write_give_up, parts::give_up>;

}  // namespace scripts

// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::read_give_up>{scripts::read_give_up,
    "0d3731cfc0136dabd6c840b3a0f9611406620a6b"};
template <>
inline constexpr Script digested<scripts::read_release>{scripts::read_release,
    "12c75718b6412a259afcd7a3cc62ff0e0fbf8f28"};
template <>
inline constexpr Script digested<scripts::write_give_up>{scripts::write_give_up,
    "635e617f47c9b0f3829ac0b4687ce30a6282dd7e"};
template <>
inline constexpr Script digested<scripts::write_release>{scripts::write_release,
    "4e6fbb7b49d436f8e661032982c7a5d111a2baf0"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
