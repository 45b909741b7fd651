// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/exact_count.hpp"
#include "redlatch/scripts/giving_back.hpp"
#include "redlatch/scripts/hold_levels.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/wanted_until.hpp"

// The scripts in which the fenced lock differs from the reentrant lock: each new hold gets a fencing token, greater
// than all before. The counter is a clock as well: if it is lost with the server's data, the server's time in
// microseconds has advanced meanwhile. The counter never gets a TTL, is never deleted, and stays below 2^53, where
// Lua's numbers are exact.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr ScriptText fenced_token{R"lua(
-- Returns the last token, 0 for none yet; nil if the counter does not hold a token.
local function last_token(counter)
    local last = count_in(redis.call('get', counter) or '0')
    if last and last >= 0 then return last end
    return nil
end
-- Returns a greater one; nil if there is none, or the last one was the largest possible.
local function next_token(counter)
    local last = last_token(counter)
    if not last then return nil end
    local now = redis.call('time')
    local token = math.max(last + 1, now[1] * 1000000 + now[2])
    if token < 9007199254740992 then return token end
    return nil
end
-- Returns the change that draws a token. If it is undone, the counter tells the token of the holder again.
local function drawing(counter, token)
    local last = redis.call('get', counter)
    return {'set', counter, string.format('%.0f', token), undo = last and {'set', counter, last} or {'del', counter}}
end
local function no_token()
    return redis.error_reply('WRONGTYPE the key of the fencing tokens (redisson_lock_token) holds none that can grow')
end
)lua"};

inline constexpr ScriptText fenced_acquire{R"lua(
-- KEYS: lock, token counter.  ARGV: owner, wanted count (1 = a first hold), lease in ms, wanted until.
-- Answer: {1, token} = held; {0, n} = blocked, the holder's PTTL; {-2, 0} = the hold to re-enter is gone.
local lock, counter = KEYS[1], KEYS[2]
local owner, count, lease, wanted_until = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
if redis.call('exists', lock) == 0 then
    if count ~= '1' then return {-2, 0} end
    local token = next_token(counter)
    if not token then return no_token() end
    redis.call('hincrby', lock, owner, count)
    local refusal = give_lease(lock, lease)
    if refusal then return refusal end
    local drawn = redis.pcall('set', counter, string.format('%.0f', token))
    if drawn.err then
        redis.call('del', lock)
        return drawn
    end
    return {1, token}
end
local current = redis.call('hget', lock, owner)
if not current and count ~= '1' then return {-2, 0} end
-- In a read-write lock this owner may be a reader, which is not a hold of this lock.
if redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
end
if not current then
    local left = redis.call('pttl', lock)
    if left == -1 then return no_lease() end
    return {0, left}
end
-- A resend or a reentry: the token is that of the hold, because none was drawn since.
local token = last_token(counter)
if not token then return no_token() end
return enter_again(lock, owner, current, count, lease) or {1, token}
)lua"};

inline constexpr ScriptText fenced_hand_over{R"lua(
-- KEYS: lock, token counter, channel.  ARGV: owner, next owner, the next owner's lease in ms, publish command, wanted
-- until.
-- Answer: {1, token} = the next owner holds it; nil = neither of them does.
local lock, counter, channel = KEYS[1], KEYS[2], KEYS[3]
local owner, successor, lease, publish, wanted_until = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
if redis.call('hexists', lock, successor) == 1 then
    -- An earlier copy has done it, and drew the last token.
    local token = last_token(counter)
    if not token then return no_token() end
    return {1, token}
end
local count = redis.call('hget', lock, owner)
if not count then return nil end
local now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
local token = next_token(counter)
if not token then return no_token() end
local left = redis.call('pttl', lock)
local refusal = replace(lock, owner, count, successor, lease, drawing(counter, token))
if refusal then return refusal end
-- Other waiters rely on the earlier, longer lease: wake them.
if left > tonumber(lease) then redis.pcall(publish, channel, '0') end
return {1, token}
)lua"};

}  // namespace parts

inline constexpr ScriptText fenced_acquire{joined<parts::wanted_until, parts::no_lease, parts::levels,
                                                  parts::exact_count, parts::fenced_token, parts::fenced_acquire>};
inline constexpr ScriptText fenced_hand_over{
    joined<parts::wanted_until, parts::replacing, parts::exact_count, parts::fenced_token, parts::fenced_hand_over>};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::fenced_acquire>{scripts::fenced_acquire,
    "9a703d0c2f4b7b7e6ebe2b09cef7d27b58ba0666"};
template <>
inline constexpr Script digested<scripts::fenced_hand_over>{scripts::fenced_hand_over,
    "d5b4ff8b2198b07525039dd4131d1f7ca4ddfd8c"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
