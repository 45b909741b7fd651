// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/transport/transport.hpp"

#include <string>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Appends a command in the format of Redis: an array of length-prefixed strings. hiredis offers the same, but only into
// a new allocation each time.
inline void append_command(std::string& out, const Command& command) {
    const auto number = [&out](char mark, std::size_t value) {
        out += mark;
        out += NumberText(static_cast<std::int64_t>(value)).view();
        out += "\r\n";
    };
    number('*', command.words.size());
    for (const std::string_view word : command.words) {
        number('$', word.size());
        out += word;
        out += "\r\n";
    }
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
