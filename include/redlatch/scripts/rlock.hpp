// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/giving_back.hpp"
#include "redlatch/scripts/hold_levels.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/wanted_until.hpp"

// The scripts of the reentrant lock. Key: a hash with one field, owner -> hold count, and a TTL. They write the same as
// Redisson's RLock (its keys, field, channel and message). But they take the hold count from the holder as an absolute
// number, so a command that is sent twice takes effect once. An owner has a new number for each first hold: a late
// command names a hold that is gone, and does nothing.
//
// Order of writes: under maxmemory Redis refuses HINCRBY and SET, unless the script has written before. Releasing and
// renewing must always succeed, so they begin with HDEL, DEL or PEXPIRE. Arguments of redis.call are strings even for
// numbers: Redis formats a Lua number with %.17g, which costs more than the command itself.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr ScriptText rlock_acquire{R"lua(
-- KEYS: lock.  ARGV: owner, wanted count (1 = a first hold), lease in ms, wanted until.
-- Answer: nil = held; n >= 0 = blocked, the holder's PTTL; -2 = the hold to re-enter is gone.
local lock = KEYS[1]
local owner, count, lease, wanted_until = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
if redis.call('exists', lock) == 0 then
    if count ~= '1' then return -2 end
    redis.call('hincrby', lock, owner, count)
    return give_lease(lock, lease)
end
local current = redis.call('hget', lock, owner)
if not current and count ~= '1' then return -2 end
-- In a read-write lock this owner may be a reader, which is not a hold of this lock.
if redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
end
if not current then
    local left = redis.call('pttl', lock)
    if left == -1 then return no_lease() end
    return left
end
return enter_again(lock, owner, current, count, lease)
)lua"};

// Releases levels of a hold. Answer: nil = not held by the owner (any more); 0 = released, no listeners; n = released,
// n listeners notified; -1 = still held.
inline constexpr ScriptText rlock_release{R"lua(
-- KEYS: lock, channel.
local lock, channel = KEYS[1], KEYS[2]
local function release(owner, count, lease, publish)
    local current = redis.call('hget', lock, owner)
    if not current then return nil end
    if count ~= '0' then return leave_level(lock, owner, current, count, lease) end
    redis.call('del', lock)
    return redis.call(publish, channel, '0')
end
)lua"};

inline constexpr ScriptText rlock_hand_over{R"lua(
-- KEYS: lock, channel.  ARGV: owner, next owner, the next owner's lease in ms, publish command, wanted until.
-- Answer: 1 = the next owner holds it; nil = neither of them does.
local lock, channel = KEYS[1], KEYS[2]
local owner, successor, lease, publish, wanted_until = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
-- An earlier copy has done it.
if redis.call('hexists', lock, successor) == 1 then return 1 end
local count = redis.call('hget', lock, owner)
if not count then return nil end
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
local left = redis.call('pttl', lock)
local refusal = replace(lock, owner, count, successor, lease)
if refusal then return refusal end
-- Other waiters rely on the earlier, longer lease: wake them.
if left > tonumber(lease) then redis.pcall(publish, channel, '0') end
return 1
)lua"};

inline constexpr ScriptText rlock_stay{R"lua(
-- KEYS: lock, channel.  ARGV: owner, the owner that takes its place, its lease in ms, publish command.
-- Answer: the server's clock, negative if the owner does not hold it. Never creates a key, never prolongs a TTL.
local lock, channel = KEYS[1], KEYS[2]
local owner, successor, rest, publish = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local now = time_in_ms()
local count = redis.call('hget', lock, owner)
if not count then return -now end
local refusal, lease, left = stay(lock, owner, count, successor, rest)
if refusal then return refusal end
-- Waiters rely on the earlier, longer lease: wake them.
if lease ~= left then redis.pcall(publish, channel, '0') end
return now
)lua"};

inline constexpr ScriptText rlock_renew{R"lua(
-- KEYS: up to 1,000 locks.  ARGV: lease in ms, wanted until, then the owner of each lock.
-- Answer: for each lock 1 = renewed, 0 = the owner does not hold it. Never creates a key, never shortens a TTL.
local lease, wanted_until = tonumber(ARGV[1]), ARGV[2]
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
local renewed = {}
for i, lock in ipairs(KEYS) do
    renewed[i] = redis.pcall('hexists', lock, ARGV[i + 2])
    if type(renewed[i]) == 'table' then
        -- A key of another type is lost, but the other locks must not expire for that.
        if not string.find(renewed[i].err, 'WRONGTYPE', 1, true) then return renewed[i] end
        renewed[i] = 0
    end
    if renewed[i] == 1 and redis.call('pttl', lock) < lease then redis.call('pexpire', lock, lease) end
end
return renewed
)lua"};

}  // namespace parts

inline constexpr ScriptText rlock_acquire =
    joined<parts::wanted_until, parts::no_lease, parts::levels, parts::rlock_acquire>;
inline constexpr ScriptText rlock_release = joined<parts::leaving_levels, parts::rlock_release, parts::release_levels>;
inline constexpr ScriptText rlock_give_up =
    joined<parts::wanted_until, parts::leaving_levels, parts::rlock_release, parts::give_up>;
inline constexpr ScriptText rlock_hand_over = joined<parts::wanted_until, parts::replacing, parts::rlock_hand_over>;
inline constexpr ScriptText rlock_stay =
    joined<parts::wanted_until, parts::replacing, parts::staying, parts::rlock_stay>;
inline constexpr ScriptText rlock_renew = joined<parts::wanted_until, parts::rlock_renew>;

inline constexpr ScriptText rlock_remaining_lease{R"lua(
-- KEYS: lock.  Answer: PTTL; -2 = not held.
if redis.call('hlen', KEYS[1]) == 0 then return -2 end
return redis.call('pttl', KEYS[1])
)lua"};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::rlock_acquire>{scripts::rlock_acquire,
    "9177ae7e76a78db8bb54f124515935c85c1eef43"};
template <>
inline constexpr Script digested<scripts::rlock_give_up>{scripts::rlock_give_up,
    "9d02e80a65ec9e4511a2478e21574a1a6567ed62"};
template <>
inline constexpr Script digested<scripts::rlock_hand_over>{scripts::rlock_hand_over,
    "72483e58b6664f5ec9e4d3a03fde67844594b50c"};
template <>
inline constexpr Script digested<scripts::rlock_release>{scripts::rlock_release,
    "e29578280abdbd4d114a77eb530e5a34e2df0009"};
template <>
inline constexpr Script digested<scripts::rlock_remaining_lease>{scripts::rlock_remaining_lease,
    "f70ef3a0ebbc9da0d42f8b442e892b4062745468"};
template <>
inline constexpr Script digested<scripts::rlock_renew>{scripts::rlock_renew,
    "06c33d93d52106b97cb3efee8496f76edea7b3b4"};
template <>
inline constexpr Script digested<scripts::rlock_stay>{scripts::rlock_stay,
    "036a802a0e48c7cec60fa900d6cd2546766390e3"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
