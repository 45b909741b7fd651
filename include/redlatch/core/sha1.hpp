// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace redlatch {

// SHA-1 in 40 hex digits, at compile time: the name under which Redis caches a script (FIPS 180-4, 6.1).
constexpr std::array<char, 40> sha1_hex(std::string_view text) {
    const auto rotate = [](std::uint32_t x, int n) { return (x << n) | (x >> (32 - n)); };
    std::array<std::uint32_t, 5> hash{0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};

    const std::size_t blocks = (text.size() + 8) / 64 + 1;
    const std::uint64_t bits = static_cast<std::uint64_t>(text.size()) * 8;
    const auto padded_byte = [&](std::size_t i) -> std::uint32_t {
        if (i < text.size()) return static_cast<unsigned char>(text[i]);
        if (i == text.size()) return 0x80;
        const std::size_t from_end = blocks * 64 - 1 - i;
        return from_end < 8 ? static_cast<std::uint32_t>((bits >> (8 * from_end)) & 0xff) : 0;
    };

    for (std::size_t block = 0; block < blocks; ++block) {
        std::array<std::uint32_t, 80> w{};
        for (std::size_t i = 0; i < 16; ++i)
            for (std::size_t j = 0; j < 4; ++j) w[i] = (w[i] << 8) | padded_byte(block * 64 + i * 4 + j);
        for (std::size_t i = 16; i < 80; ++i) w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);

        auto [a, b, c, d, e] = hash;
        for (std::size_t i = 0; i < 80; ++i) {
            const std::uint32_t f = i < 20   ? (b & c) | (~b & d)
                                    : i < 40 ? b ^ c ^ d
                                    : i < 60 ? (b & c) | (b & d) | (c & d)
                                             : b ^ c ^ d;
            const std::uint32_t k = i < 20 ? 0x5a827999 : i < 40 ? 0x6ed9eba1 : i < 60 ? 0x8f1bbcdc : 0xca62c1d6;
            const std::uint32_t next = rotate(a, 5) + f + e + k + w[i];
            e = d;
            d = c;
            c = rotate(b, 30);
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

}  // namespace redlatch
