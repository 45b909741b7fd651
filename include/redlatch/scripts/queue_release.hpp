// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/giving_back.hpp"
#include "redlatch/scripts/hold_levels.hpp"
#include "redlatch/scripts/lock_queue.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/wanted_until.hpp"

// How a lock of lock_queue.hpp is released, and handed on. As in queue_acquire.hpp, the common case comes first.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

// Nobody queues.
inline constexpr ScriptText queue_release_free{R"lua(
-- KEYS: lock, channel, queue, places (, token counter).  ARGV: owner, remaining count, lease in ms for a remaining hold,
-- publish command.
-- Answer: nil = not held by the owner (any more); n >= 0 = released, n listeners notified; -1 = still held;
-- -3 = released and granted to a waiter.
local owner, count = ARGV[1], ARGV[2]
publish = ARGV[4]
local current = redis.call('hget', lock, owner)
if not current then return nil end
local ids = count == '0' and redis.pcall('lrange', queue, '0', '2')
if ids and not ids.err and not ids[1] then
    redis.call('del', lock)
    return redis.call(publish, channel, '0')
end
)lua"};

// Enclose the functions of the uncommon cases, which are defined when they are needed: to define them always would cost a
// granting release as much as three commands.
inline constexpr ScriptText queue_uncommon{R"lua(
local function uncommon()
)lua"};
inline constexpr ScriptText queue_uncommon_end{R"lua(
return {tell_head = tell_head, turn_away = turn_away, give_turn = give_turn, message_of_grant = message_of_grant}
end
)lua"};

// Precedes a `grant`.
inline constexpr ScriptText queue_undo{R"lua(
-- Undoes the write of a hold that nobody knows of. Access rights may allow one of these commands and not the other.
local function undo_write(key)
    if type(redis.pcall('del', key)) == 'table' then redis.call('pexpire', key, '0') end
end
)lua"};

// Precedes a `grant_or_notify`.
inline constexpr ScriptText queue_turn{R"lua(
-- Returns what those who do not queue are told of a grant. They rely on the released hold, which would have lasted for
-- `left`. Some wait for the end of a hold alone: they understand '2', which waiters for the lock ignore. Those are woken if
-- the lease that the waiter asked for is shorter. The grant itself may be over before, if its waiter is frozen or loses it:
-- then one of the queue asks. As long as one does, the message is owed.
local function message_of_grant(wanted, lasts, left, somebody_asks)
    if wanted < left or (lasts < left and not somebody_asks) then return '0' end
    if lasts < left then redis.pcall('hset', places, 'owed', '1') end
    return '2'
end

-- Our waiters keep out for a while. `message`: to those who do not queue.
local function give_turn(message)
    redis.call('hset', places, 'streak', '0', 'turn', text(now + turn_length))
    for _, id in ipairs(redis.call('lrange', queue, '0', text(most_tries - 1))) do
        redis.pcall(publish, channel .. ':' .. id, 'look ' .. text(turn_length))
    end
    return redis.call(publish, channel, message)
end
)lua"};

// Follows it.
inline constexpr ScriptText queue_notify{R"lua(
-- Does the same as grant_or_notify(), also without a right to read or change the queue: the lock is free, so those who wait
-- have to ask.
local function hand_on(left, message, ids)
    local done, answer = pcall(grant_or_notify, left, message, ids)
    if done then return answer end
    for i = 0, most_tries - 1 do
        local waiter = redis.pcall('lindex', queue, text(i))
        if type(waiter) ~= 'string' then break end
        local told = redis.pcall(publish, channel .. ':' .. waiter, 'look 0')
        if type(told) == 'number' and told > 0 then break end
    end
    return redis.call(publish, channel, message)
end
)lua"};

// Hands the free lock on.
inline constexpr ScriptText queue_hand_on{R"lua(
-- Writes the hold of the head of the queue, and tells it. Returns for how long it holds the lock; false if it was not told,
-- and does not hold it; nil if it may not hold the lock.
local function grant(head, number, lease, ends, kind)
    local token
    if kind == 'f' then
        token = counter and next_token(counter)
        if not token then return nil end
    end
    drop(head) -- first, because it may not be permitted
    local length = math.min(lease, offer, ends - now)
    local function write()
        redis.call('hincrby', lock, head .. ':' .. number, '1')
        redis.call('pexpire', lock, text(length))
        if token then redis.call('set', counter, text(token)) end
    end
    if not pcall(write) then
        undo_write(lock)
        return nil
    end
    local message = string.format('grant %s %.0f %.0f', number, now, length)
    if token then message = message .. ' ' .. text(token) end
    if type(redis.pcall(publish, channel .. ':' .. head, message)) == 'table' then
        undo_write(lock)
        return false
    end
    return length
end

-- Grants the free lock to the first waiter that listens, or notifies whoever listens. `left`: how long the released hold
-- would have lasted. `message`: that of a release that grants nothing. `ids`: the first three of the queue, if they are
-- known. Returns the answer.
local function grant_or_notify(left, message, ids)
    local numsub = publish == 'SPUBLISH' and 'shardnumsub' or 'numsub'
    now = now or time_in_ms()
    for _ = 1, most_tries do
        ids = ids or redis.call('lrange', queue, '0', '2')
        local head = ids[1]
        if not head then break end
        local own = channel .. ':' .. head
        local known = redis.call('hmget', places, 'polled', unpack(ids))
        local number, lease, ends, _, kind = parts_of(known[2])
        if number and ends > now + 100 then
            local told = 0
            -- PUBLISH would count those, too, who listen to all channels by a pattern.
            local heard = redis.pcall('pubsub', numsub, own, channel)
            if heard.err then
                -- Without the right to count listeners, the waiter has to ask, if it is there.
                told = redis.call(publish, own, 'look 0')
            elseif heard[2] > 0 then
                -- Those who listen at other nodes are not counted: see Routes.
                local others_listen = heard[4] > 0 or publish == 'Publish'
                if (others_listen or time_left(known[1]) > 0) and
                        redis.call('hincrby', places, 'streak', '1') > most_grants then
                    return uncommon().give_turn(message)
                end
                local length = grant(head, number, lease, ends, kind)
                if length == nil then told = redis.call(publish, own, 'look 0') end
                if length then
                    local at = now + length
                    local somebody_asks = ids[2] and is_asking(known[3], at) and (not ids[3] or is_asking(known[4], at))
                    if not ids[2] then
                        end_places()
                    elseif not somebody_asks then
                        somebody_asks = uncommon().tell_head(at)
                    end
                    if others_listen then
                        message = uncommon().message_of_grant(lease, length, left, somebody_asks)
                        redis.pcall(publish, channel, message)
                    end
                    return -3
                end
            end
            if told ~= 0 then
                redis.pcall(publish, channel, message)
                return told
            end
        end
        if redis.call('lindex', queue, '0') == head then uncommon().turn_away(head) end
        ids = nil
    end
    uncommon().tell_head(now)
    return redis.call(publish, channel, message)
end
)lua"};

// Enclose the functions that leave a level of a hold.
inline constexpr ScriptText queue_release_level{R"lua(
if count ~= '0' then
)lua"};
inline constexpr ScriptText queue_level_left{R"lua(
return leave_level(lock, owner, current, count, ARGV[3])
end
)lua"};

inline constexpr ScriptText queue_release{R"lua(
local left = redis.call('pttl', lock)
redis.call('del', lock)
return hand_on(left, '0', not ids.err and ids or nil)
)lua"};

inline constexpr ScriptText queue_give_up{R"lua(
-- Releases a number of which no client knows whether it has a hold or a place.
local function release(owner, count, lease, command)
    publish, now = command, time_in_ms()
    leave_place(string.sub(owner, 1, 36), string.sub(owner, 38))
    local is_held = redis.call('hget', lock, owner)
    if is_held and redis.pcall('exists', queue) == 0 then
        redis.call('del', lock)
        return redis.call(publish, channel, '0')
    end
    local left = redis.call('pttl', lock)
    if is_held then
        redis.call('del', lock)
        return hand_on(left, '0')
    end
    -- This waiter may have been the one that asks next, or that listens to a release that grants nothing: then the next
    -- one asks now, and listens.
    if left >= 0 then
        tell_head(is_foreign(redis.pcall('hkeys', lock)[1]) and now or now + left)
        return nil
    end
    if left == -2 and redis.call('exists', queue) == 1 then
        local turn = left_of('turn')
        -- A hold that expired has woken nobody.
        if turn == 0 then hand_on(0, '0') else tell_head(now + turn) end
    end
    return nil
end
)lua"};

inline constexpr ScriptText queue_leave_level = joined<queue_release_level, leaving_levels, queue_level_left>;
inline constexpr ScriptText queue_granting =
    joined<queue_first, queue_uncommon, queue_words, queue_others, queue_turn, queue_uncommon_end, queue_undo,
           queue_hand_on, queue_notify, queue_release>;
inline constexpr ScriptText queue_giving_up =
    joined<lock_queue, queue_places, queue_turn, queue_uncommon, queue_uncommon_end, queue_undo, queue_hand_on,
           queue_notify, queue_give_up, give_up>;

}  // namespace parts

inline constexpr ScriptText queue_release = joined<parts::wanted_until, parts::queue_names, parts::queue_release_free,
                                                   parts::queue_leave_level, parts::unfenced, parts::queue_granting>;
inline constexpr ScriptText queue_give_up =
    joined<parts::wanted_until, parts::queue_keys, parts::unfenced, parts::queue_giving_up>;

}  // namespace scripts

// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::queue_give_up>{scripts::queue_give_up,
    "05b22fd2b205e4c81b02fe1a8842d7f23eff9ea8"};
template <>
inline constexpr Script digested<scripts::queue_release>{scripts::queue_release,
    "ff911a3436c76208339a3859c19e5d9ce4728bb6"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
