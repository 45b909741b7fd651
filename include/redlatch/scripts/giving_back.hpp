// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

// What the scripts of all locks have in common that give something back. Before the first two stands a function
// release(owner, count that remains, lease in ms for a remaining hold, publish command, tag).
namespace redlatch::scripts::detail {

inline constexpr std::string_view release_levels{R"lua(
-- ARGV: owner, count that remains, lease in ms for a remaining hold, publish command, tag (where there is one).
return release(ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5])
)lua"};

// For owners of whom nobody knows what they have: an answer did not come.
inline constexpr std::string_view give_up{R"lua(
-- ARGV: publish command, tag (where there is one), owners that want nothing any more.
-- Answer: the server's clock. A copy of what they asked for may still arrive until it was wanted.
for i = 3, #ARGV do release(ARGV[i], '0', '0', ARGV[1], ARGV[2]) end
return time_in_ms()
)lua"};

// A request that names no hold would end the next one if it were carried out twice: so it leaves a mark, as long as a
// copy of it could take effect.
inline constexpr std::string_view once{R"lua(
local function once(mark, wanted_until)
    local before = redis.call('get', mark)
    if before then return tonumber(before) end
    local now = time_in_ms()
    if now > tonumber(wanted_until) then return late(now) end
    return nil
end
-- To be called before anything is changed. The first write is one that Redis allows when its memory is full.
local function mark_as_done(mark, wanted_until, outcome)
    redis.call('del', mark)
    redis.call('set', mark, outcome, 'px', math.max(1, wanted_until - time_in_ms() + 1000))
end
)lua"};

// A key that never comes free.
inline constexpr std::string_view no_lease{R"lua(
local function no_lease() return redis.error_reply('WRONGTYPE the key has no lease, so it is no lock') end
)lua"};

}  // namespace redlatch::scripts::detail
