// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns the SHA-1 in 40 hex digits: the name under which Redis caches a script (FIPS 180-4, 6.1). The library names its
// scripts by checked-in digests; the server in memory and cmake/digests.cmake compute them.
constexpr std::array<char, 40> sha1_hex(std::string_view text) {
    std::uint32_t hash[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    const char* const data = text.data();
    const std::size_t size = text.size();
    const std::size_t blocks = (size + 8) / 64 + 1;

    for (std::size_t block = 0; block < blocks; ++block) {
        std::uint32_t w[80] = {};
        for (std::size_t i = 0, at = block * 64; i < 16; ++i, at += 4) {
            if (at + 4 <= size) {
                w[i] = static_cast<std::uint32_t>(static_cast<unsigned char>(data[at])) << 24 |
                       static_cast<std::uint32_t>(static_cast<unsigned char>(data[at + 1])) << 16 |
                       static_cast<std::uint32_t>(static_cast<unsigned char>(data[at + 2])) << 8 |
                       static_cast<std::uint32_t>(static_cast<unsigned char>(data[at + 3]));
            } else {
                // The end of the text, followed by a one bit and zeros.
                for (std::size_t j = 0; j < 4; ++j)
                    w[i] = w[i] << 8 |
                           (at + j < size    ? static_cast<std::uint32_t>(static_cast<unsigned char>(data[at + j]))
                            : at + j == size ? 0x80u
                                             : 0u);
            }
        }
        if (block + 1 == blocks) {
            w[14] = static_cast<std::uint32_t>(static_cast<std::uint64_t>(size) >> 29);
            w[15] = static_cast<std::uint32_t>(size << 3);
        }
        for (std::size_t i = 16; i < 80; ++i) {
            const std::uint32_t x = w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16];
            w[i] = x << 1 | x >> 31;
        }

        std::uint32_t a = hash[0], b = hash[1], c = hash[2], d = hash[3], e = hash[4];
        for (std::size_t i = 0; i < 80; ++i) {
            std::uint32_t next = (a << 5 | a >> 27) + e + w[i];
            if (i < 20)
                next += (d ^ (b & (c ^ d))) + 0x5a827999;
            else if (i < 40)
                next += (b ^ c ^ d) + 0x6ed9eba1;
            else if (i < 60)
                next += ((b & c) | (d & (b | c))) + 0x8f1bbcdc;
            else
                next += (b ^ c ^ d) + 0xca62c1d6;
            e = d;
            d = c;
            c = b << 30 | b >> 2;
            b = a;
            a = next;
        }
        hash[0] += a;
        hash[1] += b;
        hash[2] += c;
        hash[3] += d;
        hash[4] += e;
    }

    constexpr char digits[] = "0123456789abcdef";
    std::array<char, 40> hex{};
    for (std::size_t i = 0; i < 40; ++i) hex[i] = digits[(hash[i / 8] >> (28 - 4 * (i % 8))) & 15];
    return hex;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
