// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/scripts/script.hpp"

// A key that should hold a number may hold something else. Lua accepts texts as numbers that Redis does not: '0x10',
// 'nan', ' 7'. Above 2^53 it does not represent every whole number. So scripts check the text before they change
// anything.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {
namespace scripts::parts {

// Precedes the scripts that use it.
inline constexpr ScriptText exact_count{R"lua(
-- Returns the whole number in the text; nil if there is none, or none that Lua represents exactly.
local function count_in(text)
    if text ~= '0' and not string.find(text, '^-?[1-9]%d*$') then return nil end
    local number = tonumber(text)
    if math.abs(number) < 9007199254740992 then return number end
    return nil
end
)lua"};

}  // namespace scripts::parts
}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
