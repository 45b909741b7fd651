// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/giving_back.hpp"
#include "redlatch/scripts/hold_levels.hpp"
#include "redlatch/scripts/rlock.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/wanted_until.hpp"

#include <string_view>

// The scripts of a reentrant lock whose waiters queue up on the server. A release grants the lock to the next waiter: it
// writes the hold of that waiter and tells it so, and the waiter has nothing to send. The lock itself is as in rlock.hpp,
// so clients that know nothing of the queue take part as ever.
//
// A process has one place, because inside a process the lock is handed over without the server. Keys beside the lock:
//   queue    a list of client ids, the next one first
//   places   a hash. Client id -> "number lease ends asks kind", where `number` is that of the hold to be granted, `lease`
//            its wanted lease in ms, `ends` the time until which the place counts, `asks` the time at which the waiter
//            asks again without a message, and `kind` is p, or f for a fenced lock: only the release of a fenced lock can
//            grant it, because the hold gets a token. Besides: streak, how many grants there were beside those who do not
//            queue; turn, the time until which our waiters keep out; polled, the time until which some client is known to
//            poll for the lock.
// All times are in milliseconds of the server's clock.
//
// Each client listens to a channel of its own, that of the lock with its id. The messages there:
//   grant <number> <time> <lease> [<token>]   the lock was granted to this number at that time, for that lease
//   look <ms>                                 ask after that time, because nobody tells what happens then
//
// A grant lasts for `offer` ms at most. So a waiter that is frozen, or has died unnoticed, blocks others for that time.
// The waiter's first renewal gives it the full lease. The next two waiters ask when the grant ends, the second a little
// later. So it takes three in a row that are frozen, or have died unnoticed, to leave the others waiting for the lease
// that they saw.
//
// Clients that do not queue (of Redisson, of older versions, pollers, members of a MultiLock) get a turn after
// `most_grants` grants beside them, if there are any: then our waiters keep out for `turn_length` ms.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

// Precedes lock_queue. A fenced lock has the functions of these names: see scripts/fenced_queue.hpp.
inline constexpr std::string_view unfenced{R"lua(
local next_token, last_token, no_token
)lua"};

// Precedes the others. `publish` and `now` are set before the functions are called.
inline constexpr std::string_view lock_queue{R"lua(
-- `counter` is that of the tokens, nil for a lock without them.
local lock, channel, queue, places, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local publish, now
local offer, most_grants, turn_length, place_length, most_tries = 2000, 16, 20, 60000, 32
local stand_in = 400

local function text(number) return string.format('%.0f', number) end

-- Returns the number, the lease, the end, the next question and the kind of a client's place; nil without one.
local function place_of(id)
    local place = redis.call('hget', places, id)
    if not place then return nil end
    local number, lease, ends, asks, kind = string.match(place, '^(%d+) (%d+) (%d+) (%d+) (%l)$')
    return number, tonumber(lease), tonumber(ends), tonumber(asks), kind
end

local function place_text(number, lease, ends, asks, kind)
    return table.concat({number, text(lease), text(ends), text(asks), kind}, ' ')
end

-- What a script has done to the lock stands, also without a right to change the queue.
local function if_permitted(change)
    return function(...)
        local done, result = pcall(change, ...)
        return done and result
    end
end

-- The streak outlives a queue that is empty for a moment.
local end_places = if_permitted(function()
    if redis.call('exists', queue) == 0 then redis.call('pexpire', places, '1000') end
end)

-- Without a right to one of these, the id is still in the queue.
local function drop_head(id)
    redis.call('hdel', places, id)
    redis.call('lrem', queue, '0', id)
    end_places()
end

-- Drops the first of the queue, which seems to be gone. If it is there after all (the clock has jumped), it asks.
local function turn_away(id)
    drop_head(id)
    redis.pcall(publish, channel .. ':' .. id, 'look 0')
end

-- Returns the time until which a field of `places` says that something is so.
local function until_of(field) return tonumber(redis.call('hget', places, field) or '0') end

-- Returns true if the release of the holder grants nothing. Clients of which a release grants have ids of version 8.
local function is_foreign()
    local holder = redis.pcall('hkeys', lock)[1]
    return not holder or string.sub(holder, 15, 15) ~= '8'
end

-- Tells the head of the queue that a lease ends at `at`, and the next one that it ends a little later: the head may be
-- frozen. Who asks about then anyway is not told. Returns true if somebody asks.
local tell_head = if_permitted(function(at)
    local found, soon_enough = 0, at + stand_in + 50
    for _ = 1, most_tries do
        local id = redis.call('lindex', queue, text(found))
        if not id then break end
        local number, lease, ends, asks, kind = place_of(id)
        local is_there = false
        if number and ends > now then
            -- One that should have asked long ago may be gone.
            is_there = asks <= soon_enough and asks > now - stand_in
            if not is_there then
                redis.call('hset', places, id, place_text(number, lease, ends, at, kind))
                local heard = redis.pcall(publish, channel .. ':' .. id, 'look ' .. text(math.max(at - now, 0)))
                is_there = heard ~= 0
            end
        end
        if is_there then
            found = found + 1
            if found == 2 then break end
            at = at + stand_in
        else
            turn_away(id)
        end
    end
    return found > 0
end)

-- Removes the place of a number, if it is that of its client.
local leave_place = if_permitted(function(owner)
    local id = string.sub(owner, 1, 36)
    if place_of(id) ~= string.sub(owner, 38) then return end
    redis.call('hdel', places, id)
    redis.call('lrem', queue, '0', id)
    end_places()
end)
)lua"};

inline constexpr std::string_view unfenced_acquire{R"lua(
-- Each writes the hold and returns the answer.
local function enter(lock, counter, owner, lease)
    redis.call('hincrby', lock, owner, '1')
    return give_lease(lock, lease)
end
local function reenter(owner, current, count, lease) return enter_again(lock, owner, current, count, lease) end
local function is_refusal(answer) return answer ~= nil end
local function gone() return -2 end
local function blocked(left, foreign)
    if foreign then return {left, foreign} end
    return left
end
)lua"};

inline constexpr std::string_view queue_acquire{R"lua(
-- KEYS: lock, channel, queue, places (, token counter).  ARGV: owner, wanted count (1 = a first hold), lease in ms, wanted
-- until, publish command, way ('0' = asks once, '1' = queues up, '2' = polls).
-- Answer: nil = held; n >= 0 = blocked for n ms, with no place in the queue; {n, 0} = blocked, with a place;
-- {n, 1} = likewise, and the holder's release grants nothing; -2 = the hold to re-enter is gone. Of a fenced lock:
-- {1, token}, {0, n}, {0, n, 0}, {0, n, 1}, {-2, 0}.
local owner, count, lease, way = ARGV[1], ARGV[2], ARGV[3], ARGV[6]
publish, now = ARGV[5], time_in_ms()
if now > tonumber(ARGV[4]) then return late(now) end
if redis.call('exists', lock, places) == 0 then
    if count ~= '1' then return gone() end
    return enter(lock, counter, owner, lease)
end
local current = redis.call('hget', lock, owner)
if not current and count ~= '1' then return gone() end
-- In a read-write lock this owner may be a reader, which is not a hold of this lock.
if redis.call('hexists', lock, 'mode') == 1 then
    return redis.error_reply('WRONGTYPE the key holds a read-write lock')
end
if current then return reenter(owner, current, count, lease) end
local left = redis.call('pttl', lock)
if left == -1 then return no_lease() end
local id = string.sub(owner, 1, 36)
local foreign = 0
if left == -2 then
    left = until_of('turn') - now
    if left <= 0 or way == '2' then
        local answer = enter(lock, counter, owner, lease)
        if is_refusal(answer) then return answer end
        leave_place(owner)
        tell_head(now + lease)
        return answer
    end
else
    foreign = is_foreign() and 1 or 0
end
if way == '2' and redis.call('exists', places) == 1 then redis.pcall('hset', places, 'polled', text(now + 500)) end
-- A command in lower case reaches subscribers of other nodes, who cannot be counted: no queue.
if way ~= '1' or publish == 'publish' then return blocked(left) end

local changes = {}
local is_new = redis.call('hexists', places, id) == 0
if is_new then table.insert(changes, {'rpush', queue, id, undo = {'lrem', queue, '-1', id}}) end
local kind = counter and 'f' or 'p'
local place = place_text(string.sub(owner, 38), lease, now + place_length, now + left, kind)
table.insert(changes, {'hset', places, id, place, undo = is_new and {'hdel', places, id}})
table.insert(changes, {'pexpire', queue, text(2 * place_length)})
table.insert(changes, {'pexpire', places, text(2 * place_length)})
-- One that may not queue up waits as ever.
if all_or_none(changes) then return blocked(left) end
return blocked(left, foreign)
)lua"};

// Releases levels of a hold, and hands the free lock on.
inline constexpr std::string_view queue_release{R"lua(
-- KEYS: lock, channel, queue, places (, token counter).
-- Answer: nil = not held by the owner (any more); n >= 0 = released, n listeners notified; -1 = still held;
-- -3 = released and granted to a waiter.

-- Writes the hold of the head of the queue, and tells it. Returns true, for how long it holds the lock, and whether
-- somebody in the queue asks then; false if it was not told, and does not hold it; nil if it may not hold the lock.
local function grant(head, number, lease, ends, kind)
    local token
    if kind == 'f' then
        token = counter and next_token(counter)
        if not token then return nil end
    end
    drop_head(head) -- first, because it may not be permitted
    local length = math.min(lease, offer, ends - now)
    local written = {{'hincrby', lock, head .. ':' .. number, '1', undo = {'del', lock}},
                     {'pexpire', lock, text(length)}}
    if token then table.insert(written, {'set', counter, text(token)}) end
    if all_or_none(written) then return nil end
    local message = table.concat({'grant', number, text(now), text(length), token and text(token)}, ' ')
    if type(redis.pcall(publish, channel .. ':' .. head, message)) == 'table' then
        redis.call('del', lock)
        return false
    end
    return true, length, tell_head(now + length)
end

-- Our waiters keep out for a while.
local function give_turn()
    redis.call('hset', places, 'streak', '0', 'turn', text(now + turn_length))
    for _, id in ipairs(redis.call('lrange', queue, '0', text(most_tries - 1))) do
        redis.pcall(publish, channel .. ':' .. id, 'look ' .. text(turn_length))
    end
    return redis.call(publish, channel, '0')
end

-- Grants the free lock to the first waiter that can be reached, or notifies whoever listens.
local function grant_or_notify(left)
    local numsub = publish == 'SPUBLISH' and 'shardnumsub' or 'numsub'
    local head = redis.call('lindex', queue, '0')
    for _ = 1, most_tries do
        if not head then return redis.call(publish, channel, '0') end
        now = now or time_in_ms()
        local own = channel .. ':' .. head
        local number, lease, ends, _, kind = place_of(head)
        if number and ends > now + 100 then
            local heard = redis.pcall('pubsub', numsub, own, channel)
            if heard.err then
                -- Without the right to count listeners, the waiter has to ask, if it is there.
                local told = redis.call(publish, own, 'look 0')
                if told ~= 0 then return told end
            elseif heard[2] > 0 then
                local others = heard[4] > 0 or until_of('polled') > now
                if others and redis.call('hincrby', places, 'streak', '1') > most_grants then return give_turn() end
                local granted, length, somebody_asks = grant(head, number, lease, ends, kind)
                if granted == nil then return redis.call(publish, own, 'look 0') end
                if granted then
                    -- Some wait for the end of this hold alone: they understand '2', which waiters for the lock ignore.
                    -- Those rely on the earlier lease: wake them if it was longer. The grant itself may be over before,
                    -- if its waiter is frozen: then one of the queue asks, if there is any.
                    local is_shorter = lease < left or (length < left and not somebody_asks)
                    if heard[4] > 0 then redis.pcall(publish, channel, is_shorter and '0' or '2') end
                    return -3
                end
            end
        end
        if redis.call('lindex', queue, '0') == head then turn_away(head) end
        head = redis.call('lindex', queue, '0')
    end
    if head then redis.pcall(publish, channel .. ':' .. head, 'look 0') end
    return redis.call(publish, channel, '0')
end

-- The same, also without a right to read or change the queue: the lock is free, so those who wait have to ask. `left`:
-- how long the released hold would have lasted. Returns the answer.
local function hand_on(left)
    local done, answer = pcall(grant_or_notify, left)
    if done then return answer end
    for i = 0, most_tries - 1 do
        local waiter = redis.pcall('lindex', queue, text(i))
        if type(waiter) ~= 'string' then break end
        local told = redis.pcall(publish, channel .. ':' .. waiter, 'look 0')
        if type(told) == 'number' and told > 0 then break end
    end
    return redis.call(publish, channel, '0')
end

local function release(owner, count, lease, command)
    publish = command
    local current = redis.call('hget', lock, owner)
    if not current then return nil end
    if count ~= '0' then return leave_level(lock, owner, current, count, lease) end
    local left = redis.call('pttl', lock)
    redis.call('del', lock)
    return hand_on(left)
end
)lua"};

inline constexpr std::string_view queue_give_up{R"lua(
-- The same for a number of which no client knows whether it has a hold or a place.
local release_hold = release
release = function(owner, count, lease, command)
    publish, now = command, time_in_ms()
    leave_place(owner)
    local answer = release_hold(owner, count, lease, command)
    if answer then return answer end
    local left = redis.call('pttl', lock)
    -- This waiter may have been the one that asks next, or that listens to a release that grants nothing: then the next
    -- one asks now, and listens.
    if left >= 0 then
        tell_head(is_foreign() and now or now + left)
        return nil
    end
    if left == -2 and redis.call('exists', queue) == 1 then
        local turn = until_of('turn')
        -- A hold that expired has woken nobody.
        if turn <= now then hand_on(0) else tell_head(turn) end
    end
    return nil
end
)lua"};

inline constexpr std::string_view queue_stay{R"lua(
-- KEYS: lock, channel, queue, places.  ARGV: owner, the owner that takes its place, its lease in ms, publish command.
-- Answer: the server's clock, negative if the owner does not hold it. Never creates a key, never prolongs a TTL.
local owner, heir, rest = ARGV[1], ARGV[2], tonumber(ARGV[3])
publish, now = ARGV[4], time_in_ms()
local count = redis.call('hget', lock, owner)
if not count then return -now end
local refusal, lease, left = stay(lock, owner, count, heir, rest)
if refusal then return refusal end
-- Waiters rely on the earlier, longer lease: wake them.
if lease ~= left then
    redis.pcall(publish, channel, '0')
    tell_head(now + lease)
end
return now
)lua"};

inline constexpr std::string_view queue_hand_over{R"lua(
-- KEYS: lock, channel, queue, places (, token counter).  ARGV: owner, next owner, the next owner's lease in ms, publish
-- command, wanted until.
-- Answer: 1 = the next owner holds it; of a fenced lock {1, token}; nil = neither of them does.
local owner, heir, lease, wanted_until = ARGV[1], ARGV[2], ARGV[3], ARGV[5]
publish = ARGV[4]
if redis.call('hexists', lock, heir) == 1 then
    -- An earlier copy has done it, and drew the last token.
    if not counter then return 1 end
    local token = last_token(counter)
    if not token then return no_token() end
    return {1, token}
end
local count = redis.call('hget', lock, owner)
if not count then return nil end
now = time_in_ms()
if now > tonumber(wanted_until) then return late(now) end
local token = counter and next_token(counter)
if counter and not token then return no_token() end
local left = redis.call('pttl', lock)
local refusal = replace(lock, owner, count, heir, lease, left)
if refusal then return refusal end
local drawn = counter and redis.pcall('set', counter, text(token))
if drawn and drawn.err then
    put_back(lock, owner, count, left)
    return drawn
end
-- Other waiters rely on the earlier, longer lease: wake them.
if left > tonumber(lease) then
    redis.pcall(publish, channel, '0')
    tell_head(now + lease)
end
return counter and {1, token} or 1
)lua"};

}  // namespace parts

inline constexpr std::string_view queue_acquire =
    joined<parts::wanted_until, parts::no_lease, parts::all_or_none, parts::levels, parts::unfenced, parts::lock_queue,
           parts::unfenced_acquire, parts::queue_acquire>;
inline constexpr std::string_view queue_release =
    joined<parts::wanted_until, parts::leaving_levels, parts::unfenced, parts::lock_queue, parts::queue_release,
           parts::release_levels>;
inline constexpr std::string_view queue_give_up =
    joined<parts::wanted_until, parts::leaving_levels, parts::unfenced, parts::lock_queue, parts::queue_release,
           parts::queue_give_up, parts::give_up>;
inline constexpr std::string_view queue_stay =
    joined<parts::wanted_until, parts::next_owner, parts::staying, parts::lock_queue, parts::queue_stay>;
inline constexpr std::string_view queue_hand_over =
    joined<parts::wanted_until, parts::next_owner, parts::unfenced, parts::lock_queue, parts::queue_hand_over>;

}  // namespace scripts

// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::queue_acquire>{scripts::queue_acquire,
    "75c9812925778eee71caad7df4938aa7dde3082c"};
template <>
inline constexpr Script digested<scripts::queue_give_up>{scripts::queue_give_up,
    "4fad8515c0dd369a2d2f8d3cefd15165bf087a4e"};
template <>
inline constexpr Script digested<scripts::queue_hand_over>{scripts::queue_hand_over,
    "2af573b4eb7d288c672e7ccea8c06d20f5899829"};
template <>
inline constexpr Script digested<scripts::queue_release>{scripts::queue_release,
    "f8c7e0be69fd3644eabb6d8b3c8306906d77ec48"};
template <>
inline constexpr Script digested<scripts::queue_stay>{scripts::queue_stay,
    "48ef5b84e54260f488eb318642ec469c7351047b"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
