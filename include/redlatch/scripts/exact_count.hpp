// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

// What a key holds that should be a number is not always one, and Lua takes much for a number that is none for Redis:
// '0x10', 'nan', ' 7'. Above 2^53 it has not even whole numbers. So scripts look before they change anything.
namespace redlatch {
inline namespace v0_1 {
namespace scripts::detail {

// Put before the scripts that use it.
inline constexpr std::string_view exact_count{R"lua(
-- The whole number that is written in the text; nil where there is none, or none that is exact here.
local function count_in(text)
    if text ~= '0' and not string.find(text, '^-?[1-9]%d*$') then return nil end
    local number = tonumber(text)
    if math.abs(number) < 9007199254740992 then return number end
    return nil
end
)lua"};

}  // namespace scripts::detail
}  // namespace v0_1
}  // namespace redlatch
