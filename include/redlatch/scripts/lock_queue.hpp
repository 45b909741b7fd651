// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/hold_levels.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/wanted_until.hpp"

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
//            poll for the lock; owed, 1 if those who do not queue rely on a lease that a grant has cut short.
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
inline constexpr ScriptText unfenced{R"lua(
local next_token, last_token, drawing, no_token
)lua"};

// Follows the names of the keys. `publish` and `now` are set before the functions are called.
inline constexpr ScriptText queue_words{R"lua(
local function place_text(number, lease, ends, asks, kind)
    return string.format('%s %s %.0f %.0f %s', number, lease, ends, asks, kind)
end

-- Returns true if the release of this holder grants nothing. Clients of which a release grants have ids of version 8.
local function is_foreign(holder) return not holder or string.sub(holder, 15, 15) ~= '8' end
)lua"};

// Precedes the others.
inline constexpr ScriptText queue_names{R"lua(
-- `counter` is that of the tokens, nil for a lock without them.
local lock, channel, queue, places, counter = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local publish, now
)lua"};
inline constexpr ScriptText queue_keys = joined<queue_names, queue_words>;

// What every script needs that looks at a place.
inline constexpr ScriptText queue_first{R"lua(
local offer, most_grants, turn_length, most_tries, stand_in = 2000, 8, 20, 32, 400

local function text(number) return string.format('%.0f', number) end

-- Returns the number, the lease, the end, the next question and the kind of a place; nil without one.
local function parts_of(place)
    local number, lease, ends, asks, kind = string.match(place or '', '^(%d+) (%d+) (%d+) (%d+) (%l)$')
    return number, tonumber(lease), tonumber(ends), tonumber(asks), kind
end

-- Returns true if the client of this place asks by itself when a lease ends at `at`. One that should have asked long ago
-- may be gone.
local function is_asking(place, at)
    local ends, asks = string.match(place or '', ' (%d+) (%d+) %l$')
    if not ends or tonumber(ends) <= now then return false end
    asks = tonumber(asks)
    return asks <= at + stand_in + 50 and asks > now - stand_in
end

-- Returns for how many ms a time of `places` is ahead; 0 if it is over, or further ahead than any is set: then the clock has
-- stepped back since.
local function time_left(ends)
    local left = tonumber(ends or '0') - now
    return left <= 500 and math.max(left, 0) or 0
end

-- Without a right to one of these, the id is still in the queue.
local function drop(id)
    redis.call('hdel', places, id)
    redis.call('lrem', queue, '0', id)
end

-- Nobody queues any more. The streak outlives a queue that is empty for a moment. Nobody of the queue asks at the end of a
-- grant, so those who do not queue have to: see message_of_grant().
local function end_places()
    if redis.pcall('hdel', places, 'owed') == 1 then redis.pcall(publish, channel, '0') end
    redis.pcall('pexpire', places, '1000')
end
)lua"};

// Follows it.
inline constexpr ScriptText queue_others{R"lua(
-- What a script has done to the lock stands, also without a right to change the queue.
local function if_permitted(change)
    return function(...)
        local done, result = pcall(change, ...)
        return done and result
    end
end

local function end_places_if_empty()
    if redis.pcall('exists', queue) == 0 then end_places() end
end

-- Drops the first of the queue, which seems to be gone. If it is there after all (the clock has jumped), it asks.
local function turn_away(id)
    drop(id)
    redis.pcall(publish, channel .. ':' .. id, 'look 0')
end

-- Tells the head of the queue that a lease ends at `at`, and the next one that it ends a little later: the head may be
-- frozen. Who asks about then anyway is not told. Returns true if somebody asks.
local tell_head = if_permitted(function(at)
    local found, first_at = 0, at
    for _ = 1, most_tries do
        local id = redis.call('lindex', queue, text(found))
        if not id then break end
        local place = redis.call('hget', places, id)
        local is_there = is_asking(place, first_at)
        if not is_there then
            local number, lease, ends, _, kind = parts_of(place)
            if number and ends > now then
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
    if found == 0 then end_places_if_empty() end
    return found > 0
end)
)lua"};
inline constexpr ScriptText lock_queue = joined<queue_first, queue_others>;

// Precedes the scripts that leave a place.
inline constexpr ScriptText queue_places{R"lua(
-- Returns for how many ms more a field of `places` says that something is so.
local function left_of(field) return time_left(redis.call('hget', places, field)) end

-- Removes the place of a number, if it is that of its client. Returns true if it was.
local leave_place = if_permitted(function(id, number)
    if parts_of(redis.call('hget', places, id)) ~= number then return end
    drop(id)
    end_places_if_empty()
    return true
end)
)lua"};

inline constexpr ScriptText queue_stay{R"lua(
-- KEYS: lock, channel, queue, places.  ARGV: owner, the owner that takes its place, its lease in ms, publish command.
-- Answer: the server's clock, negative if the owner does not hold it. Never creates a key, never prolongs a TTL.
local owner, successor, rest = ARGV[1], ARGV[2], tonumber(ARGV[3])
publish, now = ARGV[4], time_in_ms()
local count = redis.call('hget', lock, owner)
if not count then return -now end
local refusal, lease, left = stay(lock, owner, count, successor, rest)
if refusal then return refusal end
-- Waiters rely on the earlier, longer lease: wake them.
if lease ~= left then
    redis.pcall(publish, channel, '0')
    tell_head(now + lease)
end
return now
)lua"};

inline constexpr ScriptText queue_hand_over{R"lua(
-- KEYS: lock, channel, queue, places (, token counter).  ARGV: owner, next owner, the next owner's lease in ms, publish
-- command, wanted until.
-- Answer: 1 = the next owner holds it; of a fenced lock {1, token}; nil = neither of them does.
local owner, successor, lease, wanted_until = ARGV[1], ARGV[2], ARGV[3], ARGV[5]
publish = ARGV[4]
if redis.call('hexists', lock, successor) == 1 then
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
local refusal = replace(lock, owner, count, successor, lease, counter and drawing(counter, token))
if refusal then return refusal end
local answer = counter and {1, token} or 1
if left <= tonumber(lease) then return answer end
)lua"};

inline constexpr ScriptText queue_shorter_lease{R"lua(
-- Other waiters rely on the earlier, longer lease: wake them.
redis.pcall(publish, channel, '0')
tell_head(now + lease)
return answer
)lua"};

}  // namespace parts

inline constexpr ScriptText queue_stay = joined<parts::wanted_until, parts::replacing, parts::staying,
                                                parts::queue_keys, parts::lock_queue, parts::queue_stay>;
inline constexpr ScriptText queue_hand_over =
    joined<parts::wanted_until, parts::replacing, parts::queue_keys, parts::unfenced, parts::queue_hand_over,
           parts::lock_queue, parts::queue_shorter_lease>;

}  // namespace scripts

// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::queue_hand_over>{scripts::queue_hand_over,
    "6a40a060b94d3161a042f4b3bbc9a2ebefdd85df"};
template <>
inline constexpr Script digested<scripts::queue_stay>{scripts::queue_stay,
    "d82d7532a57657883040d54c6574bc57955f814c"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
