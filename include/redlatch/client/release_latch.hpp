// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/core/names.hpp"

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace redlatch {

// The marks that repeated releases leave against their own delayed copies: the keys of one kind of release of one
// lock by one client. `numbered` keeps apart what is numbered apart.
class ReleaseLatches {
public:
    ReleaseLatches(std::string_view key, std::string_view uuid, std::string_view numbered = {})
        : prefix_(prefixed_key("redisson_unlock_latch", key)) {
        prefix_.append(":").append(uuid).append(":").append(numbered);
    }

    // A key without an allocation: names have at most 1024 bytes.
    class Key {
    public:
        Key(std::string_view prefix, std::uint64_t request) noexcept {
            char* end = text_.data() + prefix.copy(text_.data(), text_.size() - 20);
            size_ =
                static_cast<std::size_t>(std::to_chars(end, text_.data() + text_.size(), request).ptr - text_.data());
        }
        operator std::string_view() const noexcept { return {text_.data(), size_}; }

    private:
        std::array<char, longest_name + 128> text_;
        std::size_t size_;
    };

    Key of(std::uint64_t request) const noexcept { return {prefix_, request}; }

    // Longer than any copy of a command can be on its way; '0', so no mark, for a first sending.
    static constexpr std::string_view ttl(bool again) { return again ? "20000" : "0"; }

private:
    std::string prefix_;
};

}  // namespace redlatch
