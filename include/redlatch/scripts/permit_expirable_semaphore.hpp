// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/request_marks.hpp"
#include "redlatch/scripts/script.hpp"

// The scripts of the semaphore whose permits have leases. Keys: a string, the permits that are available, as the
// semaphore's; and a sorted set of the permits that are taken: id -> the time when its lease is over, in ms since 1970
// by the server's clock. A permit whose time is over counts as available; whoever looks puts it back. Message: the
// new number of permits, when there are any.
namespace redlatch::scripts {

namespace detail {

inline constexpr std::string_view permit_clock{R"lua(
-- The time of a permit that ends only by its release. Redisson's.
local never = 922337203685477
local function time_in_ms()
    local time = redis.call('time')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end
local function ends_at(now, lease)
    return string.format('%.0f', lease == '-1' and never or now + lease)
end
local function whole(number) return string.format('%.0f', number) end
)lua"};

inline constexpr std::string_view permit_sweep{R"lua(
-- Whether the key holds a number of permits, or nothing: to be asked before anything is changed.
local function is_count(semaphore) return count_in(redis.call('get', semaphore) or '0') ~= nil end
local function no_count() return redis.error_reply('WRONGTYPE the key holds no number of permits') end
local function put_back(semaphore, channel, publish, permits)
    local total = redis.call('incrby', semaphore, whole(permits))
    if total > 0 then redis.call(publish, channel, whole(total)) end
end
local function sweep(semaphore, leases, channel, publish, now)
    local over = redis.call('zremrangebyscore', leases, '0', whole(now))
    if over > 0 then put_back(semaphore, channel, publish, over) end
end
)lua"};

template <const std::string_view& Body>
inline constexpr std::string_view changes_permits =
    joined<request_marks, exact_count, permit_clock, permit_sweep, Body>;

inline constexpr std::string_view permit_acquire{R"lua(
-- KEYS: semaphore, marks, leases, channel.  ARGV: lane, request, TTL of the marks in ms, '1' for a command that is sent
-- again, publish command; then for each caller, in the order in which they are to be served: how many permits, their
-- lease in ms (-1 = for ever), their ids.
-- Answer: how many permits were taken: for the first callers, as far as they go round; and after how many ms the next
-- lease is over, -1 = unknown.
local semaphore, marks, leases, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lane, request, ttl, again, publish = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local before = outcome_of(marks, lane, request)
if before then return {before, -1} end
local present = count_in(redis.call('get', semaphore) or '0')
if not present then return no_count() end
local now = time_in_ms()
local available = present + redis.call('zcount', leases, '0', whole(now))
local taken, i = 0, 6
while i <= #ARGV do
    local wanted = tonumber(ARGV[i])
    if taken + wanted > available then break end
    taken = taken + wanted
    i = i + 2 + wanted
end
if taken > 0 then
    -- First, so that Redis refuses it when its memory is full.
    remember(marks, lane, request, taken, ttl)
elseif again == '1' then
    remember(marks, lane, request, 0, ttl)
end
sweep(semaphore, leases, channel, publish, now)
if taken == 0 then
    local first = redis.call('zrange', leases, '0', '0', 'withscores')[2]
    if not first or tonumber(first) >= never then return {0, -1} end
    return {0, math.max(1, tonumber(first) - now)}
end
redis.call('decrby', semaphore, whole(taken))
local at = 6
while at < i do
    local wanted, ends = tonumber(ARGV[at]), ends_at(now, ARGV[at + 1])
    for k = at + 2, at + 1 + wanted do redis.call('zadd', leases, ends, ARGV[k]) end
    at = at + 2 + wanted
end
local left = redis.call('pttl', semaphore)
if left > 0 then redis.call('pexpire', leases, left) end
return {taken, -1}
)lua"};

inline constexpr std::string_view permit_take_back{R"lua(
-- KEYS: semaphore, marks, leases, channel.  ARGV: lane, request of an acquire whose outcome its sender does not know, TTL
-- of the marks in ms, publish command, the ids that it may have taken.
-- Answer: how many it had taken; they are given back. Copies of it that are still on their way take none.
local semaphore, marks, leases, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lane, request, ttl, publish = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local before, own = outcome_of(marks, lane, request)
if not is_count(semaphore) then return no_count() end
redis.call('pexpire', marks, ttl)
if own or not before then remember(marks, lane, request, 0, ttl) end
local removed = 0
for i = 5, #ARGV do removed = removed + redis.call('zrem', leases, ARGV[i]) end
if removed > 0 then put_back(semaphore, channel, publish, removed) end
return removed
)lua"};

inline constexpr std::string_view permit_release{R"lua(
-- KEYS: semaphore, marks, leases, channel.  ARGV: lane, request, TTL of the marks in ms, publish command, permit ids.
-- Answer: 1 = all were released; 0 = at least one is unknown or its lease is over, and none was.
local semaphore, marks, leases, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lane, request, ttl, publish = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local before = outcome_of(marks, lane, request)
if before then return before end
if not is_count(semaphore) then return no_count() end
local now = time_in_ms()
for i = 5, #ARGV do
    local ends = redis.call('zscore', leases, ARGV[i])
    if not ends or tonumber(ends) <= now then
        sweep(semaphore, leases, channel, publish, now)
        return 0
    end
end
-- First, because then Redis lets the rest through when its memory is full.
redis.call('pexpire', marks, ttl)
local removed = 0
for i = 5, #ARGV do removed = removed + redis.call('zrem', leases, ARGV[i]) end
remember(marks, lane, request, 1, ttl)
sweep(semaphore, leases, channel, publish, now)
put_back(semaphore, channel, publish, removed)
return 1
)lua"};

inline constexpr std::string_view permit_set_lease{R"lua(
-- KEYS: semaphore, marks, leases, channel.  ARGV: lane, request, TTL of the marks in ms, publish command, permit id, lease
-- in ms (-1 = for ever).
-- Answer: 1 = done; 0 = the permit is unknown or its lease is over.
local semaphore, marks, leases, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lane, request, ttl, publish, id, lease = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local before = outcome_of(marks, lane, request)
if before then return before end
if not is_count(semaphore) then return no_count() end
local now = time_in_ms()
sweep(semaphore, leases, channel, publish, now)
if not redis.call('zscore', leases, id) then return 0 end
redis.call('pexpire', marks, ttl)
redis.call('zadd', leases, ends_at(now, lease), id)
remember(marks, lane, request, 1, ttl)
return 1
)lua"};

inline constexpr std::string_view permit_set_total{R"lua(
-- KEYS: semaphore, marks, leases, channel.  ARGV: lane, request, TTL of the marks in ms, publish command, number of permits,
-- those that are taken included.
-- Answer: 1.
local semaphore, marks, leases, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lane, request, ttl, publish, permits = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local before = outcome_of(marks, lane, request)
if before then return before end
if not is_count(semaphore) then return no_count() end
local present = redis.call('get', semaphore)
local missing = permits
if not present then
    remember(marks, lane, request, 1, ttl)
    redis.call('set', semaphore, permits)
else
    missing = permits - present - redis.call('zcard', leases)
    remember(marks, lane, request, 1, ttl)
    if missing ~= 0 then redis.call('incrby', semaphore, whole(missing)) end
end
if tonumber(missing) > 0 then redis.call(publish, channel, permits) end
return 1
)lua"};

inline constexpr std::string_view permit_count{R"lua(
-- KEYS: semaphore, leases, channel.  ARGV: publish command.
-- Answer: how many permits are available, how many are taken; nil for the first = there is no such semaphore.
local semaphore, leases, channel = KEYS[1], KEYS[2], KEYS[3]
if not is_count(semaphore) then return no_count() end
sweep(semaphore, leases, channel, ARGV[1], time_in_ms())
return {redis.call('get', semaphore), redis.call('zcard', leases)}
)lua"};

inline constexpr std::string_view permit_remaining{R"lua(
-- KEYS: leases.  ARGV: permit id.
-- Answer: what its lease has left in ms, -1 = it is for ever, nil = it is unknown or its lease is over.
local ends = tonumber(redis.call('zscore', KEYS[1], ARGV[1]) or '0')
if ends >= never then return -1 end
local left = ends - time_in_ms()
if left <= 0 then return nil end
return left
)lua"};

inline constexpr std::string_view permit_renew{R"lua(
-- KEYS: leases.  ARGV: lease in ms, up to 100 permit ids.
-- Answer: for each permit 1 = renewed, 0 = it is not held any more. Never shortens a lease.
local leases, lease = KEYS[1], ARGV[1]
local now = time_in_ms()
local ends = now + lease
local renewed = {}
for i = 2, #ARGV do
    local old = tonumber(redis.call('zscore', leases, ARGV[i]) or '0')
    renewed[i - 1] = 0
    if old > now then
        renewed[i - 1] = 1
        if old < ends then
            -- First a write that Redis allows when its memory is full.
            redis.call('zrem', leases, ARGV[i])
            redis.call('zadd', leases, whole(ends), ARGV[i])
        end
    end
end
return renewed
)lua"};

}  // namespace detail

inline constexpr std::string_view permit_acquire = detail::changes_permits<detail::permit_acquire>;
inline constexpr std::string_view permit_take_back = detail::changes_permits<detail::permit_take_back>;
inline constexpr std::string_view permit_release = detail::changes_permits<detail::permit_release>;
inline constexpr std::string_view permit_set_lease = detail::changes_permits<detail::permit_set_lease>;
inline constexpr std::string_view permit_set_total = detail::changes_permits<detail::permit_set_total>;
inline constexpr std::string_view permit_count{
    joined<detail::exact_count, detail::permit_clock, detail::permit_sweep, detail::permit_count>};
inline constexpr std::string_view permit_remaining{joined<detail::permit_clock, detail::permit_remaining>};
inline constexpr std::string_view permit_renew{joined<detail::permit_clock, detail::permit_renew>};

}  // namespace redlatch::scripts
