// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/core/sha1.hpp"

#include <array>
#include <cstddef>
#include <string_view>

namespace redlatch {

// A Lua script and the digest by which EVALSHA calls it.
struct Script {
    std::string_view text;
    std::array<char, 40> sha1;

    consteval explicit Script(std::string_view source) : text(source), sha1(sha1_hex(source)) {}

    constexpr std::string_view digest() const { return {sha1.data(), sha1.size()}; }
};

// The text of a script that begins with what it shares with others.
template <const std::string_view& Shared, const std::string_view& Own>
struct JoinedText {
    static constexpr auto text = [] {
        std::array<char, Shared.size() + Own.size()> joined{};
        Own.copy(joined.data() + Shared.copy(joined.data(), Shared.size()), Own.size());
        return joined;
    }();
    static constexpr std::string_view value{text.data(), text.size()};
};

}  // namespace redlatch
