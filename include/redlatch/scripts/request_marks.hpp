// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/scripts/script.hpp"

#include <string_view>

// How a script that changes a number does so once, however often its command is sent and in whatever order the copies
// arrive. Each command carries a lane and a request number: a client sends one request at a time in a lane, and its
// numbers only grow. A hash beside the key, one a client, keeps for each lane the last request that was carried out and
// what came of it. So a copy finds its own mark and repeats the answer, one that was delayed on the way finds that of a later
// request and does nothing, and there are never more marks than commands were on their way at once.
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

}  // namespace detail

// A script that uses request_marks.
template <const std::string_view& Body>
inline constexpr std::string_view with_request_marks = joined<detail::request_marks, Body>;

}  // namespace redlatch::scripts
