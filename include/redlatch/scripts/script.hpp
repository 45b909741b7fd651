// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/sha1.hpp"

#include <array>
#include <cstddef>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A Lua script and its SHA-1 digest, by which EVALSHA calls it.
struct Script {
    std::string_view text;
    std::array<char, 40> sha1;

    consteval explicit Script(std::string_view source) : text(source), sha1(sha1_hex(source)) {}

    // With a digest that was computed before.
    consteval Script(std::string_view source, const char (&digest)[41]) : text(source), sha1{} {
        for (std::size_t i = 0; i < sha1.size(); ++i) sha1[i] = digest[i];
    }

    constexpr std::string_view digest() const { return {sha1.data(), sha1.size()}; }
};

// The script of a text. The compiler computes the digest, slowly. The library's own scripts have theirs beside the text.
template <const std::string_view& text>
inline constexpr Script digested{text};

namespace scripts {

namespace parts {

template <const std::string_view&... parts>
inline constexpr auto joined_array = [] {
    // Plain loops: compilers evaluate them several times as fast as string_view::copy().
    std::array<char, (0 + ... + parts.size())> all{};
    char* to = all.data();
    const auto copy = [&to](const char* from, std::size_t size) {
        for (std::size_t i = 0; i < size; ++i) *to++ = from[i];
    };
    (copy(parts.data(), parts.size()), ...);
    return all;
}();

}  // namespace parts

// The text of a script that shares its first parts with others.
template <const std::string_view&... parts>
inline constexpr std::string_view joined{parts::joined_array<parts...>.data(), parts::joined_array<parts...>.size()};

}  // namespace scripts

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
