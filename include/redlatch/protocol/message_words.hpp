// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <system_error>

// Reads the messages that a script sends to one waiting process: words with one space between them.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Removes the first word of a message, and returns it.
inline std::string_view next_word(std::string_view& text) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    return word;
}

// The same for a number.
template <class Number>
std::optional<Number> next_number(std::string_view& text) {
    const std::string_view word = next_word(text);
    Number number{};
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (word.empty() || error != std::errc{} || end != word.data() + word.size()) return std::nullopt;
    return number;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
