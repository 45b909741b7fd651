// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/request_marks.hpp"
#include "redlatch/scripts/script.hpp"

// The scripts of the count-down latch. Key: a string, the remaining count; absent means zero. Message: "0" when the
// count came to zero or the latch was deleted, "1" when a count was set. The channel is no KEY: for a name with a {tag}
// it lies in another slot than the latch.
//
// A second key, the round, is ours: it changes whenever a count ends, and stays long enough for waiters that look only
// after the next count was set to see that theirs is over.
namespace redlatch::scripts {

namespace detail {

inline constexpr std::string_view count_down_latch_set{R"lua(
-- KEYS: latch, marks.  ARGV: lane, request, TTL of the marks in ms, count (at least 1), channel, publish command,
-- '1' for a command that is sent again.
-- Answer: 1 = set; 0 = there is a count already.
local latch, marks = KEYS[1], KEYS[2]
local lane, request, ttl, count, channel, publish, again = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local before = outcome_of(marks, lane, request)
if before then return before end
if redis.call('get', latch) then
    if again == '1' then remember(marks, lane, request, 0, ttl) end
    return 0
end
remember(marks, lane, request, 1, ttl)
redis.call('set', latch, count)
redis.call(publish, channel, '1')
return 1
)lua"};

inline constexpr std::string_view count_down_latch_lower{R"lua(
-- KEYS: latch, marks, round.  ARGV: lane, request, TTL of marks and round in ms, by how much ('all' = delete), channel,
-- publish command, '1' for a command that is sent again.
-- Answer: the count before, 0 = there was none; and the round, a text, nil for none. For a request that was carried out
-- already, the count alone. Never below zero: the key is deleted, which waiters are told.
local latch, marks, round = KEYS[1], KEYS[2], KEYS[3]
local lane, request, ttl, by, channel, publish, again = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local before = outcome_of(marks, lane, request)
if before then return {before} end
local text = redis.call('get', latch)
local count = count_in(text or '0')
if not count then return redis.error_reply('WRONGTYPE the key holds no count') end
if not text then
    if again == '1' then remember(marks, lane, request, 0, ttl) end
    return {0, false}
end
-- First, because then Redis lets the rest through when its memory is full.
redis.call('pexpire', marks, ttl)
if by ~= 'all' and tonumber(by) < count then
    redis.call('decrby', latch, by)
    remember(marks, lane, request, text, ttl)
    return {count, redis.call('get', round)}
end
redis.call('del', latch)
remember(marks, lane, request, text, ttl)
redis.call('set', round, marks .. ' ' .. request, 'px', ttl)
redis.call(publish, channel, '0')
return {count, false}
)lua"};

}  // namespace detail

inline constexpr std::string_view count_down_latch_set{with_request_marks<detail::count_down_latch_set>};

inline constexpr std::string_view count_down_latch_lower{with_request_marks<detail::count_down_latch_lower>};

inline constexpr std::string_view count_down_latch_look{R"lua(
-- KEYS: latch, round.  Answer: the count as text, nil for none; and the round, a text, nil for none.
return {redis.call('get', KEYS[1]), redis.call('get', KEYS[2])}
)lua"};

}  // namespace redlatch::scripts
