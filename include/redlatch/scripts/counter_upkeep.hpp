// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/request_marks.hpp"
#include "redlatch/scripts/script.hpp"

// The scripts that delete the key of a semaphore or a latch, or let it expire; and with it the sorted set of the permits
// that are taken, if they have leases. As in Redisson nothing is published: permits that are gone serve no waiter.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr ScriptText counter_remove{R"lua(
-- KEYS: counter, marks, and the leases of permits if there are any.
-- ARGV: lane, request, wanted until, margin in ms, '1' for a resend.
-- Answer: 1 = deleted; 0 = there was nothing.
local counter, marks, leases = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local ends = wanted_until + margin
local number = redis.call('get', counter)
if not count_in(number or '0') then return redis.error_reply('WRONGTYPE the key holds no number') end
if not number and not (leases and redis.call('zcard', leases) > 0) then
    return again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)}) or 0
end
-- First a write that Redis allows when its memory is full.
return all_or_none({keep(marks, now, ends), mark(marks, lane, request, 1), keep(marks, now, ends),
                    {'del', counter, leases}}) or 1
)lua"};

inline constexpr ScriptText counter_expire{R"lua(
-- KEYS: counter, marks, and the leases of permits if there are any.
-- ARGV: lane, request, wanted until, margin in ms, '1' for a resend, after how many ms to expire.
-- Answer: 1 = done; 0 = there is no counter.
local counter, marks, leases = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local ttl = ARGV[6]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local ends = wanted_until + margin
local number = redis.call('get', counter)
if not count_in(number or '0') then return redis.error_reply('WRONGTYPE the key holds no number') end
if not number then
    return again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)}) or 0
end
local changes = {keep(marks, now, ends), mark(marks, lane, request, 1), keep(marks, now, ends)}
-- SET removes a TTL. If the leases expired alone, their permits would never become available again.
local left = redis.call('pttl', counter)
table.insert(changes, {'pexpire', counter, ttl,
                       undo = left >= 0 and {'pexpire', counter, whole(math.max(left, 1))} or {'set', counter, number}})
if leases then table.insert(changes, {'pexpire', leases, before_end(tonumber(ttl))}) end
return all_or_none(changes) or 1
)lua"};

}  // namespace parts

inline constexpr ScriptText counter_remove{with_request_marks<parts::counter_remove>};
inline constexpr ScriptText counter_expire{with_request_marks<parts::counter_expire>};

}  // namespace scripts

// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::counter_expire>{scripts::counter_expire,
    "f877e3fa8f214d1e29ca9ce8cdb626f27d8871c9"};
template <>
inline constexpr Script digested<scripts::counter_remove>{scripts::counter_remove,
    "02a13a372808bb0dc285980f972ecc40278a74ef"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
