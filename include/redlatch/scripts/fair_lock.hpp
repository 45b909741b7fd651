// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/giving_back.hpp"
#include "redlatch/scripts/hold_levels.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/wanted_until.hpp"

// The scripts of the fair lock. The lock itself is the hash of the reentrant lock. As there, everything that is sent
// twice takes effect once: a hold count is absolute, a waiter has one place. A late command names a hold or a place
// that is gone, or is past the time until which it is wanted.
//
// The queue is Redisson's: a list of the waiting owners, the next one first, and a sorted set with the time until which
// each of them counts as alive, in milliseconds of the server's clock. The slots are a sorted set of our own beside it.
// Each of our waiters refreshes its slot before the slot ends (FairProtocol::slot()), so a dead waiter blocks the others only
// briefly. A waiter of Redisson's has no slot: for it the time in the shared set counts, which we never change.
//
// A release can grant the free lock to the first waiter: it writes that waiter's hold and sends it a message, so the waiter
// sends nothing. Only a waiter that is under the watchdog and listens can be granted the lock. Its slot marks that by ending
// half a millisecond later. A grant lasts for `offer` ms, until the waiter's first renewal. If a release grants nothing, it
// wakes the first waiter, which asks.
//
// When a waiter of Redisson's takes the lock, it lowers the times of all others by its own patience. So our time in the
// shared set is that of the slot, plus one such patience for each waiter of Redisson's before us.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

inline constexpr ScriptText fair_keys = R"lua(
local lock, queue, timeouts, slots = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local publish, channel = ARGV[1], ARGV[2]
)lua";

// A free lock that nobody waits for comes before the functions of the other cases: to define them costs as much as three
// commands.
inline constexpr ScriptText fair_acquire_free = R"lua(
-- KEYS: lock, queue, timeouts, slots.  ARGV: publish command, prefix of the waiters' channels, owner, wanted count
-- (1 = a first hold), lease in ms, slot in ms ('0' = does not queue up), wanted until, '0.5' = can be granted the lock,
-- '0' = not.
-- Answer: nil = held; n >= 0 = blocked, ask again after n ms without a message; -2 = the hold to re-enter is gone.
local owner, count, lease, slot, mark = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[8]
local now = time_in_ms()
if now > tonumber(ARGV[7]) then return late(now) end
if count == '1' and redis.call('exists', lock, queue) == 0 then
    redis.call('hincrby', lock, owner, '1')
    return give_lease(lock, lease)
end
)lua";

inline constexpr ScriptText fair_release_free = R"lua(
-- KEYS: lock, queue, timeouts, slots.  ARGV: publish command, prefix of the waiters' channels, owner, remaining count,
-- lease in ms for a remaining hold.
-- Answer: nil = not held by the owner (any more); n >= 0 = released, n listeners of the next waiter notified;
-- -1 = still held; -3 = released and granted to a waiter.
local owner, count, lease = ARGV[3], ARGV[4], ARGV[5]
local current = redis.call('hget', lock, owner)
if current and count == '0' and redis.call('exists', queue) == 0 then
    redis.call('del', lock)
    return 0
end
local now = time_in_ms()
)lua";

inline constexpr ScriptText fair_now = R"lua(
local now = time_in_ms()
)lua";

// Follows a part that sets `now`.
inline constexpr ScriptText fair_queue = R"lua(
local foreign_patience, offer, most_tries = 300000, 2000, 32

local function text(number) return string.format('%.0f', number) end

-- Returns the first live waiter, for how many ms it certainly is alive, whether dead waiters before it were removed,
-- and the time until which it is alive. A waiter without a time counts as dead too. So its times are removed first:
-- whatever is refused afterwards, it stays dead.
local function first_alive()
    local purged = false
    while true do
        local head = redis.call('lindex', queue, '0')
        if not head then return nil, 0, purged, nil end
        local ends = redis.call('zscore', slots, head) or redis.call('zscore', timeouts, head) or '0'
        if tonumber(ends) > now then return head, math.ceil(ends - now), purged, ends end
        redis.call('zrem', timeouts, head)
        redis.call('zrem', slots, head)
        redis.call('lrem', queue, '0', head)
        purged = true
    end
end

-- Returns how many waiters are foreign. `coming`: how many of ours have a slot but no place in the queue yet. Removes
-- the slots of our waiters that a foreign client has taken out of the queue.
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

-- Returns whether a slot with this end is of a waiter that can be granted the lock.
local function is_marked(ends) return ends and ends % 1 == 0.5 end

-- Notifies the first waiter while the lock is held: in how many ms to ask again if no message comes before. The number
-- is larger than those that mean something to Redisson's waiters. One of those is woken if it may rely on a longer
-- lease. A refusal does no harm: a waiter that is not notified asks when the lease ends that it saw.
local function tell_next(is_shorter)
    local head = first_alive()
    local left = head and redis.pcall('pttl', lock)
    if type(left) ~= 'number' or left == -1 then return end
    local is_ours = redis.call('zscore', slots, head)
    if is_ours or is_shorter then redis.pcall(publish, channel .. head, is_ours and text(math.max(left, 2)) or '0') end
end

-- Returns the change that removes a waiter from `timeouts` or `slots`, where its time ends at `ends`, if it has one. Undoing it
-- may create the key again.
local function removal(key, waiter, ends)
    if not ends then return {'zrem', key, waiter} end
    return {'zrem', key, waiter, undo = {'zadd', key, ends, waiter}, tidy = {'pexpire', key, math.ceil(ends - now) + 3600000}}
end

-- Adds to `changes`: an abandoned queue expires an hour after the last of its times, of which `ends` is one.
local function limit_keys(changes, ends)
    local last = redis.call('zrange', timeouts, '-1', '-1', 'withscores')[2] or now
    local ttl = text(math.max(last, ends) - now + 3600000)
    table.insert(changes, {'pexpire', queue, ttl})
    table.insert(changes, {'pexpire', timeouts, ttl})
    table.insert(changes, {'pexpire', slots, ttl})
end
)lua";

inline constexpr ScriptText fair_acquire = R"lua(
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
        table.insert(changes, removal(timeouts, owner, redis.call('zscore', timeouts, owner)))
        table.insert(changes, removal(slots, owner, alive_until))
        table.insert(changes, {'lrem', queue, '0', owner})
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
    local marked_ends = string.format('%.1f', ends + mark)
    local queued = head and redis.call('zscore', timeouts, owner)
    local changes = {}
    if queued then
        limit_keys(changes, ends)
        table.insert(changes, {'zadd', slots, marked_ends, owner})
        if tonumber(queued) < ends then table.insert(changes, {'zadd', timeouts, text(ends), owner}) end
    else
        local coming = redis.call('zscore', slots, owner) and 1 or 0
        local patient_until = ends + foreign_waiters(coming) * foreign_patience
        table.insert(changes, {'zadd', slots, marked_ends, owner, undo = {'zrem', slots, owner}})
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

// Follows fair_queue.
inline constexpr ScriptText fair_hand_on = R"lua(
-- Writes the hold of a waiter that listens, and tells it. Returns nil if that is not possible; otherwise the answer.
local function grant(waiter, alive_until)
    local patient_until = redis.call('zscore', timeouts, waiter)
    if not patient_until then return nil end
    local changes = {{'hincrby', lock, waiter, '1', undo = {'del', lock}},
                     {'pexpire', lock, text(offer)},
                     removal(timeouts, waiter, patient_until),
                     removal(slots, waiter, alive_until),
                     {'lrem', queue, '0', waiter}}
    if all_or_none(changes) then return nil end
    -- One that is not told learns of its hold when it refreshes its slot.
    local number = string.match(waiter, '%d+$')
    local message = table.concat({'grant', number, text(now), text(offer)}, ' ')
    local told = redis.pcall(publish, channel .. waiter, message)
    tell_next(true)
    return type(told) == 'table' and told or -3
end

-- Grants the free lock to the first waiter, or wakes it. One that can be granted the lock, but does not listen, is dead
-- or about to connect again. It keeps its place, and the next one is tried. Returns the answer.
local function hand_on(head)
    -- Who listens on other nodes is not known.
    if not head or publish == 'publish' then return wake(head) end
    local numsub = publish == 'SPUBLISH' and 'shardnumsub' or 'numsub'
    local waiter = head
    for i = 1, most_tries do
        local ends = waiter and redis.call('zscore', slots, waiter)
        if not is_marked(ends) then break end
        if tonumber(ends) > now then
            local heard = redis.pcall('pubsub', numsub, channel .. waiter)
            if heard.err then break end
            local answer = heard[2] > 0 and grant(waiter, ends)
            if answer then return answer end
        end
        waiter = redis.call('lindex', queue, text(i))
    end
    return wake(head)
end
)lua";

// Follows fair_hand_on.
inline constexpr ScriptText fair_release = R"lua(
if not current then
    -- A hold that expired has woken no waiter.
    if redis.call('exists', lock) == 0 then hand_on(first_alive()) end
    return nil
end
if count ~= '0' then return leave_level(lock, owner, current, count, lease) end
local head = first_alive()
redis.call('del', lock)
return hand_on(head)
)lua";

inline constexpr ScriptText fair_stay = R"lua(
-- KEYS: lock, queue, timeouts, slots.  ARGV: publish command, prefix of the waiters' channels, owner, the owner that
-- takes its place, its lease in ms.
-- Answer: the server's clock, negative if the owner does not hold it. Never creates a key, never prolongs a TTL.
local owner, successor, rest = ARGV[3], ARGV[4], tonumber(ARGV[5])
local count = redis.call('hget', lock, owner)
if not count then return -now end
local refusal = stay(lock, owner, count, successor, rest)
if refusal then return refusal end
-- The first waiter relies on the earlier, longer lease.
tell_next(true)
return now
)lua";

inline constexpr ScriptText fair_leave = R"lua(
-- KEYS: lock, queue, timeouts, slots.  ARGV: publish command, prefix of the waiters' channels, owners that give up:
-- both their place and a hold of which no reply came.
-- Answer: the server's clock. A copy of a request of theirs may still take effect until it is no longer wanted.
local free = redis.call('exists', lock) == 0
for i = 3, #ARGV do
    local owner = ARGV[i]
    local patient_until, alive_until = redis.call('zscore', timeouts, owner), redis.call('zscore', slots, owner)
    local changes = {}
    if redis.call('hexists', lock, owner) == 1 then table.insert(changes, {'del', lock}) end
    table.insert(changes, removal(timeouts, owner, patient_until))
    table.insert(changes, removal(slots, owner, alive_until))
    table.insert(changes, {'lrem', queue, '0', owner})
    local refusal = all_or_none(changes)
    if refusal then return refusal end
    free = free or changes[1][1] == 'del'
end
if free then hand_on(first_alive()) else tell_next() end
return now
)lua";

inline constexpr ScriptText fair_refresh = R"lua(
-- KEYS: lock, queue, timeouts, slots.  ARGV: publish command, prefix of the waiters' channels, slot in ms, wanted
-- until, then up to 100 waiters.
-- Answer: for each of them 1 = still waiting, 0 = it has no place any more.
-- Also removes dead waiters from the head of the queue, and hands on the lock if it is free.
local slot, wanted_until = ARGV[3], ARGV[4]
if now > tonumber(wanted_until) then return late(now) end
local free, foreign_there = redis.call('exists', lock) == 0, foreign_waiters(0) > 0
-- If a later command is refused, all that was written before it is still correct. Under maxmemory Redis refuses ZADD to
-- a script that has not written before, so PEXPIRE comes first.
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
        local mark = is_marked(redis.call('zscore', slots, waiter)) and 0.5 or 0
        redis.call('zadd', slots, string.format('%.1f', ends + mark), waiter)
        redis.call('zadd', timeouts, text(ends + (foreign_before[waiter] or 0) * foreign_patience), waiter)
        waits[i - 4] = 1
    else
        redis.call('zrem', slots, waiter)
    end
end
local head = first_alive()
if head and free then hand_on(head) end
return waits
)lua";

template <const ScriptText&... Bodies>
inline constexpr ScriptText with_fair_queue =
    joined<wanted_until, fair_keys, fair_now, all_or_none, fair_queue, Bodies...>;

}  // namespace parts

inline constexpr ScriptText fair_acquire =
    joined<parts::wanted_until, parts::first_level, parts::fair_keys, parts::fair_acquire_free, parts::all_or_none,
           parts::fair_queue, parts::no_lease, parts::more_levels, parts::fair_acquire>;
inline constexpr ScriptText fair_release =
    joined<parts::wanted_until, parts::fair_keys, parts::fair_release_free, parts::all_or_none, parts::fair_queue,
           parts::fair_hand_on, parts::fewer_levels, parts::fair_release>;
inline constexpr ScriptText fair_stay = parts::with_fair_queue<parts::next_owner, parts::staying, parts::fair_stay>;
inline constexpr ScriptText fair_leave = parts::with_fair_queue<parts::fair_hand_on, parts::fair_leave>;
inline constexpr ScriptText fair_refresh = parts::with_fair_queue<parts::fair_hand_on, parts::fair_refresh>;

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::fair_acquire>{scripts::fair_acquire,
    "e4156417905ecc19af6d89c462cd2b613631a043"};
template <>
inline constexpr Script digested<scripts::fair_leave>{scripts::fair_leave,
    "6b7839de731a65b763b0f3967d4702e9ee2c49ac"};
template <>
inline constexpr Script digested<scripts::fair_refresh>{scripts::fair_refresh,
    "c8e9787822bda7a2b5e98769abcc6b5c0f002bbc"};
template <>
inline constexpr Script digested<scripts::fair_release>{scripts::fair_release,
    "5dc2776684c88a7b4f4606bb0130a5e51e58e013"};
template <>
inline constexpr Script digested<scripts::fair_stay>{scripts::fair_stay,
    "918a37bae4e82ca9b4d9d57e1e0246ad302913d7"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
