// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/quoted.hpp"
#include "redlatch/error.hpp"
#include "redlatch/transport/reply.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <charconv>
#include <cstdint>
#include <string_view>
#include <system_error>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns the number in a text, or 0 for nil. Throws Error for anything else, and for a number of 2^53 or more, which
// scripts could not count with: the key then belongs to something else.
inline std::int64_t number_of(const Reply& reply, std::string_view key) {
    if (reply.is_nil()) return 0;
    if (reply.kind != Reply::Kind::text) throw unexpected(reply, key);
    std::int64_t number = 0;
    const char* const last = reply.text.data() + reply.text.size();
    const auto [end, error] = std::from_chars(reply.text.data(), last, number);
    constexpr std::int64_t limit = std::int64_t{1} << 53;
    if (error != std::errc{} || end != last || number >= limit || number <= -limit)
        throw Error(errc::wrong_type, key,
                    "the key holds " + in_quotes(reply.text, 40) +
                        " instead of a number; something else uses this key; choose another name");
    return number;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
