// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/core/names.hpp"

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace redlatch {

// The key of the mark that a command leaves against its own delayed copies: "<prefix><request>", without an
// allocation, because names have at most 1024 bytes.
class LatchText {
public:
    LatchText(std::string_view prefix, std::uint64_t request) noexcept {
        char* end = text_.data() + prefix.copy(text_.data(), text_.size() - 20);
        size_ = static_cast<std::size_t>(std::to_chars(end, text_.data() + text_.size(), request).ptr - text_.data());
    }
    operator std::string_view() const noexcept { return {text_.data(), size_}; }

private:
    std::array<char, longest_name + 128> text_;
    std::size_t size_;
};

// For how long it stays: longer than any copy of a command can be on its way. '0' for a first sending, which leaves none.
constexpr std::string_view latch_ttl(bool again) { return again ? "20000" : "0"; }

}  // namespace redlatch
