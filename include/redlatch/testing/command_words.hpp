// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/transport/reply.hpp"

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

// How a modelled server reads the words of a command, and writes its reply.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Thrown by a command that fails. The text is the server's error.
struct CommandError {
    const char* text;
};

inline std::string lowered(std::string_view word) {
    std::string text(word);
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    return text;
}

inline std::int64_t to_integer(std::string_view text,
                               const char* otherwise = "ERR value is not an integer or out of range") {
    std::int64_t number = 0;
    const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failed != std::errc{} || end != text.data() + text.size()) throw CommandError{otherwise};
    return number;
}

inline std::int64_t added(std::int64_t a, std::int64_t b) {
    std::int64_t result = 0;
    if (__builtin_add_overflow(a, b, &result)) throw CommandError{"ERR increment or decrement would overflow"};
    return result;
}

inline Reply nil_reply() { return {}; }
inline Reply ok_reply() { return Reply::of(std::string("OK")); }
inline Reply array_reply() { return Reply{Reply::Kind::array, 0, {}, {}}; }
inline Reply error_reply(std::string text) { return Reply::of(Reply::Kind::error, std::move(text)); }
template <std::integral Number>
Reply integer_reply(Number number) {
    return Reply::of(static_cast<std::int64_t>(number));
}

// A bound of a range of scores. '(' excludes the bound itself.
struct ScoreBound {
    explicit ScoreBound(std::string_view text) : open(text.starts_with('(')) {
        const std::string number(open ? text.substr(1) : text);
        char* end = nullptr;
        value = std::strtod(number.c_str(), &end);
        if (number.empty() || *end != '\0') throw CommandError{"ERR min or max is not a float"};
    }

    bool is_below(double score) const { return open ? value < score : value <= score; }
    bool is_above(double score) const { return open ? value > score : value >= score; }

    bool open;
    double value;
};

// Returns where a range of elements begins and ends. `first` and `last` count from the end if they are negative.
template <class All>
std::pair<std::size_t, std::size_t> slice_of(const All& all, std::string_view first, std::string_view last) {
    const auto size = static_cast<std::int64_t>(all.size());
    const auto place = [&](std::string_view word) {
        const std::int64_t at = to_integer(word);
        return at < 0 ? std::max<std::int64_t>(at + size, -1) : std::min(at, size);
    };
    const std::int64_t begin = std::max<std::int64_t>(place(first), 0);
    const std::int64_t end = std::max(begin, std::min(place(last) + 1, size));
    return {static_cast<std::size_t>(begin), static_cast<std::size_t>(end)};
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
