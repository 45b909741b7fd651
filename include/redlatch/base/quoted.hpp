// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <cstddef>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes foreign text safe for a message: keeps at most `most` bytes and writes control and non-ASCII bytes as \xNN.
inline std::string escaped(std::string_view text, std::size_t most = 64) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string out;
    for (const char c : text.substr(0, most)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte < 0x7f && c != '\\') {
            out += c;
        } else {
            out += "\\x";
            out += digits[byte >> 4];
            out += digits[byte & 15];
        }
    }
    return text.size() > most ? out + "…" : out;
}

// Does the same and adds quotation marks.
inline std::string in_quotes(std::string_view text, std::size_t most = 64) {
    std::string out = "'";  // g++ 12 warns about a literal + a string
    out += escaped(text, most);
    out += "'";
    return out;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
