// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/all_or_none.hpp"
#include "redlatch/scripts/script.hpp"

// Writes for the locks whose holds are fields of a hash, owner -> count, and whose lease is the TTL of the hash. If a
// command is refused, the hash is unchanged: it is never left without a lease, nor with a holder that no client knows
// of.
//
// PEXPIRE comes after all writes to the hash. Some servers (Redis 7.0) read the clock twice in it: of a lease of a few ms
// nothing may be left at the second time, so PEXPIRE deletes the key, and a later write would create it without a lease.
// Redis refuses HINCRBY and HSET when its memory is full, unless the script has written before: HDEL is always allowed, even
// of a field that nobody has.
//
// A last release is the exception. It stands even if the user has no right to publish to the waiters, but returns that
// error. The waiters ask again when the lease would have ended.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts::parts {

inline constexpr ScriptText first_level{R"lua(
-- Sets the lease of a hold that was just written. Returns nil, or the error: better no lock than one without a TTL.
local function give_lease(lock, lease)
    local limited = redis.pcall('pexpire', lock, lease)
    if type(limited) ~= 'table' then return nil end
    redis.call('del', lock)
    return limited
end
)lua"};

inline constexpr ScriptText more_levels{R"lua(
-- Sets the count of an existing hold; its lease becomes no shorter. Returns nil, or the error.
local function enter_again(lock, owner, current, count, lease)
    local left = redis.call('pttl', lock)
    if current ~= count then redis.call('hincrby', lock, owner, count - current) end
    if left >= tonumber(lease) then return nil end
    local limited = redis.pcall('pexpire', lock, lease)
    if type(limited) ~= 'table' then return nil end
    if current ~= count then redis.call('hincrby', lock, owner, current - count) end
    return limited
end
)lua"};

inline constexpr ScriptText fewer_levels{R"lua(
-- The same with fewer levels. Returns -1 = still held, or the error.
local function leave_level(lock, owner, current, count, lease)
    local left = redis.call('pttl', lock)
    local changes = {{'hdel', lock, ''}}
    if current ~= count then
        table.insert(changes, {'hincrby', lock, owner, count - current,
                               undo = {'hincrby', lock, owner, current - count}})
    end
    if math.max(left, 0) < tonumber(lease) then table.insert(changes, {'pexpire', lock, lease}) end
    return all_or_none(changes) or -1
end
)lua"};

inline constexpr ScriptText next_owner{R"lua(
-- Puts the next owner in the owner's place, and makes another change, if any. Returns nil, or the error.
local function replace(lock, owner, count, successor, lease, another)
    local changes = {{'hdel', lock, ''},
                     {'hincrby', lock, successor, '1', undo = {'hdel', lock, successor}},
                     {'hdel', lock, owner, undo = {'hincrby', lock, owner, count}}}
    table.insert(changes, another)
    table.insert(changes, {'pexpire', lock, lease})
    return all_or_none(changes)
end
)lua"};

// Follows `replacing`.
inline constexpr ScriptText staying{R"lua(
-- Leaves the lock taken by the successor, for `rest` ms at most and never for longer than by the owner. Returns nil or the
-- error, the new lease, and the earlier one.
local function stay(lock, owner, count, successor, rest)
    local left = redis.call('pttl', lock)
    local lease = left < 0 and rest or math.max(1, math.min(left, rest))
    return replace(lock, owner, count, successor, lease), lease, left
end
)lua"};

inline constexpr ScriptText levels{joined<first_level, more_levels>};
inline constexpr ScriptText leaving_levels{joined<all_or_none, fewer_levels>};
inline constexpr ScriptText replacing{joined<all_or_none, next_owner>};

}  // namespace scripts::parts
}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
