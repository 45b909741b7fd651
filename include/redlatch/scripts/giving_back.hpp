// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

// What the scripts of all locks have in common that give something back. Before the first two stands a function
// release(owner, count that remains, lease in ms for a remaining hold, publish command, tag).
namespace redlatch {
inline namespace v0_1 {
namespace scripts::detail {

inline constexpr std::string_view release_levels{R"lua(
-- ARGV: owner, count that remains, lease in ms for a remaining hold, publish command, tag (where there is one).
return release(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
)lua"};

// For owners of whom nobody knows what they have: an answer did not come.
inline constexpr std::string_view give_up{R"lua(
-- ARGV: publish command, tag (where there is one), owners that want nothing any more.
-- Answer: the server's clock. A copy of what they asked for may still arrive until it was wanted.
local now, refusal = time_in_ms(), nil
for i = 3, #ARGV do
    local answer = release(ARGV[i], '0', '0', ARGV[1], ARGV[2])
    if type(answer) == 'table' then refusal = answer end
end
return refusal or now
)lua"};

// A key that never comes free.
inline constexpr std::string_view no_lease{R"lua(
local function no_lease() return redis.error_reply('WRONGTYPE the key has no lease, so it is no lock') end
)lua"};

}  // namespace scripts::detail
}  // namespace v0_1
}  // namespace redlatch
