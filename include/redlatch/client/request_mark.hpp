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

// The keys that mark requests of one client to one lock as carried out. Only what names no hold needs them, because a
// second copy would end the next hold. The client numbers its requests through all locks.
class RequestMarks {
public:
    RequestMarks(std::string_view key, std::string_view uuid) : prefix_(prefixed_key("redlatch_request", key)) {
        prefix_.append(":").append(uuid).append(":");
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

private:
    std::string prefix_;
};

}  // namespace redlatch
