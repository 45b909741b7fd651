// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

// Computes the Redis Cluster slot of a key or a sharded channel.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

inline constexpr std::uint16_t slot_count = 16384;

// CRC16 by the XMODEM rules: polynomial 0x1021, initial value 0, most significant bit first.
constexpr std::array<std::uint16_t, 256> make_crc16_table() {
    std::array<std::uint16_t, 256> table{};
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
        std::uint32_t crc = byte << 8;
        for (int bit = 0; bit < 8; ++bit) crc = (crc & 0x8000) != 0 ? (crc << 1) ^ 0x1021 : crc << 1;
        table[byte] = static_cast<std::uint16_t>(crc);
    }
    return table;
}

inline constexpr std::array<std::uint16_t, 256> crc16_table = make_crc16_table();

constexpr std::uint16_t crc16(std::string_view bytes) {
    std::uint32_t crc = 0;
    for (const char c : bytes)
        crc = ((crc << 8) ^ crc16_table[((crc >> 8) ^ static_cast<unsigned char>(c)) & 0xff]) & 0xffff;
    return static_cast<std::uint16_t>(crc);
}

// Returns the slot of a key. In a key with a {tag} only the tag counts: the text between the first brace and the next
// closing one, if it is not empty.
constexpr std::uint16_t key_slot(std::string_view key) {
    if (const auto open = key.find('{'); open != std::string_view::npos) {
        const auto close = key.find('}', open + 1);
        if (close != std::string_view::npos && close > open + 1) key = key.substr(open + 1, close - open - 1);
    }
    return static_cast<std::uint16_t>(detail::crc16(key) % slot_count);
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
