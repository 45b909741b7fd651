// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/all_or_none.hpp"
#include "redlatch/scripts/lock_queue.hpp"
#include "redlatch/scripts/read_write_lock.hpp"
#include "redlatch/scripts/read_write_queue.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/wanted_until.hpp"

// The scripts that end a hold of a read-write lock before its minimum hold is over: see read_write_lock.hpp for the keys.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr ScriptText read_stay{R"lua(
-- KEYS: lock, channel (, mark of a waiting writer, queue, places).
-- ARGV: owner, the owner that takes its place, its lease in ms, publish command, tag.
-- Answer: the server's clock, negative if the owner does not hold it. Never creates a hash, never prolongs a TTL.
local owner, successor, rest = ARGV[1], ARGV[2], tonumber(ARGV[3])
publish, tag, now = ARGV[4], ARGV[5], time_in_ms()
local timeout = tag .. ':' .. owner .. ':rwlock_timeout:'
local mode = redis.call('hget', lock, 'mode')
local current = mode and redis.call('hget', lock, owner)
local left = -2
for i = 1, tonumber(current or 0) do left = math.max(left, redis.call('pttl', timeout .. i)) end
if left == -2 then return -now end
local lease = left < 0 and rest or math.max(1, math.min(left, rest))
local before = redis.call('pttl', lock)
-- The writer's lease, if it is a reader, too; or the longest one of the readers.
local ttl = before
if mode == 'read' then ttl = math.max(lease, read_lease(lock, tag, owner)) end
local successors = tag .. ':' .. successor .. ':rwlock_timeout:1'
local changes = {{'hdel', lock, '', tidy = earlier_lease(lock, before)},
                 {'set', successors, '1', 'px', lease, undo = {'del', successors}},
                 {'hset', lock, successor, '1', undo = {'hdel', lock, successor}},
                 {'hdel', lock, owner, undo = {'hset', lock, 'mode', mode, owner, current}}}
if ttl >= 0 then table.insert(changes, {'pexpire', lock, math.max(1, ttl)}) end
-- As the last change, because nothing undoes it.
for i = 1, tonumber(current) do table.insert(changes, {'del', timeout .. i}) end
local refusal = all_or_none(changes)
if refusal then return refusal end
-- Waiting writers rely on the earlier, longer lease: wake them.
if ttl < before then
    redis.pcall(publish, channel, '0')
    if queue then tell_waiters(now + math.max(ttl, 0)) end
end
return now
)lua"};

inline constexpr ScriptText write_stay{R"lua(
-- KEYS: as of read_stay.
-- ARGV: the field of the owner, the field that takes its place, its lease in ms, publish command, tag.
-- Answer: the server's clock, negative if the owner does not hold it. Never creates a key, never prolongs a TTL.
local writer, successor, rest = ARGV[1], ARGV[2], tonumber(ARGV[3])
publish, tag, now = ARGV[4], ARGV[5], time_in_ms()
local current = redis.call('hget', lock, writer)
if not current then return -now end
local left = redis.call('pttl', lock)
-- The writer may be a reader, too.
local longest = math.max(rest, read_lease(lock, tag))
local lease = left < 0 and longest or math.max(1, math.min(left, longest))
local refusal = all_or_none({{'hdel', lock, ''},
                             {'hset', lock, successor, '1', undo = {'hdel', lock, successor}},
                             {'hdel', lock, writer, undo = {'hset', lock, writer, current}},
                             {'pexpire', lock, lease}})
if refusal then return refusal end
-- Waiters rely on the earlier, longer lease: wake them.
if lease ~= left then
    redis.pcall(publish, channel, '1')
    if queue then tell_waiters(now + lease) end
end
return now
)lua"};

inline constexpr ScriptText read_write_telling = joined<queue_words, read_write_entry, lock_queue, read_write_tell>;

}  // namespace parts

inline constexpr ScriptText read_stay =
    joined<parts::wanted_until, parts::all_or_none, parts::read_level, parts::read_write_release_keys,
           parts::read_lease, parts::read_write_telling, parts::read_stay>;
inline constexpr ScriptText write_stay = joined<parts::wanted_until, parts::all_or_none, parts::read_write_release_keys,
                                                parts::read_lease, parts::read_write_telling, parts::write_stay>;

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::read_stay>{scripts::read_stay,
    "3d173778e844ae57264be2571e2563728efe5d8d"};
template <>
inline constexpr Script digested<scripts::write_stay>{scripts::write_stay,
    "71527f2f2c9bacfe992d9babe7ddffa0b69e0f45"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
