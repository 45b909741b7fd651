// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/request_marks.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/semaphore_queue.hpp"

// The scripts of the semaphore. Key: a string, the number of available permits; absent means none. Message: the new
// number of permits, if there are any and more than before; with a 0 before it if processes queue (semaphore_queue.hpp). A
// TTL on the key is kept.
//
// A script publishes to all before it changes the number. Clients cannot tell, because a script is atomic. So nothing has
// changed yet if the user has no right to publish.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr ScriptText semaphore_acquire{R"lua(
-- KEYS: semaphore, marks (, channel, queue, places).  ARGV: lane, request, wanted until, margin in ms, '1' for a resend,
-- client id, number of its place in the queue ('0' = takes none), publish command, then the permits that each caller
-- wants, in the order of service; as a negative number, if callers behind may be served when there are too few for this
-- one.
-- Answer: the number of permits taken: by the callers in their order, as far as there are enough. If none were taken,
-- the number of available permits, negated; an array with a 0 if there is no such semaphore. With a place in the queue:
-- {the number of permits that are left, 1 or 0: whether there is such a semaphore, the number of permits taken}.
local semaphore, marks = KEYS[1], KEYS[2]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local before = outcome_of(marks, lane, request)
if before then return before end
now = time_in_ms()
if now > wanted_until then return late(now) end
local available = count_in(redis.call('get', semaphore) or '0')
if not available then return redis.error_reply('WRONGTYPE the key holds no number of permits') end
local id, number = ARGV[6], ARGV[7]
publish = ARGV[8]
-- `least`: with how many more permits it would have taken some; nil if nobody stays unserved.
local taken, least = 0, nil
for i = 9, #ARGV do
    local wanted = math.abs(tonumber(ARGV[i]))
    if taken + wanted <= available then
        taken = taken + wanted
    else
        least = math.min(least or wanted, wanted)
        if tonumber(ARGV[i]) > 0 then break end
    end
end
local ends = wanted_until + margin
if taken > 0 then
    local refusal = all_or_none({mark(marks, lane, request, whole(taken)), keep(marks, now, ends),
                                 {'decrby', semaphore, whole(taken)}})
    if refusal then return refusal end
    if number == '0' then return taken end
    if not least and redis.pcall('hexists', places, id) ~= 1 then return taken end
else
    -- An earlier copy may still arrive.
    local refusal = again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)})
    if refusal then return refusal end
end
local is_there = taken > 0 or redis.call('exists', semaphore) == 1
local function refused() return is_there and -math.max(available, 0) or {0} end
if number == '0' and taken == 0 then return refused() end
)lua"};

// Follows semaphore_queue_up.
inline constexpr ScriptText semaphore_answer{R"lua(
local left, is_known = available - taken, taken == 0 and not was_told(id)
local is_queued
if least then
    is_queued = queue_up(id, number, least, taken > 0, left)
else
    pcall(drop, id)
end
-- It may have been told of more permits than it took.
tell_queue(left, is_known)
if is_queued then return {math.max(available - taken, 0), is_there and 1 or 0, taken} end
return taken > 0 and taken or refused()
)lua"};

inline constexpr ScriptText semaphore_give_back{R"lua(
-- KEYS: semaphore, marks, channel (, queue, places).  ARGV: lane, request of an acquire whose outcome its sender does not
-- know, wanted until of that acquire, margin in ms, '1' for a resend, publish command.
-- Answer: the number of permits it had taken; they are given back, once. Copies of it in flight take none.
local semaphore, marks = KEYS[1], KEYS[2]
local lane, request, wanted_until, margin = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local taken, own = outcome_of(marks, lane, request)
publish, now = ARGV[6], time_in_ms()
local ends = wanted_until + margin
if not own then
    if taken then return 0 end
    if now > wanted_until then return late(now) end
    return all_or_none({keep(marks, now, ends), mark(marks, lane, request, 0), keep(marks, now, ends)}) or 0
end
if taken <= 0 then return 0 end
local available = redis.call('get', semaphore)
local changes = {keep(marks, now, ends), mark(marks, lane, request, 0, taken), keep(marks, now, ends)}
if available then
    if not count_in(available) then return redis.error_reply('WRONGTYPE the key holds no number of permits') end
    if available + taken > 0 then add_news(changes, available + taken) end
    table.insert(changes, {'incrby', semaphore, whole(taken)})
end
local refusal, answer = all_or_none(changes), taken
if refusal or not told then return refusal or answer end
)lua"};

inline constexpr ScriptText semaphore_add{R"lua(
-- KEYS: semaphore, marks, channel (, queue, places).  ARGV: lane, request, wanted until, margin in ms, '1' for a resend,
-- permits (may be negative), publish command, '1' = only if the semaphore exists.
-- Answer: 1 = added; 0 = there is no such semaphore.
local semaphore, marks = KEYS[1], KEYS[2]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local permits, only_existing = tonumber(ARGV[6]), ARGV[8]
local before = outcome_of(marks, lane, request)
if before then return before end
publish, now = ARGV[7], time_in_ms()
if now > wanted_until then return late(now) end
local ends = wanted_until + margin
local available = redis.call('get', semaphore)
if only_existing == '1' and not available then
    return again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)}) or 0
end
if not count_in(available or '0') then return redis.error_reply('WRONGTYPE the key holds no number of permits') end
local total = (available or 0) + permits
if permits > 0 and total > most or permits < 0 and total < -most then return too_many() end
-- First a write that Redis allows when its memory is full.
local changes = {keep(marks, now, ends), mark(marks, lane, request, 1), keep(marks, now, ends)}
if total > 0 and permits > 0 then add_news(changes, total) end
table.insert(changes, {'incrby', semaphore, whole(permits)})
local refusal, answer = all_or_none(changes), 1
if refusal or not told then return refusal or answer end
)lua"};

inline constexpr ScriptText semaphore_set{R"lua(
-- KEYS: semaphore, marks, channel (, queue, places).  ARGV: lane, request, wanted until, margin in ms, '1' for a resend,
-- permits, publish command, and, if the semaphore is to expire, after how many ms.
-- Answer: 1 = set; 0 = the semaphore exists already.
local semaphore, marks = KEYS[1], KEYS[2]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local permits, ttl = ARGV[6], ARGV[8]
local before = outcome_of(marks, lane, request)
if before then return before end
publish, now = ARGV[7], time_in_ms()
if now > wanted_until then return late(now) end
local ends = wanted_until + margin
if redis.call('get', semaphore) then
    return again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)}) or 0
end
local changes = {mark(marks, lane, request, 1), keep(marks, now, ends)}
if permits ~= '0' then add_news(changes, tonumber(permits)) end
table.insert(changes, {'set', semaphore, permits, ttl and 'px', ttl})
local refusal, answer = all_or_none(changes), 1
if refusal or not told then return refusal or answer end
)lua"};

inline constexpr ScriptText semaphore_drain{R"lua(
-- KEYS: semaphore, marks.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend.
-- Answer: the number of permits that were available; now there are none. Negative if some were owed.
local semaphore, marks = KEYS[1], KEYS[2]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local ends = wanted_until + margin
local available = redis.call('get', semaphore) or '0'
if not count_in(available) then return redis.error_reply('WRONGTYPE the key holds no number of permits') end
if available ~= '0' then
    return all_or_none({mark(marks, lane, request, available), keep(marks, now, ends),
                        {'decrby', semaphore, available}}) or tonumber(available)
end
return again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)}) or 0
)lua"};

}  // namespace parts

// A script that makes permits available.
template <const ScriptText& Body>
inline constexpr ScriptText with_semaphore_queue =
    joined<parts::all_or_none, parts::request_marks, parts::wanted_until, parts::exact_count,
           parts::semaphore_queue_keys, parts::semaphore_news, Body, parts::semaphore_queue,
           parts::semaphore_tell_queue>;

inline constexpr ScriptText semaphore_acquire =
    joined<parts::all_or_none, parts::request_marks, parts::wanted_until, parts::exact_count,
           parts::semaphore_queue_keys, parts::semaphore_news, parts::semaphore_acquire, parts::semaphore_queue,
           parts::semaphore_queue_up, parts::semaphore_answer>;
inline constexpr ScriptText semaphore_give_back{with_semaphore_queue<parts::semaphore_give_back>};
inline constexpr ScriptText semaphore_add{with_semaphore_queue<parts::semaphore_add>};
inline constexpr ScriptText semaphore_set{with_semaphore_queue<parts::semaphore_set>};
inline constexpr ScriptText semaphore_drain{with_request_marks<parts::semaphore_drain>};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::semaphore_acquire>{scripts::semaphore_acquire,
    "6df656e7031508163ae5dbc6c0740213ab4ea500"};
template <>
inline constexpr Script digested<scripts::semaphore_add>{scripts::semaphore_add,
    "e9b1484cf262f1d42cdfbba792534549e3cf42a5"};
template <>
inline constexpr Script digested<scripts::semaphore_drain>{scripts::semaphore_drain,
    "d828497acc566a64067c1bd8898aabc4a6371dc4"};
template <>
inline constexpr Script digested<scripts::semaphore_give_back>{scripts::semaphore_give_back,
    "aa932eba68b123e71d7ba0d42dd59157c28f765f"};
template <>
inline constexpr Script digested<scripts::semaphore_set>{scripts::semaphore_set,
    "8bad8b7bd62733d8eea072262b89d6ffefecc493"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
