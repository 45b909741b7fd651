// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/lock_queue.hpp"
#include "redlatch/scripts/script.hpp"

// The queue of those who wait for a read-write lock: as in lock_queue.hpp, with these differences.
//   - A process has a place as a reader and one as a writer. Their ids are that of the client, and "<id>:write".
//   - `kind` is r, w, or m for a writer with precedence, which marks the lock while readers hold it.
//   - A release grants the free lock to the writer that has marked it, or to the first in the queue: a writer alone, or
//     all readers before the next writer.
//   - Present readers exclude no others, so new ones enter beside the queue, as ever.
// Some events reach nobody in the queue, so they are published to all waiters: a writer withdraws its mark, or a reader or
// writer of a client that does not queue leaves. Processes that wait for such an event listen to the common channel, too.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts::parts {

// The names of the keys. Without a queue there are only the first two.
inline constexpr ScriptText read_write_acquire_keys{R"lua(
local lock, mark, channel, queue, places = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local publish, now
)lua"};
inline constexpr ScriptText read_write_release_keys{R"lua(
local lock, channel, mark, queue, places = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local publish, now, tag
)lua"};

// Follows the names of the keys and queue_words.
inline constexpr ScriptText read_write_entry{R"lua(
-- Returns the id of an owner in the queue, the number of its hold, and its kind.
local function entry_of(owner)
    local id, number = string.sub(owner, 1, 36), string.sub(owner, 38)
    if string.sub(owner, -6) == ':write' then return id .. ':write', string.sub(number, 1, -7), 'w' end
    return id, number, 'r'
end

-- Returns 1 if one of the holders may leave without a word to the queue; otherwise 0.
local function any_foreign()
    for _, holder in ipairs(redis.call('hkeys', lock)) do
        if holder ~= 'mode' and is_foreign(holder) then return 1 end
    end
    return 0
end
)lua"};

// Precedes queue_up.
inline constexpr ScriptText read_write_place{R"lua(
local id, number, kind = entry_of(owner)
)lua"};

// Follows lock_queue.
inline constexpr ScriptText read_write_tell{R"lua(
-- Tells the readers that they may enter, and writers with precedence to ask, so that new readers stay out. `is_fair`: only
-- the readers before the next writer. Returns true unless there is no right to do so.
local tell_readers = if_permitted(function(is_fair)
    local has_writer
    for _, id in ipairs(redis.call('lrange', queue, '0', text(most_tries - 1))) do
        local number, _, ends, _, kind = parts_of(redis.call('hget', places, id))
        has_writer = has_writer or is_fair and kind ~= 'r'
        if number and ends > now and (kind == 'm' or kind == 'r' and not has_writer) then
            redis.pcall(publish, channel .. ':' .. id, 'look 0')
        end
    end
    return true
end)

-- The lock is held until `at`, if nothing happens before. Tells those who have to know. `is_open`: readers may enter.
local tell_waiters = if_permitted(function(at, is_open)
    if is_open and not tell_readers() then at = now end
    -- One of those who wait has to listen to the end of a hold that tells nobody in the queue.
    if any_foreign() == 1 then at = now end
    if at then tell_head(at) end
end)
)lua"};

// Follows queue_places, read_write_tell and queue_turn.
inline constexpr ScriptText read_write_hand_on{R"lua(
-- Writes the hold of the head of the queue, and tells it. `is_first`: nobody holds the lock. Returns for how long the hold
-- lasts; false if the head was not told, and holds nothing; nil if it may not hold the lock.
local function grant(head, number, lease, ends, kind, is_first)
    drop(head) -- first, because it may not be permitted
    local length = text(math.min(lease, offer, ends - now))
    local owner = string.sub(head, 1, 36) .. ':' .. number
    local timeout = tag .. ':' .. owner .. ':rwlock_timeout:1'
    local function write()
        if kind == 'r' then
            redis.call('set', timeout, '1', 'px', length)
            redis.call('hset', lock, 'mode', 'read', owner, '1')
        else
            redis.call('hset', lock, 'mode', 'write', owner .. ':write', '1')
        end
        if redis.call('pttl', lock) < tonumber(length) then redis.call('pexpire', lock, length) end
    end
    local function undo()
        if kind == 'r' then undo_write(timeout) end
        if is_first then undo_write(lock) else redis.pcall('hdel', lock, owner) end
    end
    if not pcall(write) then
        undo()
        return nil
    end
    local message = string.format('grant %s %.0f %s', number, now, length)
    if type(redis.pcall(publish, channel .. ':' .. head, message)) == 'table' then
        undo()
        return false
    end
    -- As at every acquire of a writer: readers get their turn after it.
    if kind ~= 'r' then redis.pcall('del', mark) end
    return tonumber(length)
end

-- Returns the id that is to be granted the lock next: a writer with precedence, or the first in the queue. Returns nil if
-- there is none; then also, if a writer with precedence does not queue, for how long its mark lasts.
local function next_in_line()
    local who = redis.call('get', mark)
    if not who then return redis.call('lrange', queue, '0', '0')[1] end
    if redis.call('hexists', places, who .. ':write') == 1 then return who .. ':write' end
    return nil, redis.call('pttl', mark)
end

-- Grants the free lock to the first waiters that listen, or notifies whoever listens. `left`: how long the released hold
-- would have lasted. `message`: that of a release that grants nothing.
local function grant_or_notify(left, message)
    local numsub = publish == 'SPUBLISH' and 'shardnumsub' or 'numsub'
    local lasts, wanted, others_listen, is_shared, marked
    for _ = 1, most_tries do
        local head
        if lasts then head = redis.call('lrange', queue, '0', '0')[1] else head, marked = next_in_line() end
        if not head then break end
        local own = channel .. ':' .. head
        local number, lease, ends, _, kind = parts_of(redis.call('hget', places, head))
        local is_there, told = number and ends > now + 100, 0
        -- PUBLISH would count those, too, who listen to all channels by a pattern.
        local heard = is_there and redis.pcall('pubsub', numsub, own, channel)
        if is_there and heard.err then
            -- Without the right to count listeners, waiters have to ask, if they are there.
            told = redis.call(publish, own, 'look 0')
            redis.pcall(publish, channel, message)
            if kind == 'r' then tell_readers(true) end
        elseif is_there and heard[2] > 0 then
            if lasts and kind ~= 'r' then break end
            -- Those who listen at other nodes are not counted: see Routes.
            others_listen = heard[4] > 0 or publish == 'Publish'
            if not lasts and (others_listen or left_of('polled') > 0) and
                    redis.call('hincrby', places, 'streak', '1') > most_grants then
                return give_turn(message)
            end
            local length = grant(head, number, lease, ends, kind, not lasts)
            if length == nil then
                told = redis.call(publish, own, 'look 0')
                redis.pcall(publish, channel, message)
            end
            if length then
                lasts, wanted, is_shared = math.max(lasts or 0, length), math.max(wanted or 0, lease), kind == 'r'
                if not is_shared then break end
            end
        end
        if told ~= 0 then
            if lasts then break end
            return told
        end
        if redis.call('hexists', places, head) == 1 or redis.call('lrange', queue, '0', '0')[1] == head then
            turn_away(head)
            -- A writer that is gone keeps nobody out.
            if kind == 'm' then redis.pcall('del', mark) end
        end
    end
    if lasts then
        local somebody_asks = tell_head(now + lasts)
        if is_shared then tell_readers(true) end
        if others_listen then
            -- Readers of clients that do not queue may share the lock.
            redis.pcall(publish, channel, is_shared and '1' or message_of_grant(wanted, lasts, left, somebody_asks))
        end
        return -3
    end
    -- A writer that keeps readers out has its turn. It may be gone, or may leave without telling the queue.
    tell_head(now + math.max(math.min(marked or 0, stand_in), 0))
    return redis.call(publish, channel, message)
end
)lua"};

// Follows queue_notify.
inline constexpr ScriptText read_write_tell_queue{R"lua(
-- Tells the queue what `leave` has done. Returns the answer of the release.
local function tell_queue(answer, done)
    now = now or time_in_ms()
    if done.free then return hand_on(done.free, done.message) end
    tell_waiters(done.lasts and now + done.lasts, done.is_open)
    return answer
end
)lua"};

}  // namespace scripts::parts
}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
