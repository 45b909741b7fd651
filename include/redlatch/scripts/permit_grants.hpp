// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/script.hpp"

// How permits with leases are granted to the first of the queue, and given back by one that leaves: see semaphore_queue.hpp.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {
namespace parts {

// Precedes semaphore_news. `queue` and `places` are nil for a client that does without.
inline constexpr ScriptText permit_queue_keys{R"lua(
local channel, queue, places = KEYS[4], KEYS[5], KEYS[6]
)lua"};

// Follows semaphore_queue.
inline constexpr ScriptText permit_grants{R"lua(
local longest_offer, id_size, most_grants, longest_run, others_active = 2000, 16, 16, 2000, 1000

-- Returns how many permits were granted in a row; the time until which none are: `others_active` ms after somebody else's
-- permit was seen; and when the first of the queue was told last, in place of a grant. A time that is too far ahead was set
-- before the clock stepped back.
local function turn()
    local function time_of(text)
        local time = tonumber(text or '0')
        return time <= now + longest_run and time or 0
    end
    local streak, off_until, told_at = string.match(redis.call('hget', places, 'turn') or '', '^(%d+) (%d+) (%d+)$')
    return tonumber(streak or '0'), time_of(off_until), time_of(told_at)
end
local function set_turn(streak, off_until, told_at)
    redis.call('hset', places, 'turn', string.format('%.0f %.0f %.0f', streak, off_until, told_at))
end

-- `offer`: " <lease> <ids>", empty if the client has to ask.
grant = function(client, number, want, offer)
    local lease, ids = string.match(offer, '^ (%d+) (.*)$')
    if not lease or #ids ~= want * id_size then return end
    local streak, off_until, told_at = turn()
    if now < off_until then return end
    if streak >= most_grants or not alone and now - told_at > longest_run then return set_turn(0, 0, now) end
    local own = channel .. ':' .. client
    -- PUBLISH would count those, too, who listen to all channels by a pattern.
    local heard = redis.pcall('pubsub', publish == 'SPUBLISH' and 'shardnumsub' or 'numsub', own)
    if heard.err or heard[2] == 0 then return end
    set_turn(streak + 1, 0, told_at) -- this and the next first, because they may not be permitted
    drop(client)
    local length = math.min(tonumber(lease), longest_offer)
    local changes = {{'decrby', semaphore, whole(want), undo = {'decrby', semaphore, whole(-want)}}}
    for at = 1, #ids, id_size do
        local permit = string.sub(ids, at, at + id_size - 1)
        table.insert(changes, {'zadd', leases, whole(now + length), permit, undo = {'zrem', leases, permit}})
    end
    local left = redis.call('pttl', semaphore)
    if left >= 0 then table.insert(changes, {'pexpire', leases, before_end(left)}) end
    local message = string.format('grant %s %.0f %.0f ', number, now, length) .. ids
    table.insert(changes, {publish, own, message})
    if all_or_none(changes) then
        redis.call(publish, own, 'look 0 0')
    end
    return true
end
)lua"};

// Behind what reads permits: see permit_expirable_semaphore.hpp.
inline constexpr ScriptText permit_leave_place{R"lua(
-- KEYS: semaphore, marks, leases, channel (, queue, places).  ARGV: lane, request, wanted until, margin in ms, '1' for a
-- resend, client id, number of its place, publish command, the ids that it may have been granted there.
-- Answer: 1. The client waits no longer: gives back what it was granted; what it was told, the next one is told. May be
-- repeated: needs no mark.
local semaphore, leases, client = KEYS[1], KEYS[3], ARGV[6]
publish, now = ARGV[8], time_in_ms()
local present = count_in(redis.call('get', semaphore) or '0')
if not present then return no_count() end
local held = {}
for i = 9, #ARGV do
    if redis.call('zscore', leases, ARGV[i]) then table.insert(held, ARGV[i]) end
end
local had_place = queue and string.match(redis.call('hget', places, client) or '', '^%d+') == ARGV[7]
if had_place then drop(client) end
if #held > 0 then
    -- First a write that Redis allows when its memory is full.
    local changes = {{'zrem', leases, ''}}
    put_back(changes, semaphore, leases, present, #held)
    for _, permit in ipairs(held) do table.insert(changes, {'zrem', leases, permit}) end
    local refusal = all_or_none(changes)
    if refusal then return refusal end
elseif had_place then
    told = present
end
local answer = 1
if not told then return answer end
)lua"};

// Follows permit_leave_place and permit_grants.
inline constexpr ScriptText permit_look_out{R"lua(
-- The first two of the queue ask at that time, and a little later.
local function look_out(at)
    local found = 0
    for _, id in ipairs(redis.call('lrange', queue, '0', whole(most_seen - 1))) do
        local number, want, ends, asks, offer =
            string.match(redis.call('hget', places, id) or '', '^(%d+) (%d+) (%d+) (%d+)(.*)$')
        if number and tonumber(ends) > now then
            if tonumber(asks) >= now or tell(id, number, tonumber(want), at + found * stand_in, offer) then
                found = found + 1
            end
        end
        if found == 2 then return end
    end
end
tell_queue(told)
-- Who leaves may have been to ask at the end of a grant, in place of one that is frozen.
local first = tonumber(redis.call('zrange', leases, '0', '0', 'withscores')[2] or ends_at(now, '-1'))
if first <= now + longest_offer then pcall(look_out, math.max(first, now)) end
return answer
)lua"};

}  // namespace parts
}  // namespace scripts
}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
