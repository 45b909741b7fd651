// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/core/sha1.hpp"

#include <array>
#include <string_view>

namespace redlatch {

// A Lua script and the digest by which EVALSHA calls it.
struct Script {
    std::string_view text;
    std::array<char, 40> sha1;

    consteval explicit Script(std::string_view source) : text(source), sha1(sha1_hex(source)) {}

    constexpr std::string_view digest() const { return {sha1.data(), sha1.size()}; }
};

}  // namespace redlatch
