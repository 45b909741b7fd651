// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/all_or_none.hpp"
#include "redlatch/scripts/giving_back.hpp"
#include "redlatch/scripts/hold_levels.hpp"
#include "redlatch/scripts/lock_queue.hpp"
#include "redlatch/scripts/queue_acquire.hpp"
#include "redlatch/scripts/read_write_queue.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/wanted_until.hpp"

#include <array>
#include <cstddef>

// The scripts of the read-write lock, but for its releases (read_write_release.hpp). Keys, as in Redisson:
//   name                               a hash: mode -> read or write; <reader> -> its count; <writer>:write -> its count
//   {name}:<reader>:rwlock_timeout:<i> for i = 1 … count: '1', whose TTL is the lease of that level of the read hold
// The TTL of the hash is that of the longest hold. A read hold lasts as long as any of its timeout keys: a field alone
// may belong to a dead reader. Below, `tag` is the name in braces, with which the names of the timeout keys begin.
//
// Counts are absolute, as in the scripts of RLock. Releasing and renewing begin with PEXPIRE or DEL, which a server
// that is out of memory allows. Two things are ours alone: the mark of a waiting writer (while it exists, a reader of ours
// without a hold does not enter), and the queue of those who wait (read_write_queue.hpp). The common cases come first,
// before the functions that only the others need.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr ScriptText read_lease{R"lua(
-- Returns how many ms the longest read hold has left, except that of `but`; -2 if there is none. Removes the fields of
-- expired ones.
local function read_lease(lock, tag, but)
    local longest = -2
    local fields = redis.call('hgetall', lock)
    for at = 1, #fields, 2 do
        local owner, count = fields[at], tonumber(fields[at + 1])
        if count and owner ~= but and string.sub(owner, -6) ~= ':write' then
            local left = -2
            for i = 1, count do
                left = math.max(left, redis.call('pttl', tag .. ':' .. owner .. ':rwlock_timeout:' .. i))
            end
            if left == -2 then redis.call('hdel', lock, owner) end
            longest = math.max(longest, left)
        end
    end
    return longest
end
)lua"};

inline constexpr ScriptText read_level{R"lua(
-- Returns the change that undoes writing the lease of a level. `left`: the TTL before.
local function lease_again(timeout, left)
    if left > 0 then return {'set', timeout, '1', 'px', left} end
    return {'del', timeout}
end
-- Returns the change that restores the lease of the lock, of which `left` ms were left. Undoing a write may create the lock
-- again, so it follows: as the `tidy` of the first write.
local function earlier_lease(lock, left) return left >= 0 and {'pexpire', lock, math.max(left, 1)} end
)lua"};

// Nobody holds the lock or waits for it.
inline constexpr ScriptText read_acquire_free{R"lua(
-- KEYS: lock, mark of a waiting writer (, channel, queue, places).
-- ARGV: owner, wanted count (1 = a first hold), lease in ms, the field that it has as a writer, tag, wanted until, publish
-- command, way ('0' = asks once, '1' = queues up, '2' = waits without a place).
-- Answer: nil = held; n >= 0 = blocked for n ms; {n, 0} = likewise, with a place in the queue; {n, 1} = likewise, and it
-- may become free without a word to the queue; -2 = the hold to re-enter is gone.
local owner, count, lease, writer, tag, way = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[8]
publish, now = ARGV[7], time_in_ms()
if now > tonumber(ARGV[6]) then return late(now) end
local timeout = tag .. ':' .. owner .. ':rwlock_timeout:'
if redis.call('exists', lock, mark, places or lock) == 0 then
    if count ~= '1' then return gone() end
    return all_or_none({{'set', timeout .. '1', '1', 'px', lease, undo = {'del', timeout .. '1'}},
                        {'hset', lock, 'mode', 'read', owner, '1', undo = {'del', lock}}, {'pexpire', lock, lease}})
end
)lua"};

inline constexpr ScriptText read_acquire{R"lua(
local mode = redis.call('hget', lock, 'mode')
local current = mode and tonumber(redis.call('hget', lock, owner) or 0) or 0
if current == 0 then
    if count ~= '1' then return gone() end
    if not mode and redis.call('exists', lock) == 1 then
        return redis.error_reply('WRONGTYPE the key holds a lock that is no read-write lock')
    end
    if mode ~= 'write' then
        if redis.call('exists', mark) == 1 then
            local left = redis.call('pttl', mark)
            -- The writer that withdraws it tells all who wait.
            return left < 0 and left or wait(left, 1)
        end
        local turn = not mode and queue and way ~= '2' and left_of('turn') or 0
        if turn > 0 then return wait(turn, 0) end
    elseif redis.call('hexists', lock, writer) == 0 then
        local left = redis.call('pttl', lock)
        if left == -1 then return no_lease() end
        return wait(left, queue and any_foreign())
    end
end
-- This level exists if the command is a resend. Levels above it exist if a release has not arrived: this one inherits
-- their leases.
local level = -2
for i = current, tonumber(count), -1 do
    local left = redis.call('pttl', timeout .. i)
    lease = math.max(lease, left)
    if i == tonumber(count) then level = left end
end
local left = redis.call('pttl', lock)
local changes = {{'set', timeout .. count, '1', 'px', lease, undo = lease_again(timeout .. count, level),
                  tidy = earlier_lease(lock, left)}}
if not mode then
    table.insert(changes, {'hset', lock, 'mode', 'read', owner, count, undo = {'del', lock}})
elseif current == 0 then
    table.insert(changes, {'hset', lock, owner, count, undo = {'hdel', lock, owner}})
elseif current ~= tonumber(count) then
    table.insert(changes, {'hset', lock, owner, count, undo = {'hset', lock, 'mode', mode, owner, current}})
end
if left < tonumber(lease) then table.insert(changes, {'pexpire', lock, lease}) end
for i = count + 1, current do table.insert(changes, {'del', timeout .. i}) end
local refusal = all_or_none(changes)
if refusal then return refusal end
-- The readers behind it may enter, too.
if queue and current == 0 and (leave_place(id, number) or not mode) then
    tell_waiters(now + math.max(left, lease), true)
end
return nil
)lua"};

// Likewise.
inline constexpr ScriptText write_acquire_free{R"lua(
-- KEYS: lock, mark of a waiting writer (, channel, queue, places).
-- ARGV: the field of the owner, wanted count (1 = a first hold), lease in ms, tag, the id of the client that leaves the
-- mark, TTL of the mark in ms ('0' = leave none), wanted until, publish command, way.
-- Answer and way: as of read_acquire.
local owner, count, lease, tag, who, mark_ttl, way = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[9]
publish, now = ARGV[8], time_in_ms()
if now > tonumber(ARGV[7]) then return late(now) end
if redis.call('exists', lock, mark, places or lock) == 0 then
    if count ~= '1' then return gone() end
    redis.call('hset', lock, 'mode', 'write', owner, '1')
    return give_lease(lock, lease)
end
)lua"};

inline constexpr ScriptText write_acquire{R"lua(
if mark_ttl ~= '0' then kind = 'm' end
local mode = redis.call('hget', lock, 'mode')
if mode == 'write' then
    local current = redis.call('hget', lock, owner)
    if current then return enter_again(lock, owner, current, count, lease) end
end
if count ~= '1' then return gone() end
if mode == 'write' then
    local left = redis.call('pttl', lock)
    if left == -1 then return no_lease() end
    return wait(left, queue and any_foreign())
end
if mode then
    local left = read_lease(lock, tag)
    if left == -1 then return no_lease() end
    if left ~= -2 then
        if mark_ttl ~= '0' then
            redis.pcall('set', mark, who, 'px', mark_ttl)
            -- The writer must ask again in time to renew the mark.
            left = math.min(left, math.floor(mark_ttl / 2))
        end
        return wait(left, queue and any_foreign())
    end
    redis.call('del', lock)
elseif redis.call('exists', lock) == 1 then
    return redis.error_reply('WRONGTYPE the key holds a lock that is no read-write lock')
end
local turn = queue and way ~= '2' and left_of('turn') or 0
if turn > 0 then return wait(turn, 0) end
-- The mark is deleted last: readers get their turn after every writer. Another waiting writer sets it again.
local refusal = all_or_none({{'hset', lock, 'mode', 'write', owner, '1', undo = {'hdel', lock, 'mode', owner}},
                             {'pexpire', lock, lease}, {'del', mark}})
if refusal then return refusal end
if queue then
    leave_place(id, number)
    tell_head(now + lease)
end
return nil
)lua"};

inline constexpr ScriptText read_holders{R"lua(
-- KEYS: lock.  ARGV: tag.  Answer: the readers that hold it.
local lock, tag = KEYS[1], ARGV[1]
local holders = {}
if read_lease(lock, tag) == -2 then return holders end
for _, field in ipairs(redis.call('hkeys', lock)) do
    if field ~= 'mode' and string.sub(field, -6) ~= ':write' then holders[#holders + 1] = field end
end
return holders
)lua"};

inline constexpr ScriptText read_renew{R"lua(
-- KEYS: up to 1,000 locks.  ARGV: lease in ms, wanted until, then the owner of a read hold of each lock.
-- Answer: for each lock 1 = renewed, 0 = the owner does not hold it. Never creates a key, never shortens a TTL: other
-- readers may have longer leases.
local lease, wanted_until = tonumber(ARGV[1]), ARGV[2]
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
local renewed = {}
for i, lock in ipairs(KEYS) do
    local owner = ARGV[i + 2]
    local count = redis.pcall('hget', lock, owner)
    renewed[i] = 0
    if type(count) == 'table' then
        -- A key of another type is lost, but the other locks must not expire for that.
        if not string.find(count.err, 'WRONGTYPE', 1, true) then return count end
        count = 0
    end
    local tag = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
    for level = 1, tonumber(count or 0) do
        local timeout = tag .. ':' .. owner .. ':rwlock_timeout:' .. level
        local left = redis.call('pttl', timeout)
        if left ~= -2 then renewed[i] = 1 end
        if left ~= -2 and left < lease then redis.call('pexpire', timeout, lease) end
    end
    if renewed[i] == 1 and redis.call('pttl', lock) < lease then redis.call('pexpire', lock, lease) end
end
return renewed
)lua"};

inline constexpr ScriptText read_remaining_lease{R"lua(
-- KEYS: lock.  ARGV: tag.  Answer: how many ms the longest read hold has left; -1 = no TTL; -2 = there is none.
return read_lease(KEYS[1], ARGV[1])
)lua"};

}  // namespace parts

inline constexpr ScriptText read_acquire =
    joined<parts::wanted_until, parts::all_or_none, parts::read_write_acquire_keys, parts::unfenced_blocked,
           parts::read_acquire_free, parts::no_lease, parts::queue_words, parts::read_write_entry,
           parts::read_write_place, parts::queue_up, parts::lock_queue, parts::queue_places, parts::read_write_tell,
           parts::read_level, parts::read_acquire>;
inline constexpr ScriptText read_holders = joined<parts::read_lease, parts::read_holders>;
inline constexpr ScriptText read_remaining_lease = joined<parts::read_lease, parts::read_remaining_lease>;
inline constexpr ScriptText read_renew = joined<parts::wanted_until, parts::read_renew>;
inline constexpr ScriptText write_acquire =
    joined<parts::wanted_until, parts::first_level, parts::read_write_acquire_keys, parts::unfenced_blocked,
           parts::write_acquire_free, parts::no_lease, parts::all_or_none, parts::more_levels, parts::queue_words,
           parts::read_write_entry, parts::read_write_place, parts::queue_up, parts::lock_queue, parts::queue_places,
           parts::read_lease, parts::write_acquire>;

inline constexpr ScriptText read_hold_count{R"lua(
-- KEYS: lock.  ARGV: owner, tag.  Answer: the owner's read count; nil if it has none, or all its leases have ended.
local lock, owner, tag = KEYS[1], ARGV[1], ARGV[2]
local count = redis.call('hget', lock, owner)
for i = 1, tonumber(count or 0) do
    if redis.call('exists', tag .. ':' .. owner .. ':rwlock_timeout:' .. i) == 1 then return count end
end
return nil
)lua"};

inline constexpr ScriptText write_holders{R"lua(
-- KEYS: lock.  Answer: the writer that holds it, if there is one.
local holders = {}
if redis.call('hget', KEYS[1], 'mode') ~= 'write' then return holders end
for _, field in ipairs(redis.call('hkeys', KEYS[1])) do
    if string.sub(field, -6) == ':write' then holders[#holders + 1] = field end
end
return holders
)lua"};

inline constexpr ScriptText read_write_inspect{R"lua(
-- KEYS: lock.  ARGV: tag.  Answer: for each hold that lasts its field, its count, and how many ms its lease has left
-- (-1 = no TTL). At most 1,000 holds. Changes nothing: removes no expired holds.
local lock, tag = KEYS[1], ARGV[1]
local mode, fields, ttl = redis.call('hget', lock, 'mode'), redis.call('hgetall', lock), redis.call('pttl', lock)
if not mode and #fields > 0 then
    return redis.error_reply('WRONGTYPE the key holds a lock that is no read-write lock')
end
local holds = {}
for at = 1, #fields, 2 do
    local owner, count, left = fields[at], tonumber(fields[at + 1]), -2
    if count and string.sub(owner, -6) == ':write' then
        left = ttl
    elseif count then
        for i = 1, count do
            left = math.max(left, redis.call('pttl', tag .. ':' .. owner .. ':rwlock_timeout:' .. i))
        end
    end
    if left ~= -2 and #holds < 3000 then
        table.insert(holds, owner)
        table.insert(holds, count)
        table.insert(holds, left)
    end
end
return holds
)lua"};

inline constexpr ScriptText write_remaining_lease{R"lua(
-- KEYS: lock.  Answer: PTTL; -2 = no writer holds it.
if redis.call('hget', KEYS[1], 'mode') ~= 'write' then return -2 end
return redis.call('pttl', KEYS[1])
)lua"};

inline constexpr ScriptText write_withdraw{R"lua(
-- KEYS: mark of a waiting writer, channel.  ARGV: the id of the client that left it, publish command.
-- Answer: 1 = removed, readers need not wait any longer; 0 = the mark is not of this client.
local mark, channel = KEYS[1], KEYS[2]
local who, publish = ARGV[1], ARGV[2]
if redis.call('get', mark) ~= who then return 0 end
redis.call('del', mark)
redis.call(publish, channel, '1')
return 1
)lua"};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::read_acquire>{scripts::read_acquire,
    "de71b97195964d1236a05caae5e8dfa4d3d2f383"};
template <>
inline constexpr Script digested<scripts::read_hold_count>{scripts::read_hold_count,
    "288da14bc49c9b22ddd3113ef47a14961b569bf4"};
template <>
inline constexpr Script digested<scripts::read_holders>{scripts::read_holders,
    "9554e6449aadde320988fe6854f552b7a186f5e0"};
template <>
inline constexpr Script digested<scripts::read_remaining_lease>{scripts::read_remaining_lease,
    "9faa31e0b0a7b21df40d81632ac955a6444730a2"};
template <>
inline constexpr Script digested<scripts::read_renew>{scripts::read_renew,
    "8359f513225284b832507ee914a51214fabb344b"};
template <>
inline constexpr Script digested<scripts::read_write_inspect>{scripts::read_write_inspect,
    "902938395c1467e53293efaa7547f94cf6edc451"};
template <>
inline constexpr Script digested<scripts::write_acquire>{scripts::write_acquire,
    "2e24a8fe8ebfe416e4ae5449903e09cbf4af355b"};
template <>
inline constexpr Script digested<scripts::write_holders>{scripts::write_holders,
    "0563473cc44e1efd1a4596047bc24c8a7c8d79b2"};
template <>
inline constexpr Script digested<scripts::write_remaining_lease>{scripts::write_remaining_lease,
    "34696c10501aa09209a5710bb57ee9eff2d60549"};
template <>
inline constexpr Script digested<scripts::write_withdraw>{scripts::write_withdraw,
    "cb79f41e60397e9302bee84f3c867bf31ff7edf8"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
