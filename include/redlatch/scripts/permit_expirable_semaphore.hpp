// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/permit_grants.hpp"
#include "redlatch/scripts/request_marks.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/semaphore_queue.hpp"

// The scripts of the semaphore whose permits have leases. Keys: a string, the number of available permits, as for the
// semaphore; and a sorted set of the permits that are taken: id -> the end of its lease, in ms since 1970 by the
// server's clock. A permit whose lease has ended counts as available; the next script that finds it puts it back.
// Message: the new number of permits, if there are any; with a 0 before it if processes queue (semaphore_queue.hpp). It is
// published before the number changes, as for the semaphore.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr ScriptText permit_clock{R"lua(
-- The end of a permit without a lease, as in Redisson.
local never = 922337203685477
local function ends_at(now, lease)
    return string.format('%.0f', lease == '-1' and never or now + lease)
end
)lua"};

inline constexpr ScriptText permit_sweep{R"lua(
local function no_count() return redis.error_reply('WRONGTYPE the key holds no number of permits') end
-- Returns how many permits have an ended lease, and the change that removes their ids. That change must come last,
-- because nothing undoes it. If there would be more permits than Redisson can read, the permits stay until there is
-- room.
local function leases_over(leases, now, available)
    local over = redis.call('zcount', leases, '0', whole(now))
    if available + over > most then over = 0 end
    return over, {'zremrangebyscore', leases, '0', whole(now)}
end
-- Adds to `changes`: that many permits become available (fewer, if negative). Before that come commands of the kinds
-- that follow later and might be refused; they remove nothing. Redis allows the first one when its memory is full, and
-- then all later writes.
local function put_back(changes, semaphore, leases, available, permits)
    table.insert(changes, {'zrem', leases, ''})
    table.insert(changes, {'zremrangebyscore', leases, '1', '0'})
    if available + permits > 0 then add_news(changes, available + permits) end
    table.insert(changes, {'incrby', semaphore, whole(permits), undo = {'incrby', semaphore, whole(-permits)}})
end
-- Puts back the permits whose lease has ended, and does nothing else. Returns nil, or the error.
local function sweep(semaphore, leases, available)
    local over, removal = leases_over(leases, now, available)
    if over == 0 then return end
    local changes = {}
    put_back(changes, semaphore, leases, available, over)
    table.insert(changes, removal)
    return all_or_none(changes)
end
)lua"};

// A script that reads permits, or makes some available: it tells the queue of that, with the keys of the queue.
template <const ScriptText& QueueKeys, const ScriptText& Body>
inline constexpr ScriptText sees_permits = joined<all_or_none, request_marks, wanted_until, exact_count, permit_clock,
                                                  QueueKeys, semaphore_news, permit_sweep, Body>;
template <const ScriptText& Body>
inline constexpr ScriptText changes_permits =
    joined<sees_permits<permit_queue_keys, Body>, semaphore_queue, permit_grants, semaphore_tell_queue>;

inline constexpr ScriptText permit_acquire{R"lua(
-- KEYS: semaphore, marks, leases, channel (, queue, places).  ARGV: lane, request, wanted until, margin in ms, '1' for a
-- resend, client id, number of its place in the queue ('0' = takes none), publish command, '1' if the first caller that is
-- not served may be granted its permits later; then for each caller, in the order of service: how many permits (negative if
-- callers behind may be served when there are too few for this one), their lease in ms (-1 = without a lease), their ids.
-- Answer: the number of permits taken: by the callers in their order, as far as there are enough; after how many ms the
-- next lease ends, -1 = unknown; and, if some callers were not served, how many permits there are in all, nil = there is no
-- such semaphore; then 1 if it has a place in the queue.
local semaphore, marks, leases = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local id, number = ARGV[6], ARGV[7]
local before = outcome_of(marks, lane, request)
if before then return {before, -1} end
publish, now = ARGV[8], time_in_ms()
if now > wanted_until then return late(now) end
local ends = wanted_until + margin
local present = count_in(redis.call('get', semaphore) or '0')
if not present then return no_count() end
-- An earlier copy has got a place, at which these ids were granted. The message says so. Later copies take nothing.
local granted_until = ARGV[9] == '1' and tonumber(redis.call('zscore', leases, ARGV[12]) or '0') or 0
if granted_until > now then
    -- The message may be lost: its caller asks at the end.
    return all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)}) or
               {0, granted_until - now, present + redis.call('zcard', leases), 1}
end
local over, removal = leases_over(leases, now, present)
local available = present + over
-- `least`: with how many more permits it would have taken some; nil if nobody stays unserved. `offer`: what may be granted.
local taken, least, offer, served, i = 0, nil, nil, {}, 10
while i <= #ARGV do
    local wanted = math.abs(tonumber(ARGV[i]))
    if taken + wanted <= available then
        taken = taken + wanted
        table.insert(served, i)
    else
        if ARGV[9] == '1' and not least then
            offer = ' ' .. ARGV[i + 1] .. ' ' .. table.concat(ARGV, '', i + 2, i + 1 + wanted)
        end
        least = math.min(least or wanted, wanted)
        if tonumber(ARGV[i]) > 0 then break end
    end
    i = i + 2 + wanted
end
-- Before anything changes, because a right may be missing.
local answer, first, has_others = {taken, -1}, never, false
if least then
    -- Permits whose lease has ended bring a removed semaphore back.
    local exists = taken > 0 or over > 0 or redis.call('exists', semaphore) == 1
    answer[3] = exists and present + redis.call('zcard', leases)
    local next_over = redis.call('zrange', leases, whole(over), whole(over), 'withscores')
    first = tonumber(next_over[2] or never)
    for _, permit in ipairs({next_over[1] or 'rl', redis.call('zrange', leases, '-1', '-1')[1] or 'rl'}) do
        if string.sub(permit, -2) ~= 'rl' then has_others = true end
    end
end
local refusal
if taken == 0 then
    refusal = again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)}) or
                  sweep(semaphore, leases, present)
else
    -- First a write that Redis refuses when its memory is full.
    local changes = {mark(marks, lane, request, whole(taken)), keep(marks, now, ends)}
    if over > 0 then
        put_back(changes, semaphore, leases, present, over - taken)
    else
        table.insert(changes, {'decrby', semaphore, whole(taken), undo = {'decrby', semaphore, whole(-taken)}})
    end
    for _, at in ipairs(served) do
        local wanted, lease_ends = math.abs(tonumber(ARGV[at])), ends_at(now, ARGV[at + 1])
        first = math.min(first, tonumber(lease_ends))
        for k = at + 2, at + 1 + wanted do
            table.insert(changes, {'zadd', leases, lease_ends, ARGV[k], undo = {'zrem', leases, ARGV[k]}})
        end
    end
    local left = redis.call('pttl', semaphore)
    if left >= 0 then table.insert(changes, {'pexpire', leases, before_end(left)}) end
    if over > 0 then table.insert(changes, removal) end
    refusal = all_or_none(changes)
end
if refusal then return refusal end
if least and first < never then answer[2] = math.max(1, first - now) end
if number == '0' and not told then return answer end
if not told and not least and redis.pcall('hexists', places, id) ~= 1 then return answer end
)lua"};

// Follows semaphore_queue_up.
inline constexpr ScriptText permit_answer{R"lua(
local left, is_known = available - taken, taken == 0 and over == 0 and not was_told(id)
if number ~= '0' and least and queue_up(id, number, least, taken > 0, left, offer) then
    answer[4] = 1
    if has_others then pcall(set_turn, 0, now + others_active, 0) end
end
if number ~= '0' and not least then pcall(drop, id) end
waiting = nil
-- It may have been told of more permits than it took.
tell_queue(left, is_known)
return answer
)lua"};

inline constexpr ScriptText permit_take_back{R"lua(
-- KEYS: semaphore, marks, leases, channel (, queue, places).  ARGV: lane, request of an acquire whose outcome its sender
-- does not know, wanted until of that acquire, margin in ms, '1' for a resend, publish command, the ids that it may have
-- taken.
-- Answer: the number of these ids that were taken; they are given back, once. Copies of the acquire in flight take
-- none.
local semaphore, marks, leases = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local before, own = outcome_of(marks, lane, request)
local present = count_in(redis.call('get', semaphore) or '0')
if not present then return no_count() end
publish, now = ARGV[6], time_in_ms()
-- First a write that Redis allows when its memory is full.
local changes = {{'zrem', leases, ''}}
if own then
    table.insert(changes, mark(marks, lane, request, 0, before))
elseif not before and now <= wanted_until then
    table.insert(changes, mark(marks, lane, request, 0))
    table.insert(changes, keep(marks, now, wanted_until + margin))
end
local held = {}
for i = 7, #ARGV do
    if redis.call('zscore', leases, ARGV[i]) then table.insert(held, ARGV[i]) end
end
if #held > 0 then put_back(changes, semaphore, leases, present, #held) end
for _, id in ipairs(held) do table.insert(changes, {'zrem', leases, id}) end
local refusal, answer = all_or_none(changes), #held
if refusal or not told then return refusal or answer end
)lua"};

inline constexpr ScriptText permit_release{R"lua(
-- KEYS: semaphore, marks, leases, channel (, queue, places).  ARGV: lane, request, wanted until, margin in ms, '1' for a
-- resend, publish command, permit ids.
-- Answer: 1 = all were released; 0 = at least one is unknown or its lease has ended, and none was released.
local semaphore, marks, leases = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local before = outcome_of(marks, lane, request)
if before then return before end
publish, now = ARGV[6], time_in_ms()
if now > wanted_until then return late(now) end
local present = count_in(redis.call('get', semaphore) or '0')
if not present then return no_count() end
local ids, seen, answer = {}, {}, 1
for i = 7, #ARGV do
    local ends = redis.call('zscore', leases, ARGV[i])
    if not ends or tonumber(ends) <= now then answer = 0 end
    if not seen[ARGV[i]] then table.insert(ids, ARGV[i]) end
    seen[ARGV[i]] = true
end
local refusal
if answer == 0 then
    refusal = sweep(semaphore, leases, present)
else
    local over, removal = leases_over(leases, now, present + #ids)
    local ends = wanted_until + margin
    -- First a write that Redis allows when its memory is full.
    local changes = {keep(marks, now, ends), mark(marks, lane, request, 1), keep(marks, now, ends)}
    put_back(changes, semaphore, leases, present, #ids + over)
    for _, id in ipairs(ids) do table.insert(changes, {'zrem', leases, id}) end
    if over > 0 then table.insert(changes, removal) end
    refusal = all_or_none(changes)
end
if refusal or not told then return refusal or answer end
)lua"};

inline constexpr ScriptText permit_set_lease{R"lua(
-- KEYS: semaphore, marks, leases, channel (, queue, places).  ARGV: lane, request, wanted until, margin in ms, '1' for a
-- resend, publish command, permit id, lease in ms (-1 = without a lease).
-- Answer: 1 = done; 0 = the permit is unknown or its lease has ended.
local semaphore, marks, leases = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local id, lease = ARGV[7], ARGV[8]
local before = outcome_of(marks, lane, request)
if before then return before end
publish, now = ARGV[6], time_in_ms()
if now > wanted_until then return late(now) end
local present = count_in(redis.call('get', semaphore) or '0')
if not present then return no_count() end
local old = redis.call('zscore', leases, id)
local refusal, answer
if not old or tonumber(old) <= now then
    refusal, answer = sweep(semaphore, leases, present), 0
else
    local ends = wanted_until + margin
    local changes = {keep(marks, now, ends), mark(marks, lane, request, 1), keep(marks, now, ends),
                     {'zadd', leases, ends_at(now, lease), id, undo = {'zadd', leases, old, id}}}
    local over, removal = leases_over(leases, now, present)
    if over > 0 then
        put_back(changes, semaphore, leases, present, over)
        table.insert(changes, removal)
    end
    refusal, answer = all_or_none(changes), 1
end
if refusal or not told then return refusal or answer end
)lua"};

inline constexpr ScriptText permit_set_total{R"lua(
-- KEYS: semaphore, marks, leases, channel (, queue, places).  ARGV: lane, request, wanted until, margin in ms, '1' for a
-- resend, publish command, number of permits, including those that are taken.
-- Answer: 1.
local semaphore, marks, leases = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local permits = ARGV[7]
local before = outcome_of(marks, lane, request)
if before then return before end
publish, now = ARGV[6], time_in_ms()
if now > wanted_until then return late(now) end
local present = redis.call('get', semaphore)
if not count_in(present or '0') then return no_count() end
local missing = permits - (present or 0) - (present and redis.call('zcard', leases) or 0)
local changes = {mark(marks, lane, request, 1), keep(marks, now, wanted_until + margin)}
if missing > 0 then add_news(changes, tonumber(permits)) end
if not present then
    table.insert(changes, {'set', semaphore, permits})
elseif missing ~= 0 then
    table.insert(changes, {'incrby', semaphore, whole(missing)})
end
local refusal, answer = all_or_none(changes), 1
if refusal or not told then return refusal or answer end
told = (present or 0) + missing
)lua"};

inline constexpr ScriptText permit_add{R"lua(
-- KEYS: semaphore, marks, leases, channel (, queue, places).  ARGV: lane, request, wanted until, margin in ms, '1' for a
-- resend, publish command, the change of the number of permits.
-- Answer: 1.
local semaphore, marks, leases = KEYS[1], KEYS[2], KEYS[3]
local lane, request, wanted_until, margin = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local permits = tonumber(ARGV[7])
local before = outcome_of(marks, lane, request)
if before then return before end
publish, now = ARGV[6], time_in_ms()
if now > wanted_until then return late(now) end
local present = count_in(redis.call('get', semaphore) or '0')
if not present then return no_count() end
local total = present + permits
-- All taken permits may be put back one day.
if permits > 0 and total + redis.call('zcard', leases) > most or permits < 0 and total < -most then
    return too_many()
end
local ends = wanted_until + margin
local changes = {keep(marks, now, ends), mark(marks, lane, request, 1), keep(marks, now, ends)}
if total > 0 and permits > 0 then add_news(changes, total) end
table.insert(changes, {'incrby', semaphore, whole(permits)})
local refusal, answer = all_or_none(changes), 1
if refusal or not told then return refusal or answer end
)lua"};

inline constexpr ScriptText permit_count{R"lua(
-- KEYS: semaphore, leases, channel.  ARGV: publish command.
-- Answer: how many permits are available, how many are taken; nil for the first = there is no such semaphore.
local semaphore, leases = KEYS[1], KEYS[2]
local present = count_in(redis.call('get', semaphore) or '0')
if not present then return no_count() end
publish, now = ARGV[1], time_in_ms()
local taken = redis.call('zcard', leases) - leases_over(leases, now, present)
local refusal = sweep(semaphore, leases, present)
return refusal or {redis.call('get', semaphore), taken}
)lua"};

inline constexpr ScriptText permit_inspect{R"lua(
-- KEYS: semaphore, leases.
-- Answer: how many permits are available, a text, nil = there is no such semaphore; how many are taken; PTTL; then for
-- each taken one, the first 1,000 to expire, its id and how many ms its lease has left, -1 = it never ends. Changes
-- nothing: a permit whose lease has ended counts as available, and stays where it is.
local semaphore, leases = KEYS[1], KEYS[2]
local present = redis.call('get', semaphore)
local available = count_in(present or '0')
if not available then return no_count() end
local now = time_in_ms()
local over = leases_over(leases, now, available)
local held = redis.call('zrange', leases, whole(over), whole(over + 999), 'withscores')
for at = 2, #held, 2 do
    local ends = tonumber(held[at])
    held[at] = ends >= never and -1 or math.max(0, ends - now)
end
return {present and whole(available + over), redis.call('zcard', leases) - over, redis.call('pttl', semaphore), held}
)lua"};

inline constexpr ScriptText permit_remaining{R"lua(
-- KEYS: leases.  ARGV: permit id.
-- Answer: how many ms its lease has left, -1 = it has no lease, nil = it is unknown or its lease has ended.
local ends = tonumber(redis.call('zscore', KEYS[1], ARGV[1]) or '0')
if ends >= never then return -1 end
local left = ends - time_in_ms()
if left <= 0 then return nil end
return left
)lua"};

inline constexpr ScriptText permit_renew{R"lua(
-- KEYS: leases.  ARGV: lease in ms, wanted until, up to 1,000 permit ids.
-- Answer: for each permit 1 = renewed, 0 = it is not held any more. Never shortens a lease.
local leases, lease, wanted_until = KEYS[1], ARGV[1], tonumber(ARGV[2])
local now = time_in_ms()
if now > wanted_until then return late(now) end
local ends = now + lease
local renewed = {}
-- First a write that Redis allows when its memory is full; it removes nothing.
redis.call('zrem', leases, '')
for i = 3, #ARGV do
    local old = tonumber(redis.call('zscore', leases, ARGV[i]) or '0')
    renewed[i - 2] = 0
    if old > now then
        renewed[i - 2] = 1
        if old < ends then redis.call('zadd', leases, string.format('%.0f', ends), ARGV[i]) end
    end
end
return renewed
)lua"};

}  // namespace parts

inline constexpr ScriptText permit_acquire =
    joined<parts::sees_permits<parts::permit_queue_keys, parts::permit_acquire>, parts::semaphore_queue,
           parts::permit_grants, parts::semaphore_queue_up, parts::permit_answer>;
inline constexpr ScriptText permit_take_back = parts::changes_permits<parts::permit_take_back>;
inline constexpr ScriptText permit_leave =
    joined<parts::sees_permits<parts::permit_queue_keys, parts::permit_leave_place>, parts::semaphore_queue,
           parts::permit_grants, parts::permit_look_out>;
inline constexpr ScriptText permit_release = parts::changes_permits<parts::permit_release>;
inline constexpr ScriptText permit_set_lease = parts::changes_permits<parts::permit_set_lease>;
inline constexpr ScriptText permit_set_total = parts::changes_permits<parts::permit_set_total>;
inline constexpr ScriptText permit_add = parts::changes_permits<parts::permit_add>;
// Without the keys of the queue: if it finds permits whose lease has ended, all waiters are told.
inline constexpr ScriptText permit_count = parts::sees_permits<parts::semaphore_queue_keys, parts::permit_count>;
inline constexpr ScriptText permit_inspect = parts::sees_permits<parts::semaphore_queue_keys, parts::permit_inspect>;
inline constexpr ScriptText permit_remaining{joined<parts::wanted_until, parts::permit_clock, parts::permit_remaining>};
inline constexpr ScriptText permit_renew{joined<parts::wanted_until, parts::permit_clock, parts::permit_renew>};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::permit_acquire>{scripts::permit_acquire,
    "8cec9535e38f931e047b35d40d83b529ab7cd1a5"};
template <>
inline constexpr Script digested<scripts::permit_add>{scripts::permit_add,
    "ece4320396b5bcb3ace175a6326f51d9ed8784d2"};
template <>
inline constexpr Script digested<scripts::permit_count>{scripts::permit_count,
    "70032a3789e44fa973a64d38a59d948957705fbc"};
template <>
inline constexpr Script digested<scripts::permit_inspect>{scripts::permit_inspect,
    "ca849a4ddd2f0c0f5572a17751bbddb86e14634e"};
template <>
inline constexpr Script digested<scripts::permit_leave>{scripts::permit_leave,
    "c857cbd4075e94b2cdbc112cc7288d30c1c1a05e"};
template <>
inline constexpr Script digested<scripts::permit_release>{scripts::permit_release,
    "e25ec5e708fc785da9e33f9caad3dad1890533c4"};
template <>
inline constexpr Script digested<scripts::permit_remaining>{scripts::permit_remaining,
    "9a992fa59c4fb68caa6bb2fbac63d3d8d38a4a40"};
template <>
inline constexpr Script digested<scripts::permit_renew>{scripts::permit_renew,
    "3b14486179c440c8fcc311af42f3d7cf141a3dbd"};
template <>
inline constexpr Script digested<scripts::permit_set_lease>{scripts::permit_set_lease,
    "969ef2c7b4db70fdd695dce0bfce02111bc67877"};
template <>
inline constexpr Script digested<scripts::permit_set_total>{scripts::permit_set_total,
    "a72a703ea92e1427195a90bb1788ae5699dc2d7d"};
template <>
inline constexpr Script digested<scripts::permit_take_back>{scripts::permit_take_back,
    "6edbe4eafd878854465f038c9319af04a7b1e4c0"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
