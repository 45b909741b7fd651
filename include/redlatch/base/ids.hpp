// SPDX-License-Identifier: MIT
#pragma once

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
inline namespace v0_1 {

// Random bytes from the system's CSPRNG. Throws std::system_error where there is none.
template <std::size_t N>
std::array<unsigned char, N> random_bytes() {
    static_assert(N <= 256, "getentropy gives at most 256 bytes");
    std::array<unsigned char, N> bytes;
    if (::getentropy(bytes.data(), N) != 0) throw std::system_error(errno, std::generic_category(), "getentropy");
    return bytes;
}

// A random (version 4) UUID in its canonical 36 characters.
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

// Who holds something within a process: today a thread's number, tomorrow a coroutine's or a hold's own.
using OwnerNumber = std::uint64_t;

// The calling thread's number: from 1, and never reused in this process, unlike the system's thread ids. Visible, for all
// shared objects of the process must have the same numbers, or two threads would be one owner.
// An object that clang built and dlopen() loads for itself (RTLD_LOCAL) has numbers of its own nevertheless: such objects
// must not share a client, nor its locks. What the system calls a thread is no remedy, for it uses those names again.
[[gnu::visibility("default")]] inline OwnerNumber this_thread_number() noexcept {
    static std::atomic<OwnerNumber> last{0};
    thread_local const OwnerNumber number = last.fetch_add(1, std::memory_order_relaxed) + 1;
    return number;
}

// "<uuid>:<number>", the owner as it stands on the wire, without an allocation; a few bytes may follow, or the number
// of one of its holds: "<uuid>:<number>:<hold>".
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

// A number in decimal, without an allocation.
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

}  // namespace v0_1
}  // namespace redlatch
