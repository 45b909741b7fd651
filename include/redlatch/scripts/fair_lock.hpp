// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/giving_back.hpp"
#include "redlatch/scripts/hold_levels.hpp"
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
namespace redlatch {
inline namespace v0_1 {
namespace scripts {

namespace detail {

inline constexpr std::string_view fair_queue = R"lua(
local lock, queue, timeouts, slots = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local publish, channel = ARGV[1], ARGV[2]
local foreign_patience = 300000
local now = time_in_ms()

local function text(number) return string.format('%.0f', number) end

-- The first waiter that is alive, for how long it certainly is, whether dead ones had to be taken out before it, and until
-- when it is alive. A waiter of whom no time is known is dead, too, so its times go first: whatever is refused, it stays
-- dead.
local function first_alive()
    local purged = false
    while true do
        local head = redis.call('lindex', queue, '0')
        if not head then return nil, 0, purged, nil end
        local ends = redis.call('zscore', slots, head) or redis.call('zscore', timeouts, head) or '0'
        if tonumber(ends) > now then return head, math.ceil(ends - now), purged, ends end
        redis.call('zrem', timeouts, head)
        redis.call('zrem', slots, head)
        redis.call('lpop', queue)
        purged = true
    end
end

-- How many waiters are none of ours, where so many of ours have a slot and are yet to queue up. Slots of those whom a
-- foreign client has taken out of the queue are forgotten here.
local function foreign_waiters(coming)
    for _, gone in ipairs(redis.call('zrangebyscore', slots, '-inf', text(now), 'limit', '0', '100')) do
        if not redis.call('zscore', timeouts, gone) then redis.call('zrem', slots, gone) end
    end
    return math.max(redis.call('llen', queue) + coming - redis.call('zcard', slots), 0)
end

local function wake(waiter)
    if not waiter then return 0 end
    return redis.call(publish, channel .. waiter, '0')
end

-- Who becomes the first while somebody holds the lock: after how many ms it is time to ask, if no message comes before.
-- That is a number above those that mean something to Redisson's waiters. Refused, it is no harm: who is not told asks when
-- the present holder's lease is over.
local function tell_next()
    local head = first_alive()
    local left = redis.pcall('pttl', lock)
    if head and type(left) == 'number' and left > 0 and redis.call('zscore', slots, head) then
        redis.pcall(publish, channel .. head, text(math.max(left, 2)))
    end
end

-- Adds to `changes`: a queue that everybody has forgotten goes, an hour after the last of its times, of which `ends` is
-- one.
local function limit_keys(changes, ends)
    local last = redis.call('zrange', timeouts, '-1', '-1', 'withscores')[2] or now
    local ttl = text(math.max(last, ends) - now + 3600000)
    table.insert(changes, {'pexpire', queue, ttl})
    table.insert(changes, {'pexpire', timeouts, ttl})
    table.insert(changes, {'pexpire', slots, ttl})
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
if current then return enter_again(lock, owner, current, count, lease) end
local left = redis.call('pttl', lock)
if count ~= '1' then return -2 end
local free = left == -2
if not free and redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
end

local head, rest, purged, alive_until = first_alive()
if free and (not head or head == owner) then
    local changes = {{'hincrby', lock, owner, '1', undo = {'del', lock}}, {'pexpire', lock, lease}}
    if head then
        table.insert(changes, {'zrem', timeouts, owner, undo = {'zadd', timeouts, alive_until, owner}})
        table.insert(changes, {'zrem', slots, owner, undo = {'zadd', slots, alive_until, owner}})
        table.insert(changes, {'lpop', queue})
    end
    local refusal = all_or_none(changes)
    if head and not refusal then tell_next() end
    return refusal
end
if not free and left == -1 then return no_lease() end
if purged then
    if free then wake(head) else tell_next() end
end

if slot ~= '0' then
    local ends = now + slot
    local queued = head and redis.call('zscore', timeouts, owner)
    local changes = {}
    if queued then
        limit_keys(changes, ends)
        table.insert(changes, {'zadd', slots, text(ends), owner})
        if tonumber(queued) < ends then table.insert(changes, {'zadd', timeouts, text(ends), owner}) end
    else
        local coming = redis.call('zscore', slots, owner) and 1 or 0
        local patient_until = ends + foreign_waiters(coming) * foreign_patience
        table.insert(changes, {'zadd', slots, text(ends), owner, undo = {'zrem', slots, owner}})
        table.insert(changes, {'zadd', timeouts, text(patient_until), owner, undo = {'zrem', timeouts, owner}})
        table.insert(changes, {'rpush', queue, owner, undo = {'lrem', queue, '-1', owner}})
        limit_keys(changes, patient_until)
    end
    local refusal = all_or_none(changes)
    if refusal then return refusal end
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
if count ~= '0' then return leave_level(lock, owner, current, count, lease) end
local head = first_alive()
redis.call('del', lock)
return wake(head)
)lua";

inline constexpr std::string_view fair_leave = R"lua(
-- KEYS: lock, queue, timeouts, slots.  ARGV: publish command, prefix of the waiters' channels, owners that want nothing any
-- more: neither a place, nor a hold that an answer did not tell of.
-- Answer: the server's clock. A copy of what they asked for may still arrive until it was wanted.
local free = redis.call('exists', lock) == 0
for i = 3, #ARGV do
    local owner = ARGV[i]
    local patient_until, alive_until = redis.call('zscore', timeouts, owner), redis.call('zscore', slots, owner)
    local changes = {}
    if redis.call('hexists', lock, owner) == 1 then table.insert(changes, {'del', lock}) end
    table.insert(changes, {'zrem', timeouts, owner,
                           undo = patient_until and {'zadd', timeouts, patient_until, owner}})
    table.insert(changes, {'zrem', slots, owner, undo = alive_until and {'zadd', slots, alive_until, owner}})
    table.insert(changes, {'lrem', queue, '0', owner})
    local refusal = all_or_none(changes)
    if refusal then return refusal end
    free = free or changes[1][1] == 'del'
end
if free then wake(first_alive()) else tell_next() end
return now
)lua";

inline constexpr std::string_view fair_refresh = R"lua(
-- KEYS: lock, queue, timeouts, slots.  ARGV: publish command, prefix of the waiters' channels, slot in ms, until when it
-- is wanted, then up to 100 waiters.
-- Answer: for each of them 1 = it goes on waiting, 0 = it has no place any more.
-- On this occasion dead waiters at the head are taken out, and a head whose lock is free is told so.
local slot, wanted_until = ARGV[3], ARGV[4]
if now > tonumber(wanted_until) then return late(now) end
local free, foreign_there = redis.call('exists', lock) == 0, foreign_waiters(0) > 0
-- Whatever of the rest is refused, what was done of it is true. Under maxmemory Redis refuses ZADD to a script that has not written before.
local limits = {}
limit_keys(limits, now + slot)
local refusal = all_or_none(limits)
if refusal then return refusal end

local foreign_before = {}
if foreign_there then
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
if head and free then wake(head) end
return waits
)lua";

template <const std::string_view&... Bodies>
inline constexpr std::string_view with_fair_queue = joined<wanted_until, all_or_none, fair_queue, Bodies...>;

}  // namespace detail

inline constexpr std::string_view fair_acquire =
    detail::with_fair_queue<detail::no_lease, detail::more_levels, detail::fair_acquire>;
inline constexpr std::string_view fair_release = detail::with_fair_queue<detail::fewer_levels, detail::fair_release>;
inline constexpr std::string_view fair_leave = detail::with_fair_queue<detail::fair_leave>;
inline constexpr std::string_view fair_refresh = detail::with_fair_queue<detail::fair_refresh>;

}  // namespace scripts
}  // namespace v0_1
}  // namespace redlatch
