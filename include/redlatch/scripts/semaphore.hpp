// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/request_marks.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/semaphore_queue.hpp"

// The scripts of the semaphore. Key: a string, the number of available permits; absent means none. Message: the new
// number of permits, if there are any and more than before; with a 0 before it if processes queue (semaphore_queue.hpp). A
// TTL on the key is kept.
//
// A script publishes before it changes the number. Clients cannot tell, because a script is atomic. So nothing has
// changed yet if the user has no right to publish.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr std::string_view semaphore_acquire{R"lua(
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

// Follows semaphore_queue.
inline constexpr std::string_view semaphore_queue_up{R"lua(
-- Gives the client a place, or keeps it. One that was served in part queues up anew. Returns true if it has one: it is told
-- when it has to ask. A command in lower case reaches subscribers of other nodes, who cannot be counted: no queue. Without a
-- right to the queue the client hears everything.
local function queue_up()
    if publish == 'publish' then return false end
    local is_new
    local done = pcall(function()
        is_new = redis.call('hset', places, id, place_text(number, least, 0)) == 1
        -- The server may have evicted the list alone.
        local is_lost = not is_new and redis.call('llen', queue) < redis.call('hlen', places)
        if is_lost or (taken > 0 and not is_new) then redis.call('lrem', queue, '0', id) end
        if is_new or is_lost or taken > 0 then redis.call('rpush', queue, id) end
        redis.call('pexpire', queue, '60000')
        redis.call('pexpire', places, '60000')
    end)
    if not done and is_new then
        redis.pcall('lrem', queue, '-1', id)
        redis.pcall('hdel', places, id)
    end
    return done
end

local is_queued
if least then is_queued = queue_up() else pcall(drop, id) end
-- It may have been told of more permits than it took.
tell_queue(available - taken)
if is_queued then return {math.max(available - taken, 0), is_there and 1 or 0, taken} end
return taken > 0 and taken or refused()
)lua"};

inline constexpr std::string_view semaphore_give_back{R"lua(
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
local available, total, is_queue = redis.call('get', semaphore), nil, nil
local changes = {keep(marks, now, ends), mark(marks, lane, request, 0, taken)}
if available then
    if not count_in(available) then return redis.error_reply('WRONGTYPE the key holds no number of permits') end
    total, is_queue = available + taken, has_queue()
    if total > 0 then table.insert(changes, {publish, channel, news(total, is_queue)}) end
    table.insert(changes, {'incrby', semaphore, whole(taken)})
end
local answer = all_or_none(changes) or taken
if answer ~= taken or not is_queue then return answer end
)lua"};

inline constexpr std::string_view semaphore_add{R"lua(
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
local is_queue = total > 0 and permits > 0 and has_queue()
if total > 0 and permits > 0 then table.insert(changes, {publish, channel, news(total, is_queue)}) end
table.insert(changes, {'incrby', semaphore, whole(permits)})
local answer = all_or_none(changes) or 1
if answer ~= 1 or not is_queue then return answer end
)lua"};

inline constexpr std::string_view semaphore_set{R"lua(
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
local is_queue = permits ~= '0' and has_queue()
if permits ~= '0' then table.insert(changes, {publish, channel, news(permits, is_queue)}) end
table.insert(changes, {'set', semaphore, permits, ttl and 'px', ttl})
local answer, total = all_or_none(changes) or 1, tonumber(permits)
if answer ~= 1 or not is_queue then return answer end
)lua"};

inline constexpr std::string_view semaphore_drain{R"lua(
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

inline constexpr std::string_view semaphore_acquire =
    joined<parts::all_or_none, parts::request_marks, parts::wanted_until, parts::exact_count, parts::semaphore_names,
           parts::semaphore_acquire, parts::semaphore_queue, parts::semaphore_queue_up>;
inline constexpr std::string_view semaphore_give_back{with_semaphore_queue<parts::semaphore_give_back>};
inline constexpr std::string_view semaphore_add{with_semaphore_queue<parts::semaphore_add>};
inline constexpr std::string_view semaphore_set{with_semaphore_queue<parts::semaphore_set>};
inline constexpr std::string_view semaphore_drain{with_request_marks<parts::semaphore_drain>};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::semaphore_acquire>{scripts::semaphore_acquire,
    "21bd17e9e74b85bb593f93fef9c813539ae1c1a9"};
template <>
inline constexpr Script digested<scripts::semaphore_add>{scripts::semaphore_add,
    "e358b8b6775a09f0ff478d6c68300433aa08c4a1"};
template <>
inline constexpr Script digested<scripts::semaphore_drain>{scripts::semaphore_drain,
    "f83a29c02dd598a8525a6c41ffcf6128de84e08c"};
template <>
inline constexpr Script digested<scripts::semaphore_give_back>{scripts::semaphore_give_back,
    "ce6c0c92e4bec13442094c7b5300d8538fcc2c3c"};
template <>
inline constexpr Script digested<scripts::semaphore_set>{scripts::semaphore_set,
    "c5e2c7ccb25f8bc7ad752c342fd4a05fb4d20be4"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
