// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/giving_back.hpp"
#include "redlatch/scripts/hold_levels.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/wanted_until.hpp"

#include <string_view>

// The scripts of the reentrant lock. Key: a hash with one field, owner -> hold count, and a TTL. They write what
// Redisson's RLock writes (its keys, field, channel and message), but take the hold count from the holder as an
// absolute number, so that a command that is sent twice takes effect once. An owner has a new number for each first
// hold: a command that arrives late names a hold that is gone, and does nothing.
//
// Order of writes: under maxmemory Redis refuses HINCRBY and SET, unless the script has written before; so what
// must always succeed, giving back and renewing, begins with PEXPIRE or DEL. Arguments of redis.call are strings even
// where they are numbers: Redis prints a Lua number with %.17g, which costs more than the command itself.
namespace redlatch {
inline namespace v0_1 {
namespace scripts {

namespace detail {

inline constexpr std::string_view rlock_acquire{R"lua(
-- KEYS: lock.  ARGV: owner, wanted count (1 = a first hold), lease in ms, until when it is wanted.
-- Answer: nil = held; n >= 0 = blocked, the holder's PTTL; -2 = the hold that should be re-entered is gone.
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
-- Where this owner may be a reader, which is no hold of ours.
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

// The owner gives levels back. What is answered: nil = not held by the owner (any more); 0 = released, nobody listens;
// n = released, n listeners told; -1 = still held.
inline constexpr std::string_view rlock_release{R"lua(
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

inline constexpr std::string_view rlock_hand_over{R"lua(
-- KEYS: lock, channel.  ARGV: owner, next owner, the next owner's lease in ms, publish command, until when it is wanted.
-- Answer: 1 = the next owner holds it; nil = neither of them does.
local lock, channel = KEYS[1], KEYS[2]
local owner, heir, lease, publish, wanted_until = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
-- By an earlier sending.
if redis.call('hexists', lock, heir) == 1 then return 1 end
local count = redis.call('hget', lock, owner)
if not count then return nil end
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
local left = redis.call('pttl', lock)
local refusal = replace(lock, owner, count, heir, lease, left)
if refusal then return refusal end
-- Others who wait count on a longer lease than there is now.
if left > tonumber(lease) then redis.pcall(publish, channel, '0') end
return 1
)lua"};

inline constexpr std::string_view rlock_renew{R"lua(
-- KEYS: up to 100 locks.  ARGV: lease in ms, until when it is wanted, then the owner of each lock.
-- Answer: for each lock 1 = renewed, 0 = the owner does not hold it. Never creates a key, never shortens a TTL.
local lease, wanted_until = tonumber(ARGV[1]), ARGV[2]
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
local renewed = {}
for i, lock in ipairs(KEYS) do
    renewed[i] = redis.pcall('hexists', lock, ARGV[i + 2])
    if type(renewed[i]) == 'table' then
        -- A key that became something else is lost, and no reason to let the others expire.
        if not string.find(renewed[i].err, 'WRONGTYPE', 1, true) then return renewed[i] end
        renewed[i] = 0
    end
    if renewed[i] == 1 and redis.call('pttl', lock) < lease then redis.call('pexpire', lock, lease) end
end
return renewed
)lua"};

}  // namespace detail

inline constexpr std::string_view rlock_acquire =
    joined<detail::wanted_until, detail::no_lease, detail::levels, detail::rlock_acquire>;
inline constexpr std::string_view rlock_release =
    joined<detail::leaving_levels, detail::rlock_release, detail::release_levels>;
inline constexpr std::string_view rlock_give_up =
    joined<detail::wanted_until, detail::leaving_levels, detail::rlock_release, detail::give_up>;
inline constexpr std::string_view rlock_hand_over =
    joined<detail::wanted_until, detail::next_owner, detail::rlock_hand_over>;
inline constexpr std::string_view rlock_renew = joined<detail::wanted_until, detail::rlock_renew>;

inline constexpr std::string_view rlock_remaining_lease{R"lua(
-- KEYS: lock.  Answer: PTTL; -2 = nobody holds it.
if redis.call('hlen', KEYS[1]) == 0 then return -2 end
return redis.call('pttl', KEYS[1])
)lua"};

}  // namespace scripts
}  // namespace v0_1
}  // namespace redlatch
