// SPDX-License-Identifier: MIT
#pragma once

#include <redlatch/redlatch.hpp>

#include <string>
#include <string_view>

namespace redlatch::test {

using namespace redlatch::detail;

/// Returns the words of a call, separated by spaces: keys and arguments, or the plain command.
inline std::string words_of(const Call& call, std::string_view publish_command = "PUBLISH") {
    std::string words;
    for (std::size_t i = 0; i < call.size(); ++i) {
        if (i > 0) words += ' ';
        words += call[i].view(publish_command);
    }
    return words;
}

}  // namespace redlatch::test
