// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/request_marks.hpp"
#include "redlatch/scripts/script.hpp"

// The scripts of the count-down latch. Key: a string, the remaining count; absent means zero. Message: "0" if the count
// reached zero or the latch was deleted, "1" if a count was set. The channel is no KEY: for a name with a {tag} it is
// in another slot than the latch.
//
// A second key, the round, is ours alone. It changes whenever a count ends, and when one is set: the one before may have
// expired. It exists long enough for waiters that look only after the next count was set: they see that theirs has ended.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr ScriptText next_round{R"lua(
-- Returns the change by which those who wait see that their count has ended. The round is a text that is new each time.
local function next_round(round, text, ttl)
    local old, left = redis.call('get', round), math.max(redis.call('pttl', round), 1)
    return {'set', round, text, 'px', whole(ttl), undo = {'set', round, old or '', 'px', whole(left)}}
end
)lua"};

inline constexpr ScriptText count_down_latch_set{R"lua(
-- KEYS: latch, marks, round.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, count (at least 1),
-- channel, publish command.
-- Answer: 1 = set; 0 = there is a count already.
local latch, marks, round = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local count, channel, publish = ARGV[6], ARGV[7], ARGV[8]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local ends = wanted_until + margin
if redis.call('get', latch) then
    return again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)}) or 0
end
-- The count before may have ended without a message: its key has expired, or the server has lost it.
return all_or_none({mark(marks, lane, request, 1), keep(marks, now, ends),
                    next_round(round, marks .. ' ' .. request, ends - now), {publish, channel, '1'},
                    {'set', latch, count}}) or 1
)lua"};

inline constexpr ScriptText count_down_latch_lower{R"lua(
-- KEYS: latch, marks, round.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, by how much
-- ('all' = delete), channel, publish command.
-- Answer: the count before, 0 = there was none; and the round, a text, if the count goes on, nil for none. If the
-- request was carried out before, the count alone. At zero, never below, the key is deleted and waiters are notified.
local latch, marks, round = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local by, channel, publish = ARGV[6], ARGV[7], ARGV[8]
local before = outcome_of(marks, lane, request)
if before then return {before} end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local ends = wanted_until + margin
local text = redis.call('get', latch)
local count = count_in(text or '0')
if not count then return redis.error_reply('WRONGTYPE the key holds no count') end
if not text then
    local refusal = again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)})
    return refusal or {0, false}
end
-- First a write that Redis allows when its memory is full.
local changes = {keep(marks, now, ends), mark(marks, lane, request, text), keep(marks, now, ends)}
if by ~= 'all' and tonumber(by) < count then
    local old = redis.call('get', round)
    table.insert(changes, {'decrby', latch, by})
    return all_or_none(changes) or {count, old}
end
table.insert(changes, {publish, channel, '0'})
table.insert(changes, next_round(round, marks .. ' ' .. request, ends - now))
table.insert(changes, {'del', latch})
return all_or_none(changes) or {count, false}
)lua"};

}  // namespace parts

inline constexpr ScriptText count_down_latch_set{
    with_request_marks<joined<parts::next_round, parts::count_down_latch_set>>};

inline constexpr ScriptText count_down_latch_lower{
    with_request_marks<joined<parts::next_round, parts::count_down_latch_lower>>};

inline constexpr ScriptText count_down_latch_look{R"lua(
-- KEYS: latch, round.  Answer: the count as text, nil for none; and the round, a text, nil for none.
return {redis.call('get', KEYS[1]), redis.call('get', KEYS[2])}
)lua"};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::count_down_latch_look>{scripts::count_down_latch_look,
    "137908b775803334b04e89c958399043944915b9"};
template <>
inline constexpr Script digested<scripts::count_down_latch_lower>{scripts::count_down_latch_lower,
    "fe35e15ad8fd2427d14e913d34439314446dec95"};
template <>
inline constexpr Script digested<scripts::count_down_latch_set>{scripts::count_down_latch_set,
    "3615fa86a6b7a5c883a1a7773fdebfb7ccfecae1"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
