// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/all_or_none.hpp"
#include "redlatch/scripts/exact_count.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/scripts/wanted_until.hpp"

// Makes a script that changes a number take effect once, however often its command is sent, in whatever order the
// copies arrive, and however late. Each command carries a lane and a request number. A client sends one request at a
// time in a lane, with growing numbers. A hash beside the key, one per client, keeps for each lane the last request
// that was carried out and its outcome. So a copy finds its own mark and repeats the answer, and a delayed copy finds
// the mark of a later request and does nothing. There are never more marks than there were commands in flight at once.
//
// All copies of a request carry the same time until which it is wanted, by the server's clock, and change nothing after
// it. The mark stays for a margin longer. So the mark exists as long as a copy could take effect. If a client looks
// within the margin and finds no mark, no copy has taken effect, and none will.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts {

namespace parts {

// Precedes the scripts that use it.
inline constexpr ScriptText request_marks{R"lua(
local function whole(number) return string.format('%.0f', number) end
-- Returns the outcome of this request if it was carried out, or of a later one of its lane; nil if it was not carried
-- out. And whether the outcome is that of this very request.
local function outcome_of(marks, lane, request)
    local mark = redis.call('hget', marks, lane)
    if not mark then return nil, false end
    local last, outcome = string.match(mark, '^(%d+):(-?%d+)$')
    if tonumber(last) < tonumber(request) then return nil, false end
    return tonumber(outcome), last == request
end
-- The TTL of the marks before this script changes them; -2 if there are none.
local marks_ttl
local function ttl_of(marks)
    marks_ttl = marks_ttl or redis.call('pttl', marks)
    return marks_ttl
end
-- Returns the change that keeps the marks for so many ms, or longer if that was set before.
local function keep_for(marks, time) return {'pexpire', marks, whole(math.max(ttl_of(marks), time, 1))} end
-- mark() and keep() return changes for all_or_none(). The outcome is an integer, as text if it may be large. `before`:
-- the outcome that this one replaces. Undoing writes the mark once more, because that is a command that was allowed:
-- the right to DEL may be the very one whose lack makes it necessary. A mark of an earlier request means nothing, and ends
-- with the others. If there are none, it is deleted, or ends at once.
local function mark(marks, lane, request, outcome, before)
    local undo = {'hset', marks, lane, whole(request - 1) .. ':0'}
    if before then
        undo = {'hset', marks, lane, request .. ':' .. whole(before)}
    end
    return {'hset', marks, lane, request .. ':' .. outcome, undo = undo,
            tidy = ttl_of(marks) == -2 and {'del', marks} or keep_for(marks, 1)}
end
-- Keeps the marks until `ends`. Redis allows this when its memory is full, and then all later writes of the script. It
-- also follows the mark: if the marks were about to end, it has deleted them.
local function keep(marks, now, ends)
    local change = keep_for(marks, ends - now)
    change.undo = keep_for(marks, 1)
    return change
end
-- Returns the TTL in ms of what belongs to a counter that lasts for `left` ms, and ends before it. The server reads the clock
-- for each of the two. A release between the two ends would create the counter anew, for ever.
local function before_end(left) return whole(math.max(left - 10, 1)) end
-- The largest value of Java's int: Redisson reads no larger one.
local most = 2147483647
local function too_many() return redis.error_reply('TOOMANY there would be more than 2147483647') end
)lua"};

inline constexpr ScriptText request_void{R"lua(
-- KEYS: marks.  ARGV: lane, request whose outcome its sender does not know, wanted until, margin in ms.
-- Answer: 1 = it has not been carried out, and copies in flight will not be; 0 = it has been.
local marks = KEYS[1]
local lane, request, wanted_until, margin = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
if outcome_of(marks, lane, request) then return 0 end
local now = time_in_ms()
if now > wanted_until then return late(now) end
return all_or_none({keep(marks, now, wanted_until + margin), mark(marks, lane, request, 0),
                    keep(marks, now, wanted_until + margin)}) or 1
)lua"};

}  // namespace parts

// A script that uses request_marks, and numbers that keys hold.
template <const ScriptText& Body>
inline constexpr ScriptText with_request_marks =
    joined<parts::all_or_none, parts::request_marks, parts::wanted_until, parts::exact_count, Body>;

inline constexpr ScriptText request_void{with_request_marks<parts::request_void>};

}  // namespace scripts
// The digests, written by cmake/digests.cmake.
// clang-format off
template <>
inline constexpr Script digested<scripts::request_void>{scripts::request_void,
    "80e31e697f229cc1f4de724fc92f7c23c1ae5da3"};
// clang-format on

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
