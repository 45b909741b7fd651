// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/giving_back.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/wanted_until.hpp"

#include <string_view>

// The scripts of the fair lock. The lock itself is the hash of the reentrant lock, and as there everything that is
// sent twice takes effect once: a hold count is absolute, a waiter has one place. What is late names a hold or a place
// that is gone, or says that it is wanted no more.
//
// The queue is Redisson's: a list of the waiting owners, the first is the next, and a sorted set that says until when
// each of them counts as alive, in milliseconds of the server's clock. Beside it stands a sorted set that only we
// know, the slots: a waiter of ours refreshes its slot every few seconds, so when it dies it is in nobody's way for
// long. For a waiter that has no slot, one of Redisson's, the other set's word counts, and is never changed by us.
//
// When a waiter of Redisson's takes the lock, it lowers the times of all others by its own patience. A time in
// the shared set is therefore our slot's, and one such patience more for each waiter of that kind before us.
namespace redlatch::scripts {

namespace detail {

inline constexpr std::string_view fair_queue = R"lua(
local lock, queue, timeouts, slots = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local publish, channel = ARGV[1], ARGV[2]
local foreign_patience = 300000
local now = time_in_ms()

local function text(number) return string.format('%.0f', number) end

-- The first waiter that is alive, for how long it certainly is, and whether dead ones had to be taken out before it. A
-- waiter of whom no time is known is dead, too.
local function first_alive()
    local purged = false
    while true do
        local head = redis.call('lindex', queue, '0')
        if not head then return nil, 0, purged end
        local ends = redis.call('zscore', slots, head) or redis.call('zscore', timeouts, head) or '0'
        if tonumber(ends) > now then return head, math.ceil(ends - now), purged end
        redis.call('lpop', queue)
        redis.call('zrem', timeouts, head)
        redis.call('zrem', slots, head)
        purged = true
    end
end

-- How many waiters are none of ours. Slots of those whom a foreign client has taken out of the queue are forgotten here.
local function foreign_waiters()
    for _, gone in ipairs(redis.call('zrangebyscore', slots, '-inf', text(now), 'limit', '0', '100')) do
        if not redis.call('zscore', timeouts, gone) then redis.call('zrem', slots, gone) end
    end
    return math.max(redis.call('llen', queue) - redis.call('zcard', slots), 0)
end

local function wake(waiter)
    if not waiter then return 0 end
    return redis.call(publish, channel .. waiter, '0')
end

-- Who becomes the first while somebody holds the lock: after how many ms it is time to ask, if no message comes before.
-- That is a number above those that mean something to Redisson's waiters.
local function tell_next()
    local head = first_alive()
    local left = redis.call('pttl', lock)
    if head and left > 0 and redis.call('zscore', slots, head) then
        redis.call(publish, channel .. head, text(math.max(left, 2)))
    end
end

-- A queue that everybody has forgotten goes, an hour after the last of its times.
local function limit_keys()
    local last = redis.call('zrange', timeouts, '-1', '-1', 'withscores')[2] or now
    local ttl = text(math.max(last - now, 0) + 3600000)
    redis.call('pexpire', queue, ttl)
    redis.call('pexpire', timeouts, ttl)
    redis.call('pexpire', slots, ttl)
end
)lua";

inline constexpr std::string_view fair_acquire = R"lua(
-- KEYS: lock, queue, timeouts, slots.  ARGV: publish command, prefix of the waiters' channels, owner, wanted
-- count (1 = a first hold), lease in ms, slot in ms ('0' = does not queue up), until when it is wanted.
-- Answer: nil = held; n >= 0 = blocked, and n ms later it is time to ask again without any message; -2 = the hold that
-- should be re-entered is gone.
local owner, count, lease, slot, wanted_until = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
if now > tonumber(wanted_until) then return late(now) end
local current = redis.call('hget', lock, owner)
local left = redis.call('pttl', lock)
if current then
    if current ~= count then redis.call('hincrby', lock, owner, count - current) end
    if left < tonumber(lease) then redis.call('pexpire', lock, lease) end
    return nil
end
if count ~= '1' then return -2 end
local free = left == -2
if not free and redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
end

local head, rest, purged = first_alive()
if free and (not head or head == owner) then
    redis.call('hincrby', lock, owner, '1')
    local limited = redis.pcall('pexpire', lock, lease)
    if type(limited) == 'table' then
        -- Not allowed to this user: better no lock than one for ever.
        redis.call('del', lock)
        return limited
    end
    if head then
        redis.call('lpop', queue)
        redis.call('zrem', timeouts, owner)
        redis.call('zrem', slots, owner)
        tell_next()
    end
    return nil
end
if not free and left == -1 then return no_lease() end
if purged then
    if free then wake(head) else tell_next() end
end

if slot ~= '0' then
    local ends = now + slot
    local queued = head and redis.call('zscore', timeouts, owner)
    if not queued then redis.call('rpush', queue, owner) end
    redis.call('zadd', slots, text(ends), owner)
    if not queued then
        redis.call('zadd', timeouts, text(ends + foreign_waiters() * foreign_patience), owner)
    elseif tonumber(queued) < ends then
        redis.call('zadd', timeouts, text(ends), owner)
    end
    limit_keys()
    if not head or head == owner then rest = 0 end
end
if free then return rest end
return left + rest
)lua";

inline constexpr std::string_view fair_release = R"lua(
-- KEYS: lock, queue, timeouts, slots.  ARGV: publish command, prefix of the waiters' channels, owner,
-- count that remains, lease in ms for a remaining hold.
-- Answer: nil = not held by the owner (any more); n >= 0 = released, the next waiter's n listeners told;
-- -1 = still held.
local owner, count, lease = ARGV[3], ARGV[4], ARGV[5]
local current = redis.call('hget', lock, owner)
if not current then
    -- A hold that ran out woke nobody.
    if redis.call('exists', lock) == 0 then wake(first_alive()) end
    return nil
end
if count ~= '0' then
    local left = redis.call('pttl', lock)
    redis.call('pexpire', lock, text(math.max(left, lease)))
    if current ~= count then redis.call('hincrby', lock, owner, count - current) end
    return -1
end
redis.call('del', lock)
return wake(first_alive())
)lua";

inline constexpr std::string_view fair_leave = R"lua(
-- KEYS: lock, queue, timeouts, slots.  ARGV: publish command, prefix of the waiters' channels, owners that want nothing any
-- more: neither a place, nor a hold that an answer did not tell of.
-- Answer: the server's clock. A copy of what they asked for may still arrive until it was wanted.
for i = 3, #ARGV do
    local owner = ARGV[i]
    if redis.call('hexists', lock, owner) == 1 then redis.call('del', lock) end
    redis.call('lrem', queue, '0', owner)
    redis.call('zrem', timeouts, owner)
    redis.call('zrem', slots, owner)
end
if redis.call('exists', lock) == 0 then wake(first_alive()) else tell_next() end
return now
)lua";

inline constexpr std::string_view fair_refresh = R"lua(
-- KEYS: lock, queue, timeouts, slots.  ARGV: publish command, prefix of the waiters' channels, slot in ms, until when it
-- is wanted, then up to 100 waiters.
-- Answer: for each of them 1 = it goes on waiting, 0 = it has no place any more.
-- On this occasion dead waiters at the head are taken out, and a head whose lock is free is told so.
local slot, wanted_until = ARGV[3], ARGV[4]
if now > tonumber(wanted_until) then return late(now) end
-- Under maxmemory Redis refuses ZADD to a script that has not written before.
limit_keys()

local foreign_before = {}
if foreign_waiters() > 0 then
    local foreign = 0
    for _, waiter in ipairs(redis.call('lrange', queue, '0', '-1')) do
        if redis.call('zscore', slots, waiter) then
            foreign_before[waiter] = foreign
        else
            foreign = foreign + 1
        end
    end
end

local waits = {}
for i = 5, #ARGV do
    local waiter = ARGV[i]
    waits[i - 4] = 0
    if redis.call('zscore', timeouts, waiter) then
        local ends = now + slot
        redis.call('zadd', slots, text(ends), waiter)
        redis.call('zadd', timeouts, text(ends + (foreign_before[waiter] or 0) * foreign_patience), waiter)
        waits[i - 4] = 1
    else
        redis.call('zrem', slots, waiter)
    end
end
local head = first_alive()
if head and redis.call('exists', lock) == 0 then wake(head) end
return waits
)lua";

template <const std::string_view&... Bodies>
inline constexpr std::string_view with_fair_queue = joined<wanted_until, fair_queue, Bodies...>;

}  // namespace detail

inline constexpr std::string_view fair_acquire = detail::with_fair_queue<detail::no_lease, detail::fair_acquire>;
inline constexpr std::string_view fair_release = detail::with_fair_queue<detail::fair_release>;
inline constexpr std::string_view fair_leave = detail::with_fair_queue<detail::fair_leave>;
inline constexpr std::string_view fair_refresh = detail::with_fair_queue<detail::fair_refresh>;

}  // namespace redlatch::scripts
