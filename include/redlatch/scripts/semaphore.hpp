// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/request_marks.hpp"
#include "redlatch/scripts/script.hpp"

// The scripts of the semaphore. Key: a string, the number of available permits; absent means none. Message: the new
// number of permits, if there are any and more than before. A TTL on the key is kept.
//
// A script publishes before it changes the number. Clients cannot tell, because a script is atomic. So nothing has
// changed yet if the user has no right to publish.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr std::string_view semaphore_acquire{R"lua(
-- KEYS: semaphore, marks.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, then the permits that
-- each caller wants, in the order of service; as a negative number, if callers behind may be served when there are too
-- few for this one.
-- Answer: the number of permits taken: by the callers in their order, as far as there are enough. If none were taken,
-- the number of available permits, negated; an array with a 0 if there is no such semaphore.
local semaphore, marks = KEYS[1], KEYS[2]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local available = count_in(redis.call('get', semaphore) or '0')
if not available then return redis.error_reply('WRONGTYPE the key holds no number of permits') end
local taken = 0
for i = 6, #ARGV do
    local wanted = math.abs(tonumber(ARGV[i]))
    if taken + wanted <= available then
        taken = taken + wanted
    elseif tonumber(ARGV[i]) > 0 then
        break
    end
end
local ends = wanted_until + margin
if taken > 0 then
    return all_or_none({mark(marks, lane, request, whole(taken)), keep(marks, now, ends),
                        {'decrby', semaphore, whole(taken)}}) or taken
end
-- An earlier copy may still arrive.
local refusal = again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)})
if refusal then return refusal end
if redis.call('exists', semaphore) == 0 then return {0} end
return -math.max(available, 0)
)lua"};

inline constexpr std::string_view semaphore_give_back{R"lua(
-- KEYS: semaphore, marks, channel.  ARGV: lane, request of an acquire whose outcome its sender does not know, wanted
-- until of that acquire, margin in ms, '1' for a resend, publish command.
-- Answer: the number of permits it had taken; they are given back, once. Copies of it in flight take none.
local semaphore, marks, channel = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin, publish = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[6]
local taken, own = outcome_of(marks, lane, request)
local now = time_in_ms()
local ends = wanted_until + margin
if not own then
    if taken then return 0 end
    if now > wanted_until then return late(now) end
    return all_or_none({keep(marks, now, ends), mark(marks, lane, request, 0), keep(marks, now, ends)}) or 0
end
if taken <= 0 then return 0 end
local available = redis.call('get', semaphore)
local changes = {keep(marks, now, ends), mark(marks, lane, request, 0, taken)}
if available then
    if not count_in(available) then return redis.error_reply('WRONGTYPE the key holds no number of permits') end
    local total = available + taken
    if total > 0 then table.insert(changes, {publish, channel, whole(total)}) end
    table.insert(changes, {'incrby', semaphore, whole(taken)})
end
return all_or_none(changes) or taken
)lua"};

inline constexpr std::string_view semaphore_add{R"lua(
-- KEYS: semaphore, marks, channel.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, permits (may be
-- negative), publish command, '1' = only if the semaphore exists.
-- Answer: 1 = added; 0 = there is no such semaphore.
local semaphore, marks, channel = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local permits, publish, only_existing = tonumber(ARGV[6]), ARGV[7], ARGV[8]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
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
if total > 0 and permits > 0 then table.insert(changes, {publish, channel, whole(total)}) end
table.insert(changes, {'incrby', semaphore, whole(permits)})
return all_or_none(changes) or 1
)lua"};

inline constexpr std::string_view semaphore_set{R"lua(
-- KEYS: semaphore, marks, channel.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, permits, publish
-- command, and, if the semaphore is to expire, after how many ms.
-- Answer: 1 = set; 0 = the semaphore exists already.
local semaphore, marks, channel = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local permits, publish, ttl = ARGV[6], ARGV[7], ARGV[8]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local ends = wanted_until + margin
if redis.call('get', semaphore) then
    return again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)}) or 0
end
local changes = {mark(marks, lane, request, 1), keep(marks, now, ends)}
if permits ~= '0' then table.insert(changes, {publish, channel, permits}) end
table.insert(changes, {'set', semaphore, permits, ttl and 'px', ttl})
return all_or_none(changes) or 1
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

inline constexpr std::string_view semaphore_acquire{with_request_marks<parts::semaphore_acquire>};
inline constexpr std::string_view semaphore_give_back{with_request_marks<parts::semaphore_give_back>};
inline constexpr std::string_view semaphore_add{with_request_marks<parts::semaphore_add>};
inline constexpr std::string_view semaphore_set{with_request_marks<parts::semaphore_set>};
inline constexpr std::string_view semaphore_drain{with_request_marks<parts::semaphore_drain>};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::semaphore_acquire>{scripts::semaphore_acquire,
    "647348e5c8740024a81364d33281173b370697a8"};
template <>
inline constexpr Script digested<scripts::semaphore_add>{scripts::semaphore_add,
    "f3277647f01cb1cbad99a7e5081f8bc6e83e2864"};
template <>
inline constexpr Script digested<scripts::semaphore_drain>{scripts::semaphore_drain,
    "f83a29c02dd598a8525a6c41ffcf6128de84e08c"};
template <>
inline constexpr Script digested<scripts::semaphore_give_back>{scripts::semaphore_give_back,
    "f769b5c29df11bff048d0095ee5d351c77852bf8"};
template <>
inline constexpr Script digested<scripts::semaphore_set>{scripts::semaphore_set,
    "b78e12a412a7d2d4d6e56efd99c9e4db6c400cbe"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
