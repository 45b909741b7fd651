// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/error.hpp"

#include <array>
#include <compare>
#include <cstddef>
#include <cstring>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

// Returns two hex digits for each byte.
inline std::string hex_of(std::string_view bytes) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string hex;
    for (const char byte : bytes) {
        hex += digits[static_cast<unsigned char>(byte) >> 4];
        hex += digits[static_cast<unsigned char>(byte) & 15];
    }
    return hex;
}

}  // namespace detail

// Identifies one permit that is held: 16 bytes, most of them random. Any process in any language can release the permit
// with it. As text it has 32 hex digits, the same that Redisson shows.
class PermitId {
public:
    // Returns an id of 14 random bytes and "rl", by which scripts tell our permits from those of other libraries: see
    // scripts/semaphore_queue.hpp. Throws std::system_error if the system has no random bytes.
    static PermitId random() {
        std::array<unsigned char, 16> bytes = detail::random_bytes<16>();
        bytes[14] = 'r';
        bytes[15] = 'l';
        return PermitId(bytes);
    }

    // Parses 32 hex digits. Throws Error(errc::invalid_argument) for anything else.
    static PermitId parse(std::string_view text) {
        std::array<unsigned char, 16> bytes{};
        bool proper = text.size() == 32;
        for (std::size_t i = 0; proper && i < 16; ++i) {
            const int high = value_of(text[2 * i]), low = value_of(text[2 * i + 1]);
            proper = high >= 0 && low >= 0;
            bytes[i] = static_cast<unsigned char>((high << 4 | low) & 0xff);
        }
        if (!proper) throw Error(errc::invalid_argument, {}, "a permit id must consist of 32 hex digits");
        return PermitId(bytes);
    }

    // Returns 32 hex digits, in lower case.
    std::string text() const { return detail::hex_of(bytes()); }

    // Returns the bytes as stored in Redis.
    std::string_view bytes() const noexcept { return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()}; }

    // Compares the bytes.
    friend auto operator<=>(const PermitId&, const PermitId&) = default;

    // Writes text().
    template <class Traits>
    friend std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, const PermitId& id) {
        return out << id.text().c_str();
    }

private:
    explicit PermitId(const std::array<unsigned char, 16>& bytes) : bytes_(bytes) {}

    static int value_of(char digit) {
        if (digit >= '0' && digit <= '9') return digit - '0';
        if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
        if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
        return -1;
    }

    std::array<unsigned char, 16> bytes_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

template <>
struct std::hash<redlatch::PermitId> {
    // The bytes are random already.
    std::size_t operator()(const redlatch::PermitId& id) const noexcept {
        std::size_t some;
        std::memcpy(&some, id.bytes().data(), sizeof some);
        return some;
    }
};
