// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns true if a text contains the secret or a part of it: any four bytes in a row.
inline bool repeats(std::string_view text, std::string_view secret) {
    const std::size_t part = std::min<std::size_t>(secret.size(), 4);
    for (std::size_t at = 0; part > 0 && at + part <= secret.size(); ++at)
        if (text.find(secret.substr(at, part)) != std::string_view::npos) return true;
    return false;
}

// Returns the part of a server's error that is safe to show. A server may echo, and cut off anywhere, the words of a
// command that it rejects, AUTH among them. In that case only the code word is kept, or ERR if that repeats the secret,
// too.
inline std::string quotable(std::string_view error, std::string_view secret) {
    if (secret.empty()) return std::string(error);
    error = error.substr(0, 512);  // no more than this is ever shown, so the rest need not be searched
    if (!repeats(error, secret)) return std::string(error);
    const std::string_view code = error.substr(0, error.find(' '));
    return (repeats(code, secret) ? "ERR" : std::string(code)) + " (text hidden: it contains part of the login)";
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
