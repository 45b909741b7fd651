// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/transport/transport.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Appends a command in the format of Redis: an array of length-prefixed strings. hiredis offers the same, but only into
// a new allocation each time. Makes room once, for the longest numbers, and gives back what is left.
inline void append_command(std::string& out, const Command& command) {
    static constexpr std::size_t longest_number = 20;
    static constexpr std::string_view line_end = "\r\n";
    std::size_t room = 1 + longest_number + line_end.size();
    for (const std::string_view word : command.words) room += 1 + longest_number + word.size() + 2 * line_end.size();
    const std::size_t before = out.size();
    if (out.capacity() < before + room) out.reserve(std::max(before + room, out.capacity() * 2));
    out.resize(before + room);
    char* end = out.data() + before;
    const auto text = [&end](std::string_view bytes) { end += bytes.copy(end, bytes.size()); };
    const auto number = [&](char mark, std::size_t value) {
        *end++ = mark;
        end = std::to_chars(end, end + longest_number, value).ptr;
        text(line_end);
    };
    number('*', command.words.size());
    for (const std::string_view word : command.words) {
        number('$', word.size());
        text(word);
        text(line_end);
    }
    out.resize(static_cast<std::size_t>(end - out.data()));
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
