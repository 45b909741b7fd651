// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/permit_expirable_semaphore.hpp"
#include "redlatch/scripts/request_marks.hpp"
#include "redlatch/scripts/script.hpp"

// The scripts of the barrier. Keys: a hash with `born` (a text that no other barrier of that name ever has), `phase` (from
// 1 on), `parties` (in this phase), `initial` (as given) and `drops` (how many have dropped out in this phase); and a
// sorted set of the arrivals of this phase: id -> the end of its lease, in ms since 1970 by the server's clock. An arrival
// whose lease has ended does not count; the next arrival removes it. permit_renew prolongs the leases.
// Message: the number of the new phase, or "0" if the barrier was removed.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

// Precedes the scripts that use it.
inline constexpr ScriptText barrier_state{R"lua(
local function no_barrier() return redis.error_reply('WRONGTYPE the key holds no barrier') end
-- Returns the state of the barrier: without `born` if there is none; nil if the key holds something else.
local function state_of(barrier)
    local state = {born = redis.call('hget', barrier, 'born')}
    if not state.born then
        if redis.call('exists', barrier) == 1 then return nil end
        return state
    end
    for _, field in ipairs({'phase', 'parties', 'initial', 'drops'}) do
        state[field] = count_in(redis.call('hget', barrier, field) or '')
        if not state[field] then return nil end
    end
    return state
end
)lua"};

template <const ScriptText& Body>
inline constexpr ScriptText of_barrier =
    joined<all_or_none, request_marks, wanted_until, exact_count, permit_clock, barrier_state, Body>;

inline constexpr ScriptText barrier_arrive{R"lua(
-- KEYS: barrier, marks, arrivals, channel.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, publish
-- command, number of parties, id of the arrival, its lease in ms, '1' if the party drops out.
-- Answer: the phase of the arrival, `born`, the phase after it. With 0 for the phase of the arrival: nothing was done,
-- because the barrier has another number of parties, which is the third.
local barrier, marks, arrivals, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local publish, parties, id, lease, drops_out = ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9], ARGV[10] == '1'
local state = state_of(barrier)
if not state then return no_barrier() end
local before = outcome_of(marks, lane, request)
if before then return {before, state.born, state.phase or before + 1} end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local ends = wanted_until + margin
if state.born and state.initial ~= parties then
    local refusal = again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)})
    return refusal or {0, state.born, state.initial}
end
local is_new = not state.born
local born, phase, drops = state.born or marks .. ' ' .. request, state.phase or 1, state.drops or 0
parties = state.parties or parties
local over = redis.call('zcount', arrivals, '0', whole(now))
local arrived = redis.call('zcard', arrivals) - over + drops + 1
local dropped = drops + (drops_out and 1 or 0)
-- The change of the hash, with what undoes it.
local function set(to_phase, to_parties, to_drops)
    local undo = {'del', barrier}
    if not is_new then
        undo = {'hset', barrier, 'phase', whole(phase), 'parties', whole(parties), 'drops', whole(drops)}
    end
    return {'hset', barrier, 'born', born, 'initial', ARGV[7], 'phase', whole(to_phase), 'parties', whole(to_parties),
            'drops', whole(to_drops), undo = undo}
end
if arrived < parties then
    -- First a write that Redis refuses when its memory is full.
    local changes = {mark(marks, lane, request, phase), keep(marks, now, ends),
                     {'zremrangebyscore', arrivals, '1', '0'}}
    if is_new or drops_out then
        table.insert(changes, set(phase, parties, dropped))
    end
    if not drops_out then
        table.insert(changes, {'zadd', arrivals, ends_at(now, lease), id, undo = {'zrem', arrivals, id}})
    end
    if over > 0 then table.insert(changes, {'zremrangebyscore', arrivals, '0', whole(now)}) end
    return all_or_none(changes) or {phase, born, phase}
end
-- First a write that Redis allows when its memory is full.
local changes = {keep(marks, now, ends), mark(marks, lane, request, phase), keep(marks, now, ends),
                 {'zremrangebyscore', arrivals, '1', '0'}, {publish, channel, whole(phase + 1)}}
if parties > dropped then
    table.insert(changes, set(phase + 1, parties - dropped, 0))
else
    table.insert(changes, {'del', barrier})
end
table.insert(changes, {'zremrangebyscore', arrivals, '0', whole(never)})
return all_or_none(changes) or {phase, born, phase + 1}
)lua"};

inline constexpr ScriptText barrier_call_off{R"lua(
-- KEYS: barrier, marks, arrivals.  ARGV: lane, request of an arrival whose outcome its sender does not know, wanted until
-- of that arrival, margin in ms, '1' for a resend, id of the arrival.
-- Answer: 1. The arrival is taken back unless it has ended its phase, and copies in flight will not arrive.
local marks, arrivals = KEYS[2], KEYS[3]
local lane, request, wanted_until, margin, id = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[6]
local changes = {}
local now = time_in_ms()
if not outcome_of(marks, lane, request) and now <= wanted_until then
    changes = {keep(marks, now, wanted_until + margin), mark(marks, lane, request, 0),
               keep(marks, now, wanted_until + margin)}
end
table.insert(changes, {'zrem', arrivals, id})
return all_or_none(changes) or 1
)lua"};

inline constexpr ScriptText barrier_remove{R"lua(
-- KEYS: barrier, marks, arrivals, channel.  ARGV: lane, request, wanted until, margin in ms, '1' for a resend, publish
-- command.
-- Answer: 1 = removed; 0 = there was none.
local barrier, marks, arrivals, channel = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local lane, request, wanted_until, margin, again = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local publish = ARGV[6]
local before = outcome_of(marks, lane, request)
if before then return before end
local now = time_in_ms()
if now > wanted_until then return late(now) end
local state = state_of(barrier)
if not state then return no_barrier() end
local ends = wanted_until + margin
if not state.born then
    return again == '1' and all_or_none({mark(marks, lane, request, 0), keep(marks, now, ends)}) or 0
end
return all_or_none({keep(marks, now, ends), mark(marks, lane, request, 1), keep(marks, now, ends),
                    {publish, channel, '0'}, {'del', barrier, arrivals}}) or 1
)lua"};

inline constexpr ScriptText barrier_look{R"lua(
-- KEYS: barrier, arrivals.  ARGV: ids of arrivals.
-- Answer: `born` and the phase, nil = there is no barrier; then for each id 1 = it is an arrival of this phase, 0 = not, or
-- its lease has ended.
local now = time_in_ms()
local answer = {redis.call('hget', KEYS[1], 'born'), redis.call('hget', KEYS[1], 'phase')}
for i = 1, #ARGV do
    local ends = tonumber(redis.call('zscore', KEYS[2], ARGV[i]) or '0')
    answer[i + 2] = ends > now and 1 or 0
end
return answer
)lua"};

inline constexpr ScriptText barrier_withdraw{R"lua(
-- KEYS: barrier, arrivals.  ARGV: id of an arrival.
-- Answer: `born` and the phase, nil = there is no barrier. The arrival counts no more in this phase.
redis.call('zrem', KEYS[2], ARGV[1])
return {redis.call('hget', KEYS[1], 'born'), redis.call('hget', KEYS[1], 'phase')}
)lua"};

inline constexpr ScriptText barrier_inspect{R"lua(
-- KEYS: barrier, arrivals.
-- Answer: the phase, 0 = there is no barrier; the number of parties; how many have arrived in this phase.
local state = state_of(KEYS[1])
if not state then return no_barrier() end
if not state.born then return {0, 0, 0} end
local alive = redis.call('zcount', KEYS[2], '(' .. whole(time_in_ms()), whole(never))
return {state.phase, state.parties, alive + state.drops}
)lua"};

}  // namespace parts

inline constexpr ScriptText barrier_arrive = parts::of_barrier<parts::barrier_arrive>;
inline constexpr ScriptText barrier_call_off = parts::of_barrier<parts::barrier_call_off>;
inline constexpr ScriptText barrier_remove = parts::of_barrier<parts::barrier_remove>;
inline constexpr ScriptText barrier_look{joined<parts::wanted_until, parts::barrier_look>};
inline constexpr ScriptText barrier_withdraw{parts::barrier_withdraw};
inline constexpr ScriptText barrier_inspect = parts::of_barrier<parts::barrier_inspect>;

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::barrier_arrive>{scripts::barrier_arrive,
    "3cf7dbb652ce8437f02ef363d908c49842c8344c"};
template <>
inline constexpr Script digested<scripts::barrier_call_off>{scripts::barrier_call_off,
    "91eaf4a288931538132d1f548b36bc63f30338e2"};
template <>
inline constexpr Script digested<scripts::barrier_inspect>{scripts::barrier_inspect,
    "1e0897051bbf9c851cd0c7484a59a7b77fb799c1"};
template <>
inline constexpr Script digested<scripts::barrier_look>{scripts::barrier_look,
    "ded6778215f92c94ed7887df721e64de86442c81"};
template <>
inline constexpr Script digested<scripts::barrier_remove>{scripts::barrier_remove,
    "510a610c7cef3eb0baac7e723291581bae9da590"};
template <>
inline constexpr Script digested<scripts::barrier_withdraw>{scripts::barrier_withdraw,
    "74c060e5171e6141da5cecb94811b11b69385b9e"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
