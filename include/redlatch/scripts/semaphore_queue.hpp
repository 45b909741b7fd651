// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/request_marks.hpp"
#include "redlatch/scripts/script.hpp"

// The queue of the processes that wait for permits of a semaphore. Whoever makes permits available, or leaves some, tells the
// first processes in the queue for which there are enough to ask, and the others sleep on. So P waiting processes do not send
// P commands for one permit. Only grants (see below) reserve permits. Otherwise whoever asks first gets them, queued or not.
//
// A process has one place, for all its waiters. Keys beside the semaphore:
//   queue    a list of client ids, the next one first
//   places   a hash. Client id -> "number want ends asks[ lease ids]":
//              number   tells this stay from others of the client
//              want     the fewest permits for which its last question would have been granted something
//              ends     the time until which the place counts
//              asks     the time at which it asks; 0 if it sleeps until it is told
//              lease    of the first caller in ms, and ids: the ids for its permits, if they have leases and may be granted
//            "turn": "granted until told", for permits with leases: how many were granted in a row, until when none may be, and
//              when the first process in the queue was last told to ask, in place of a grant
// All times are in milliseconds of the server's clock.
//
// Each client listens to a channel of its own: that of the semaphore, followed by the client's id. The message there, "look
// <ms> <number>", tells it to ask after that time. It listens to the common channel before its own. Clients that know nothing
// of the queue publish the number of permits there, and then everybody asks. The other clients write a 0 before the number,
// and only clients without a place react to that. So they publish it only if there may be such clients.
//
// A client that was told to ask may be frozen. So the next two for which there would be enough are told to ask `stand_in` ms
// later, and twice as much. A client that was told, and has not asked by then, loses its place when permits become available
// next. If three in a row are frozen, the others rely on their slow poll.
//
// Permits with leases are granted: the script takes them for the first caller of the place, for 2 s at most, and the message is
// "grant <number> <time> <lease> <ids>". The place is over then. The client renews the leases as long as the caller holds
// the permits. One that is gone, or has not heard the message, loses them with the lease of the grant.
//
// Clients that do not queue (Redisson, older versions) would never get a permit that is granted at once. So after `most_grants`
// grants in a row, and once in `longest_run` ms while a client outside the queue listens, the next must ask like all others.
// Nothing is granted for `others_active` ms after a refused caller saw a foreign permit: one whose id does not end with "rl".
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

// Precedes semaphore_news. `queue` and `places` are nil for a client that does without.
inline constexpr ScriptText semaphore_queue_keys{R"lua(
local channel, queue, places = KEYS[3], KEYS[4], KEYS[5]
)lua"};

// Follows request_marks. The functions of the queue come last, because most calls do not need them.
inline constexpr ScriptText semaphore_news{R"lua(
local publish, now
local most_seen = 200
-- The first of the queue, and the number of permits of which it has to be told; nil if nobody is in it. `alone`: whether all
-- who listen are in the queue.
local waiting, told, alone
-- Takes permits for a client, and tells it. Returns true if it did; nil if they cannot be granted. See permit_grants.
local grant

-- In an order that leaves the place as it was without a right to one of them. What the next one in the queue has to know of
-- earlier ones is kept a little longer than the places.
local function drop(id)
    redis.call('lrem', queue, '0', id)
    redis.call('hdel', places, id)
    if redis.call('exists', queue) == 0 then redis.call('pexpire', places, '1000') end
end

-- Returns true if nobody listens to the messages to all but clients in the queue. Replicas, and other nodes (see Routes), pass
-- messages on to listeners who are not counted. Without a right to look, somebody may.
local function is_alone()
    if publish == 'Publish' then return false end
    local channels = {}
    for i, id in ipairs(waiting) do channels[i] = channel .. ':' .. id end
    local heard = redis.pcall('pubsub', publish == 'SPUBLISH' and 'shardnumsub' or 'numsub', channel, unpack(channels))
    if heard.err then return false end
    local others = heard[2]
    for i = 4, #heard, 2 do others = others - math.min(heard[i], 1) end
    if others > 0 then return false end
    local info = redis.pcall('info', 'replication')
    return type(info) == 'string' and string.find(info, 'connected_slaves:0', 1, true) ~= nil
end

-- Adds to `changes` the message to all: there are so many permits now.
local function add_news(changes, total)
    local ids = queue and redis.pcall('lrange', queue, '0', whole(most_seen - 1))
    if ids and #ids > 0 then waiting, told = ids, total end
    alone = told and is_alone()
    if alone then return end
    table.insert(changes, {publish, channel, (told and '0' or '') .. whole(total)})
end
)lua"};

inline constexpr ScriptText semaphore_queue{R"lua(
local stand_in = 400

local function place_text(number, want, asks, offer)
    return string.format('%s %.0f %.0f %.0f', number, want, now + 30000, asks) .. (offer or '')
end

-- Asks the client to ask at that time. Returns true if it listens. Otherwise drops its place.
local function tell(id, number, want, at, offer)
    redis.call('hset', places, id, place_text(number, want, at, offer))
    local heard = redis.call(publish, channel .. ':' .. id, string.format('look %.0f %s', at - now, number))
    if heard == 0 then drop(id) end
    return heard ~= 0
end

-- Returns false if there are so many in the queue that some for whom there may be enough have not been looked at.
local function tell_places(total)
    local left, told, granted, standing_in = total, 0, false, 0
    local ids = waiting or redis.call('lrange', queue, '0', whole(most_seen - 1))
    for _, id in ipairs(ids) do
        if left <= 0 and (told == 0 or standing_in == 2) then return true end
        local number, want, ends, asks, offer =
            string.match(redis.call('hget', places, id) or '', '^(%d+) (%d+) (%d+) (%d+)(.*)$')
        want, ends, asks = tonumber(want), tonumber(ends), tonumber(asks)
        if not number or ends <= now or (asks > 0 and asks < now - 2 * stand_in) then
            -- If it is there after all, it asks.
            drop(id)
            redis.call(publish, channel .. ':' .. id, 'look 0 0')
        elseif want <= left then
            local is_about_to_ask = asks > 0 and asks <= now
            local takes = not is_about_to_ask and grant and grant(id, number, want, offer)
            if is_about_to_ask or takes or tell(id, number, want, now, offer) then
                left, told, granted = left - want, told + 1, granted or takes
            end
        elseif (granted or told > 0 and want <= total) and standing_in < 2 then -- also for the end of a grant
            if asks > 0 or tell(id, number, want, now + (standing_in + 1) * stand_in, offer) then
                standing_in = standing_in + 1
            end
        end
    end
    return left <= 0 or #ids < most_seen
end

-- There are so many permits now. Tells the queue; if that is not enough, or without a right to do it, everybody. `is_known`:
-- there have been as many before, and whoever made them available has done that.
local function tell_queue(total, is_known)
    if total <= 0 then return end
    local done, is_enough = pcall(tell_places, total)
    if not (done and is_enough or is_known) then redis.pcall(publish, channel, whole(total)) end
end
)lua"};

// Follows a script that makes permits available, and has nothing else to do: `answer`, once the queue is told.
inline constexpr ScriptText semaphore_tell_queue{R"lua(
tell_queue(told)
return answer
)lua"};

// Follows a script that takes permits: the client `id` has, or takes, the place of this `number`.
inline constexpr ScriptText semaphore_queue_up{R"lua(
-- Gives the client a place, or keeps it, until there are as many permits as `least`. `left`: how many are left now. One that
-- was served in part queues up anew. Returns true if it has one: it is told when it has to ask. A command in lower case reaches
-- subscribers of other nodes, who cannot be counted: no queue. Without a right to the queue the client hears everything.
-- `offer`: what it may be granted.
local function queue_up(id, number, least, is_served, left, offer)
    if publish == 'publish' then return false end
    local is_new
    local done = pcall(function()
        -- The server has evicted one of the keys alone: all queue up anew.
        local queued, placed = redis.call('llen', queue), redis.call('hlen', places)
        if queued ~= placed and queued ~= placed - redis.call('hexists', places, 'turn') then
            redis.call('del', queue, places)
            redis.call(publish, channel, whole(math.max(left, 0)))
        end
        is_new = redis.call('hset', places, id, place_text(number, least, 0, offer)) == 1
        if is_new or is_served then
            redis.call('lrem', queue, '0', id)
            redis.call('rpush', queue, id)
        end
        redis.call('pexpire', queue, '60000')
        redis.call('pexpire', places, '60000')
    end)
    if not done and is_new then
        redis.pcall('lrem', queue, '0', id)
        redis.pcall('hdel', places, id)
    end
    return done
end

-- Returns true if the client was told to ask. Then the others rely on it to tell them of what it leaves.
local function was_told(id)
    local place = redis.pcall('hget', places, id)
    return type(place) == 'string' and string.match(place, '^%d+ %d+ %d+ (%d+)') ~= '0'
end
)lua"};

inline constexpr ScriptText semaphore_leave{R"lua(
-- KEYS: semaphore, marks, channel, queue, places.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, client
-- id, number of the place, publish command.
-- Answer: 1. The client waits no longer; what it was told, the next one is told. May be repeated: needs no mark.
if not queue then return 1 end
local id = ARGV[6]
publish, now = ARGV[8], time_in_ms()
if string.match(redis.call('hget', places, id) or '', '^%d+') ~= ARGV[7] then return 1 end
drop(id)
tell_queue(count_in(redis.call('get', KEYS[1]) or '0') or 0)
return 1
)lua"};

}  // namespace parts

inline constexpr ScriptText semaphore_leave =
    joined<parts::request_marks, parts::wanted_until, parts::exact_count, parts::semaphore_queue_keys,
           parts::semaphore_news, parts::semaphore_queue, parts::semaphore_leave>;

}  // namespace scripts

// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::semaphore_leave>{scripts::semaphore_leave,
    "d315dbd1f6709d84ab3f5e84af8c3d8b579b8300"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
