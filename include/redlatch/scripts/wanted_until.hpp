// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/scripts/script.hpp"

// A command may reach the server long after its sender has given up: a closed connection may still be delivered for
// half a minute, and a proxy may delay one for longer. So a command that would do harm then carries a time until which
// it is wanted, in milliseconds since 1970 by the server's clock. After that time it changes nothing and returns the
// error LATE with the time of the server.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts::parts {

// Precedes the scripts that use it.
inline constexpr ScriptText wanted_until{R"lua(
-- Milliseconds since 1970.
local function time_in_ms()
    local time = redis.call('time')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end
-- Returns the reply to a command that came too late: it took no effect.
local function late(now) return redis.error_reply(string.format('LATE %.0f', now)) end
)lua"};

}  // namespace scripts::parts
}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
