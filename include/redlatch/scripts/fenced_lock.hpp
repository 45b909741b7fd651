// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/script.hpp"

// The scripts that the fenced lock has instead of the reentrant lock's: each new hold gets a fencing token, greater
// than all before. The counter is at the same time a clock: should it be lost with the server's data, the server's
// time in microseconds has gone on meanwhile. It never gets a TTL and is never deleted, and stays below 2^53, where
// Lua's numbers are exact.
namespace redlatch::scripts {

inline constexpr std::string_view fenced_acquire{R"lua(
-- KEYS: lock, token counter.  ARGV: owner, wanted count (1 = a first hold), lease in ms.
-- Answer: {1, token} = held; {0, n} = blocked, the holder's PTTL; {-2, 0} = the hold that should be re-entered is gone.
local lock, counter = KEYS[1], KEYS[2]
local owner, count, lease = ARGV[1], ARGV[2], ARGV[3]
local function draw_token()
    local now = redis.call('time')
    local token = math.max(tonumber(redis.call('get', counter) or '0') + 1, now[1] * 1000000 + now[2])
    redis.call('set', counter, string.format('%.0f', token))
    return token
end
if redis.call('exists', lock) == 0 then
    if count ~= '1' then return {-2, 0} end
    local token = draw_token()
    redis.call('hincrby', lock, owner, count)
    local limited = redis.pcall('pexpire', lock, lease)
    if type(limited) == 'table' then
        -- Not allowed to this user: better no lock than one for ever.
        redis.call('del', lock)
        return limited
    end
    return {1, token}
end
local current = redis.call('hget', lock, owner)
if not current and count ~= '1' then return {-2, 0} end
-- Where this owner may be a reader, which is no hold of ours.
if redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
end
if not current then return {0, redis.call('pttl', lock)} end
if current ~= count then redis.call('hincrby', lock, owner, count - current) end
if redis.call('pttl', lock) < tonumber(lease) then redis.call('pexpire', lock, lease) end
-- The same command once more; or what this owner held before, and could not give back: a new hold nevertheless.
if count == '1' then return {1, draw_token()} end
-- Reentry keeps the token of its hold, for none was drawn since.
return {1, tonumber(redis.call('get', counter) or '0')}
)lua"};

inline constexpr std::string_view fenced_hand_over{R"lua(
-- KEYS: lock, token counter, latch.  ARGV: owner, next owner, the next owner's lease in ms,
-- latch TTL in ms ('0' = first sending, leaves no latch).
-- Answer: {1, token} = the next owner holds it; nil = neither of them does.
local lock, counter, latch = KEYS[1], KEYS[2], KEYS[3]
local owner, heir, lease, latch_ttl = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
-- What came of an earlier sending: the heir's token or, when neither held it, '0'.
local before = redis.call('get', latch)
if before == '0' then return nil end
if before then return {1, tonumber(before)} end
if redis.call('hexists', lock, owner) == 0 then
    if latch_ttl == '0' then return nil end
    local token = redis.call('hexists', lock, heir) == 1 and redis.call('get', counter) or '0'
    redis.pcall('set', latch, token, 'px', latch_ttl)
    if token == '0' then return nil end
    return {1, tonumber(token)}
end
redis.call('pexpire', lock, lease)
local now = redis.call('time')
local token = math.max(tonumber(redis.call('get', counter) or '0') + 1, now[1] * 1000000 + now[2])
local text = string.format('%.0f', token)
redis.call('set', counter, text)
redis.call('hincrby', lock, heir, '1')
redis.call('hdel', lock, owner)
if latch_ttl ~= '0' then redis.call('set', latch, text, 'px', latch_ttl) end
return {1, token}
)lua"};

}  // namespace redlatch::scripts
