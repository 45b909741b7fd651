// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/exact_count.hpp"
#include "redlatch/scripts/script.hpp"

#include <string_view>

// The scripts that the fenced lock has instead of the reentrant lock's: each new hold gets a fencing token, greater
// than all before. The counter is at the same time a clock: should it be lost with the server's data, the server's
// time in microseconds has gone on meanwhile. It never gets a TTL and is never deleted, and stays below 2^53, where
// Lua's numbers are exact.
namespace redlatch::scripts {

namespace detail {

inline constexpr std::string_view fenced_token{R"lua(
-- The last token, 0 for none yet; nil where the counter holds what is none.
local function last_token(counter)
    local last = count_in(redis.call('get', counter) or '0')
    if last and last >= 0 then return last end
    return nil
end
-- A greater one; nil where there is none, or the last was the last that there can be.
local function next_token(counter)
    local last = last_token(counter)
    if not last then return nil end
    local now = redis.call('time')
    local token = math.max(last + 1, now[1] * 1000000 + now[2])
    if token < 9007199254740992 then return token end
    return nil
end
local function no_token()
    return redis.error_reply('WRONGTYPE the key of the fencing tokens (redisson_lock_token) holds none that can grow')
end
)lua"};

inline constexpr std::string_view fenced_acquire{R"lua(
-- KEYS: lock, token counter.  ARGV: owner, wanted count (1 = a first hold), lease in ms.
-- Answer: {1, token} = held; {0, n} = blocked, the holder's PTTL; {-2, 0} = the hold that should be re-entered is gone.
local lock, counter = KEYS[1], KEYS[2]
local owner, count, lease = ARGV[1], ARGV[2], ARGV[3]
if redis.call('exists', lock) == 0 then
    if count ~= '1' then return {-2, 0} end
    local token = next_token(counter)
    if not token then return no_token() end
    redis.call('set', counter, string.format('%.0f', token))
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
-- The same command once more, or what this owner held before and could not give back, is a new hold nevertheless.
-- Reentry keeps the token of its hold, for none was drawn since.
local anew = count == '1'
local token = last_token(counter)
if anew then token = next_token(counter) end
if not token then return no_token() end
if current ~= count then redis.call('hincrby', lock, owner, count - current) end
if redis.call('pttl', lock) < tonumber(lease) then redis.call('pexpire', lock, lease) end
if anew then redis.call('set', counter, string.format('%.0f', token)) end
return {1, token}
)lua"};

inline constexpr std::string_view fenced_hand_over{R"lua(
-- KEYS: lock, token counter, latch, channel.  ARGV: owner, next owner, the next owner's lease in ms,
-- latch TTL in ms ('0' = first sending, leaves no latch), publish command.
-- Answer: {1, token} = the next owner holds it; nil = neither of them does.
local lock, counter, latch, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local owner, heir, lease, latch_ttl, publish = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
-- What came of an earlier sending: the heir's token or, when neither held it, '0'.
local before = redis.call('get', latch)
if before == '0' then return nil end
if before then return {1, tonumber(before)} end
if redis.call('hexists', lock, owner) == 0 then
    if latch_ttl == '0' then return nil end
    local token
    if redis.call('hexists', lock, heir) == 1 then
        -- By an earlier sending; or by a hold of long before, should the server have lost what it wrote last. The counter may
        -- then be behind the tokens that were given out, so it is a new one in any case.
        token = next_token(counter)
        if not token then return no_token() end
        redis.call('pexpire', lock, lease)
        redis.call('set', counter, string.format('%.0f', token))
    end
    redis.pcall('set', latch, token and string.format('%.0f', token) or '0', 'px', latch_ttl)
    if not token then return nil end
    return {1, token}
end
local token = next_token(counter)
if not token then return no_token() end
local left = redis.call('pttl', lock)
redis.call('pexpire', lock, lease)
local text = string.format('%.0f', token)
redis.call('set', counter, text)
redis.call('hincrby', lock, heir, '1')
redis.call('hdel', lock, owner)
if latch_ttl ~= '0' then redis.call('set', latch, text, 'px', latch_ttl) end
-- Others who wait count on a longer lease than there is now.
if left > tonumber(lease) then redis.pcall(publish, channel, '0') end
return {1, token}
)lua"};

}  // namespace detail

inline constexpr std::string_view fenced_acquire{
    joined<detail::exact_count, detail::fenced_token, detail::fenced_acquire>};
inline constexpr std::string_view fenced_hand_over{
    joined<detail::exact_count, detail::fenced_token, detail::fenced_hand_over>};

}  // namespace redlatch::scripts
