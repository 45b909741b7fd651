// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

// A command may reach the server long after its sender has given it up: a closed connection is delivered for half a
// minute, a proxy may hold one for longer. So a command that would do harm then says until when it is wanted, by the
// server's own clock. Beyond that instant it changes nothing, and its answer says what the clock shows.
namespace redlatch {
inline namespace v0_1 {
namespace scripts::detail {

// Put before the scripts that use it.
inline constexpr std::string_view wanted_until{R"lua(
-- Milliseconds since 1970.
local function time_in_ms()
    local time = redis.call('time')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end
-- The answer to a command that came too late: it took no effect.
local function late(now) return redis.error_reply(string.format('LATE %.0f', now)) end
)lua"};

}  // namespace scripts::detail
}  // namespace v0_1
}  // namespace redlatch
