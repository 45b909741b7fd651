// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/scripts/script.hpp"

// The common parts of the scripts that release locks. Before the first two stands a function release(owner, remaining
// count, lease in ms for a remaining hold, publish command, tag).
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts::parts {

inline constexpr ScriptText release_levels{R"lua(
-- ARGV: owner, remaining count, lease in ms for a remaining hold, publish command, tag (if there is one).
return release(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
)lua"};

// For owners of which no client knows what they hold, because a reply did not come.
inline constexpr ScriptText give_up{R"lua(
-- ARGV: publish command, tag (if there is one), owners that give up.
-- Answer: the server's clock. A copy of a request of theirs may still take effect until it is no longer wanted.
local now, refusal = time_in_ms(), nil
for i = 3, #ARGV do
    local answer = release(ARGV[i], '0', '0', ARGV[1], ARGV[2])
    if type(answer) == 'table' then refusal = answer end
end
return refusal or now
)lua"};

// For a key that never becomes free.
inline constexpr ScriptText no_lease{R"lua(
local function no_lease() return redis.error_reply('WRONGTYPE the key has no lease, so it is no lock') end
)lua"};

}  // namespace scripts::parts
}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
