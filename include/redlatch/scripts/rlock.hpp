// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/script.hpp"

// The scripts of the reentrant lock. Key: a hash with one field, owner -> hold count, and a TTL. They write what
// Redisson's RLock writes (its keys, field, channel and message), but take the hold count from the holder as an
// absolute number, so that a command that is sent twice takes effect once.
//
// Order of writes: under maxmemory Redis refuses HINCRBY and SET, unless the script has written before; so what
// must always succeed, giving back and renewing, begins with PEXPIRE or DEL. Arguments of redis.call are strings even
// where they are numbers: Redis prints a Lua number with %.17g, which costs more than the command itself.
namespace redlatch::scripts {

// A release that is sent again leaves a mark, the unlock latch: should its first sending be delayed on the way and
// arrive after the same thread took the lock anew, it finds the mark and does nothing.

inline constexpr std::string_view rlock_acquire{R"lua(
-- KEYS: lock.  ARGV: owner, wanted count (1 = a first hold), lease in ms.
-- Answer: nil = held; n >= -1 = blocked, the holder's PTTL; -2 = the hold that should be re-entered is gone.
local lock = KEYS[1]
local owner, count, lease = ARGV[1], ARGV[2], ARGV[3]
if redis.call('exists', lock) == 0 then
    if count ~= '1' then return -2 end
    redis.call('hincrby', lock, owner, count)
    local limited = redis.pcall('pexpire', lock, lease)
    if type(limited) == 'table' then
        -- Not allowed to this user: better no lock than one for ever.
        redis.call('del', lock)
        return limited
    end
    return nil
end
local current = redis.call('hget', lock, owner)
if not current and count ~= '1' then return -2 end
-- Where this owner may be a reader, which is no hold of ours.
if redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
end
if not current then return redis.call('pttl', lock) end
if current ~= count then redis.call('hincrby', lock, owner, count - current) end
local left = redis.call('pttl', lock)
if left < tonumber(lease) then redis.call('pexpire', lock, lease) end
return nil
)lua"};

inline constexpr std::string_view rlock_release{R"lua(
-- KEYS: lock, channel, latch.  ARGV: owner, count that remains, lease in ms for a remaining hold,
-- latch TTL in ms ('0' = first sending, leaves no latch), publish command.
-- Answer: nil = not held by the owner (any more); 0 = released, nobody listens; n = released, n listeners told;
-- -1 = still held.
local lock, channel, latch = KEYS[1], KEYS[2], KEYS[3]
local owner, count, lease, latch_ttl, publish = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if redis.call('exists', latch) == 1 then return 0 end
local current = redis.call('hget', lock, owner)
if not current then
    if latch_ttl ~= '0' then redis.pcall('set', latch, 1, 'px', latch_ttl) end
    return nil
end
if count ~= '0' then
    local left = redis.call('pttl', lock)
    redis.call('pexpire', lock, math.max(left, lease))
    if current ~= count then redis.call('hincrby', lock, owner, count - current) end
    return -1
end
redis.call('del', lock)
if latch_ttl ~= '0' then redis.call('set', latch, 1, 'px', latch_ttl) end
return redis.call(publish, channel, '0')
)lua"};

inline constexpr std::string_view rlock_hand_over{R"lua(
-- KEYS: lock, latch, channel.  ARGV: owner, next owner, the next owner's lease in ms,
-- latch TTL in ms ('0' = first sending, leaves no latch), publish command.
-- Answer: 1 = the next owner holds it; nil = neither of them does.
local lock, latch, channel = KEYS[1], KEYS[2], KEYS[3]
local owner, heir, lease, latch_ttl, publish = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
-- What came of an earlier sending: '1' or, when neither held it, '0'.
local before = redis.call('get', latch)
if before == '0' then return nil end
if before then return 1 end
if redis.call('hexists', lock, owner) == 0 then
    if latch_ttl == '0' then return nil end
    local handed = redis.call('hexists', lock, heir) == 1
    redis.pcall('set', latch, handed and '1' or '0', 'px', latch_ttl)
    if handed then return 1 end
    return nil
end
local left = redis.call('pttl', lock)
redis.call('pexpire', lock, lease)
redis.call('hincrby', lock, heir, '1')
redis.call('hdel', lock, owner)
if latch_ttl ~= '0' then redis.call('set', latch, '1', 'px', latch_ttl) end
-- Others who wait count on a longer lease than there is now.
if left > tonumber(lease) then redis.pcall(publish, channel, '0') end
return 1
)lua"};

inline constexpr std::string_view rlock_force_release{R"lua(
-- KEYS: lock, channel.  ARGV: publish command.  Answer: 1 = there was a hold, and it is over; 0 = there was none.
local lock, channel = KEYS[1], KEYS[2]
local publish = ARGV[1]
if redis.call('hlen', lock) == 0 then return 0 end
if redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
end
redis.call('del', lock)
redis.call(publish, channel, '0')
return 1
)lua"};

inline constexpr std::string_view rlock_remaining_lease{R"lua(
-- KEYS: lock.  Answer: PTTL; -2 = nobody holds it.
if redis.call('hlen', KEYS[1]) == 0 then return -2 end
return redis.call('pttl', KEYS[1])
)lua"};

inline constexpr std::string_view rlock_renew{R"lua(
-- KEYS: up to 100 locks.  ARGV: lease in ms, then the owner of each lock.
-- Answer: for each lock 1 = renewed, 0 = the owner does not hold it. Never creates a key, never shortens a TTL.
local lease = tonumber(ARGV[1])
local renewed = {}
for i, lock in ipairs(KEYS) do
    renewed[i] = redis.pcall('hexists', lock, ARGV[i + 1])
    if type(renewed[i]) == 'table' then
        -- A key that became something else is lost, and no reason to let the others expire.
        if not string.find(renewed[i].err, 'WRONGTYPE', 1, true) then return renewed[i] end
        renewed[i] = 0
    end
    if renewed[i] == 1 and redis.call('pttl', lock) < lease then redis.call('pexpire', lock, lease) end
end
return renewed
)lua"};

}  // namespace redlatch::scripts
