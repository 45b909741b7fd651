// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/exact_count.hpp"
#include "redlatch/scripts/script.hpp"

#include <string_view>

// How a script that changes a number does so once, however often its command is sent and in whatever order the copies
// arrive. Each command carries a lane and a request number: a client sends one request at a time in a lane, and its
// numbers only grow. A hash beside the key, one a client, keeps for each lane the last request that was carried out and
// what came of it. So a copy finds its own mark and repeats the answer, one that was delayed on the way finds that of a
// later request and does nothing, and there are never more marks than commands were on their way at once.
//
// The hash goes away a while after the client's last change: longer than any copy can be on its way.
namespace redlatch::scripts {

namespace detail {

// Put before the scripts that use it.
inline constexpr std::string_view request_marks{R"lua(
-- What came of this request, if it was carried out already, or of a later one of its lane; nil if it is still to be
-- carried out. And whether it is of this very request.
local function outcome_of(marks, lane, request)
    local mark = redis.call('hget', marks, lane)
    if not mark then return nil, false end
    local last, outcome = string.match(mark, '^(%d+):(-?%d+)$')
    if tonumber(last) < tonumber(request) then return nil, false end
    return tonumber(outcome), last == request
end
-- The outcome is an integer, as text where it may be large.
local function remember(marks, lane, request, outcome, ttl)
    redis.call('hset', marks, lane, request .. ':' .. outcome)
    redis.call('pexpire', marks, ttl)
end
)lua"};

inline constexpr std::string_view request_void{R"lua(
-- KEYS: marks.  ARGV: lane, request whose outcome its sender does not know, TTL of the marks in ms.
-- Answer: 1 = it has not been carried out, and copies that are still on their way will not be; 0 = it has been.
local marks = KEYS[1]
local lane, request, ttl = ARGV[1], ARGV[2], ARGV[3]
if outcome_of(marks, lane, request) then return 0 end
-- First, because then Redis lets the rest through when its memory is full.
redis.call('pexpire', marks, ttl)
remember(marks, lane, request, 0, ttl)
return 1
)lua"};

}  // namespace detail

// A script that uses request_marks, and numbers that keys hold.
template <const std::string_view& Body>
inline constexpr std::string_view with_request_marks = joined<detail::request_marks, detail::exact_count, Body>;

inline constexpr std::string_view request_void{with_request_marks<detail::request_void>};

}  // namespace redlatch::scripts
