// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/permit_expirable_semaphore.hpp"
#include "redlatch/scripts/request_marks.hpp"
#include "redlatch/scripts/script.hpp"

// The scripts of the condition variable. Keys: a sorted set of the waiters: id -> place, from 1 on in the order of their
// registration, negative once the waiter is notified; and a sorted set of their leases: id -> end, in ms since 1970 by the
// server's clock. permit_renew prolongs the leases. A waiter that is notified stays until it says that it goes on. If its
// lease ends before, or it gives up, its notification goes to the next waiter; any script that finds that out passes it on.
// notify_all removes the waiters. Message: how many were notified.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

// Precedes the scripts that use it.
inline constexpr ScriptText condition_settle{R"lua(
local last_place = '9007199254740991'
local function place_of(waiters, id) return tonumber(redis.call('zscore', waiters, id) or '0') end
-- Adds to `changes`: `notify` waiters are notified, and one more for each notified waiter whose lease has ended. The latter
-- are removed, and so is the waiter that leaves, if there is one. Returns how many are notified. Before what is removed
-- come commands of the kinds that might be refused; Redis allows the first one when its memory is full.
local function settle(changes, waiters, leases, channel, publish, now, notify, leaver)
    local gone, is_gone = redis.call('zrangebyscore', leases, '0', whole(now)), {}
    for _, id in ipairs(gone) do
        is_gone[id] = true
        if id ~= leaver and place_of(waiters, id) < 0 then notify = notify + 1 end
    end
    if leaver and not is_gone[leaver] then
        is_gone[leaver] = true
        table.insert(gone, leaver)
    end
    local told = 0
    table.insert(changes, {'zrem', waiters, ''})
    if notify > 0 then
        local next = redis.call('zrangebyscore', waiters, '1', last_place, 'withscores', 'limit', '0',
                                whole(notify + #gone))
        for i = 1, #next, 2 do
            if told < notify and not is_gone[next[i]] then
                told = told + 1
                table.insert(changes, {'zadd', waiters, '-' .. next[i + 1], next[i],
                                       undo = {'zadd', waiters, next[i + 1], next[i]}})
            end
        end
    end
    if told > 0 then table.insert(changes, {publish, channel, whole(told)}) end
    for _, id in ipairs(gone) do
        table.insert(changes, {'zrem', leases, id})
        table.insert(changes, {'zrem', waiters, id})
    end
    return told, #gone
end
-- Puts the mark of this request before the changes. Redis allows that when its memory is full.
local function marked(changes, marks, lane, request, outcome, now, ends)
    table.insert(changes, 1, keep(marks, now, ends))
    table.insert(changes, 1, mark(marks, lane, request, outcome))
    table.insert(changes, 1, keep(marks, now, ends))
    return changes
end
)lua"};

template <const ScriptText& Body>
inline constexpr ScriptText of_condition =
    joined<all_or_none, request_marks, wanted_until, exact_count, permit_clock, condition_settle, Body>;

inline constexpr ScriptText condition_register{R"lua(
-- KEYS: waiters, marks, leases.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, id of the waiter, its
-- lease in ms.
-- Answer: 1.
local waiters, marks, leases = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local id, lease = ARGV[6], ARGV[7]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local last = redis.call('zrange', waiters, '-1', '-1', 'withscores')[2]
local place = math.max(tonumber(last or '0'), 0) + 1
-- First a write that Redis refuses when its memory is full.
return all_or_none({mark(marks, lane, request, 1), keep(marks, now, wanted_until + margin),
                    {'zadd', waiters, whole(place), id, undo = {'zrem', waiters, id}},
                    {'zadd', leases, ends_at(now, lease), id}}) or 1
)lua"};

inline constexpr ScriptText condition_call_off{R"lua(
-- KEYS: waiters, marks, leases, channel.  ARGV: lane, request of a registration whose outcome its sender does not know,
-- wanted until of that, margin in ms, '1' for a resend, publish command, id of the waiter.
-- Answer: 1. The waiter is removed, its notification is passed on, and copies in flight will not register it.
local waiters, marks, leases, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lane, request, wanted_until, margin = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local publish, id = ARGV[6], ARGV[7]
local now = time_in_ms()
local changes = {}
settle(changes, waiters, leases, channel, publish, now, place_of(waiters, id) < 0 and 1 or 0, id)
if not outcome_of(marks, lane, request) and now <= wanted_until then
    marked(changes, marks, lane, request, 0, now, wanted_until + margin)
end
return all_or_none(changes) or 1
)lua"};

inline constexpr ScriptText condition_leave{R"lua(
-- KEYS: waiters, marks, leases, channel.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, publish
-- command, id of the waiter, '1' if it gives up, so that its notification is passed on.
-- Answer: 0 = it was not notified; 1 = it was, and nobody else waits; 2 = it was, and the notification is passed on; 3 = all
-- were notified, or its lease had ended.
local waiters, marks, leases, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lane, request, wanted_until, margin = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local publish, id, gives_up = ARGV[6], ARGV[7], ARGV[8] == '1'
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local place = place_of(waiters, id)
local passes_on = place < 0 and gives_up
local changes = {}
local told = settle(changes, waiters, leases, channel, publish, now, passes_on and 1 or 0, id)
local outcome = 0
if place == 0 then outcome = 3 elseif place < 0 then outcome = passes_on and told > 0 and 2 or 1 end
return all_or_none(marked(changes, marks, lane, request, outcome, now, wanted_until + margin)) or outcome
)lua"};

inline constexpr ScriptText condition_notify{R"lua(
-- KEYS: waiters, marks, leases, channel.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, publish
-- command, '1' = notify one waiter, 'all' = all of them.
-- Answer: how many are notified.
local waiters, marks, leases, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local publish, how_many = ARGV[6], ARGV[7]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local ends = wanted_until + margin
local changes = {}
local told, gone
if how_many == 'all' then
    -- What was notified before, and has not gone on yet, needs no successor: nobody waits any longer.
    local all = redis.call('zrangebyscore', waiters, '1', last_place)
    told, gone = #all, 0
    table.insert(changes, {'zrem', waiters, ''})
    table.insert(changes, {'zremrangebyscore', waiters, '1', '0'})
    if told > 0 then table.insert(changes, {publish, channel, whole(told)}) end
    for _, id in ipairs(all) do table.insert(changes, {'zrem', leases, id}) end
    table.insert(changes, {'zremrangebyscore', waiters, '1', last_place})
else
    told, gone = settle(changes, waiters, leases, channel, publish, now, 1, nil)
    -- Only one of them is notified by this call.
    told = math.min(told, 1)
end
if told == 0 and gone == 0 and again ~= '1' then return 0 end
return all_or_none(marked(changes, marks, lane, request, told, now, ends)) or told
)lua"};

inline constexpr ScriptText condition_look{R"lua(
-- KEYS: waiters, leases, channel.  ARGV: publish command, ids of waiters.
-- Answer: after how many ms the next lease ends, -1 = there is none; then for each id 2 = notified, 1 = waiting, 0 = all
-- were notified, or its lease has ended. Passes on the notifications of waiters whose lease has ended.
local waiters, leases, channel = KEYS[1], KEYS[2], KEYS[3]
local now = time_in_ms()
local changes = {}
local _, gone = settle(changes, waiters, leases, channel, ARGV[1], now, 0, nil)
if gone > 0 then
    local refusal = all_or_none(changes)
    if refusal then return refusal end
end
local first = redis.call('zrange', leases, '0', '0', 'withscores')[2]
local answer = {first and math.max(tonumber(first) - now, 1) or -1}
for i = 2, #ARGV do
    local place = place_of(waiters, ARGV[i])
    answer[i] = place == 0 and 0 or place < 0 and 2 or 1
end
return answer
)lua"};

}  // namespace parts

inline constexpr ScriptText condition_register = parts::of_condition<parts::condition_register>;
inline constexpr ScriptText condition_call_off = parts::of_condition<parts::condition_call_off>;
inline constexpr ScriptText condition_leave = parts::of_condition<parts::condition_leave>;
inline constexpr ScriptText condition_notify = parts::of_condition<parts::condition_notify>;
inline constexpr ScriptText condition_look = parts::of_condition<parts::condition_look>;

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::condition_call_off>{scripts::condition_call_off,
    "241afedbc6db2b057510163638fef443d2831171"};
template <>
inline constexpr Script digested<scripts::condition_leave>{scripts::condition_leave,
    "986488503f57445274386e3e46492632384c01e1"};
template <>
inline constexpr Script digested<scripts::condition_look>{scripts::condition_look,
    "0a5d45d21168e9a28b4a3d3365e43c05c083d648"};
template <>
inline constexpr Script digested<scripts::condition_notify>{scripts::condition_notify,
    "0f4393fd32c4e4be305f26efe4ac4c66063c3357"};
template <>
inline constexpr Script digested<scripts::condition_register>{scripts::condition_register,
    "63b0ec594b0123bde32d8e3ebe112145a7e7a838"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
