// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <cstdint>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns a hash of the bytes that is the same on every platform and in every version, unlike that of std::hash: FNV-1a of
// 64 bits, whose halves are combined by exclusive or, because its lower bits alone depend on few bits of the text.
constexpr std::uint32_t stable_hash(std::string_view text) noexcept {
    std::uint64_t hash = 0xcbf29ce484222325;
    for (const char byte : text) {
        hash ^= static_cast<unsigned char>(byte);
        hash *= 0x100000001b3;
    }
    return static_cast<std::uint32_t>((hash >> 32) ^ (hash & 0xffffffff));
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
