// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include <sys/random.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns random bytes from the system's CSPRNG. Throws std::system_error if there is none.
template <std::size_t N>
std::array<unsigned char, N> random_bytes() {
    static_assert(N <= 256, "getentropy gives at most 256 bytes");
    std::array<unsigned char, N> bytes;
    if (::getentropy(bytes.data(), N) != 0) throw std::system_error(errno, std::generic_category(), "getentropy");
    return bytes;
}

// Returns a random (version 4) UUID in its canonical 36 characters.
inline std::string make_uuid() {
    static constexpr char digits[] = "0123456789abcdef";
    auto bytes = random_bytes<16>();
    bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | 0x40);
    bytes[8] = static_cast<unsigned char>((bytes[8] & 0x3f) | 0x80);
    std::string text;
    text.reserve(36);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
        text += digits[bytes[i] >> 4];
        text += digits[bytes[i] & 15];
    }
    return text;
}

// Identifies the owner of something within a process: a thread, or an object of class Hold.
using OwnerNumber = std::uint64_t;

inline constexpr OwnerNumber first_hold_owner = OwnerNumber(1) << 63;

// Returns true if the owner is no thread.
constexpr bool is_hold_owner(OwnerNumber owner) noexcept { return owner >= first_hold_owner; }

// Returns a new owner that is no thread. Never reused in this process. Exported as this_thread_number() is.
[[gnu::visibility("default")]] inline OwnerNumber new_hold_owner() noexcept {
    static std::atomic<OwnerNumber> next{first_hold_owner};
    return next.fetch_add(1, std::memory_order_relaxed);
}

// Returns the number of the calling thread. Numbers start at 1 and are never reused in this process, unlike the
// system's thread ids. Exported, because all shared objects of the process must share the numbers; otherwise two
// threads would be one owner.
//
// An object that clang built and that dlopen() loads with RTLD_LOCAL has its own numbers nevertheless. Such objects
// must not share a client or its locks. System thread ids are no alternative, because the system reuses them.
[[gnu::visibility("default")]] inline OwnerNumber this_thread_number() noexcept {
    static std::atomic<OwnerNumber> last{0};
    thread_local const OwnerNumber number = last.fetch_add(1, std::memory_order_relaxed) + 1;
    return number;
}

// Holds the owner as sent to the server, "<uuid>:<number>", without an allocation. A short suffix may follow, or the
// number of one of its holds: "<uuid>:<number>:<hold>".
class OwnerText {
public:
    OwnerText(std::string_view uuid, OwnerNumber number, std::uint64_t hold) noexcept : OwnerText(uuid, number, ":") {
        char* const end = std::to_chars(text_.data() + size_, text_.data() + text_.size(), hold).ptr;
        size_ = static_cast<std::size_t>(end - text_.data());
    }
    OwnerText(std::string_view uuid, OwnerNumber number, std::string_view suffix = {}) noexcept {
        char* end = uuid.copy(text_.data(), 36) + text_.data();
        *end++ = ':';
        end = std::to_chars(end, text_.data() + text_.size(), number).ptr;
        end += suffix.copy(end, longest_suffix);
        size_ = static_cast<std::size_t>(end - text_.data());
    }

    std::string_view view() const noexcept { return {text_.data(), size_}; }
    operator std::string_view() const noexcept { return view(); }

private:
    static constexpr std::size_t longest_suffix = 1 + 20;
    std::array<char, 36 + 1 + 20 + longest_suffix> text_;
    std::size_t size_;
};

// Holds a number as decimal text, without an allocation.
class NumberText {
public:
    explicit NumberText(std::int64_t number) noexcept
        : size_(static_cast<std::size_t>(std::to_chars(text_.data(), text_.data() + text_.size(), number).ptr -
                                         text_.data())) {}

    std::string_view view() const noexcept { return {text_.data(), size_}; }
    operator std::string_view() const noexcept { return view(); }

private:
    std::array<char, 20> text_;
    std::size_t size_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
