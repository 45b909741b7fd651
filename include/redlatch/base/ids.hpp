// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include <sys/random.h>
#include <unistd.h>  // which of the two declares getentropy() differs

namespace redlatch {
inline namespace REDLATCH_ABI {

// Names a logical owner that the program numbers: a request, an actor, a session. Passed to the members of a lock it
// takes the place of the calling thread: levels of one Owner nest, whatever threads they come from, and two Owners
// exclude each other, even in one thread. All 64 bits count. The same number is another owner for another client and
// in another process. On the wire each first hold has a number of its own all the same.
class Owner {
public:
    // Names the owner with this number.
    constexpr explicit Owner(std::uint64_t number) noexcept : number_(number) {}

    // Returns the number as given.
    constexpr std::uint64_t number() const noexcept { return number_; }

    // Compares the numbers.
    friend auto operator<=>(const Owner&, const Owner&) = default;

private:
    std::uint64_t number_;
};

namespace detail {

// Returns random bytes from the system's CSPRNG. Throws std::system_error if there is none.
template <std::size_t N>
std::array<unsigned char, N> random_bytes() {
    static_assert(N <= 256, "getentropy gives at most 256 bytes");
    std::array<unsigned char, N> bytes;
    if (::getentropy(bytes.data(), N) != 0) throw std::system_error(errno, std::generic_category(), "getentropy");
    return bytes;
}

// Returns a random UUID in its canonical 36 characters. Version 4 is the usual one; 8 is for those that have a meaning of
// their own.
inline std::string make_uuid(unsigned version = 4) {
    static constexpr char digits[] = "0123456789abcdef";
    auto bytes = random_bytes<16>();
    bytes[6] = static_cast<unsigned char>((bytes[6] & 0x0f) | (version << 4));
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

// Identifies the owner of something within a process. Each sort of owners has all 64 bits for its numbers.
struct OwnerNumber {
    enum class Sort : unsigned char {
        thread,
        object,   // of class Hold
        program,  // an Owner
    };

    constexpr OwnerNumber(std::uint64_t n, Sort s = Sort::thread) noexcept : number(n), sort(s) {}
    constexpr OwnerNumber(Owner owner) noexcept : OwnerNumber(owner.number(), Sort::program) {}

    // Returns true if several callers may act for it at the same time. (The levels of an object do so, too, but none of
    // them waits for the lock.)
    constexpr bool is_of_program() const noexcept { return sort == Sort::program; }

    friend auto operator<=>(const OwnerNumber&, const OwnerNumber&) = default;

    std::uint64_t number;
    Sort sort;
};

// What the server knows of a hold.
struct HoldFacts {
    std::uint64_t number = 0;  // on the wire "<client id>:<number>"; for a lock over several, of this process alone
    std::int64_t token = 0;    // the fencing token; 0 if the lock has none
};

// Means an owner's hold: the one of this number, or whichever it is.
struct WhichHold {
    WhichHold(OwnerNumber of, std::optional<std::uint64_t> hold = std::nullopt) noexcept : owner(of), number(hold) {}
    WhichHold(OwnerNumber of, const HoldFacts& facts) noexcept : owner(of) {
        if (facts.number != 0) number = facts.number;
    }

    OwnerNumber owner;
    std::optional<std::uint64_t> number;

    bool is(std::uint64_t hold) const noexcept { return !number || *number == hold; }
};

// Returns a new owner for an object. Numbers start at 1 and are never reused in this process. Exported as
// this_thread_number() is.
[[gnu::visibility("default")]] inline OwnerNumber new_hold_owner() noexcept {
    static std::atomic<std::uint64_t> last{0};
    return {last.fetch_add(1, std::memory_order_relaxed) + 1, OwnerNumber::Sort::object};
}

// Returns the number of the calling thread. Numbers start at 1 and are never reused in this process, unlike the
// system's thread ids. Exported, because all shared objects of the process must share the numbers; otherwise two
// threads would be one owner.
//
// An object that clang built and that dlopen() loads with RTLD_LOCAL has its own numbers nevertheless. Such objects
// must not share a client or its locks. System thread ids are no alternative, because the system reuses them.
[[gnu::visibility("default")]] inline std::uint64_t this_thread_number() noexcept {
    static std::atomic<std::uint64_t> last{0};
    thread_local const std::uint64_t number = last.fetch_add(1, std::memory_order_relaxed) + 1;
    return number;
}

// Marks the number of a hold whose release grants nothing to those who queue, because its client may not use their queue.
// Then the id in the text of its owner has version 4, like those of clients that know nothing of queues.
inline constexpr std::uint64_t grants_nothing = std::uint64_t{1} << 52;

// Holds the owner as sent to the server, "<uuid>:<number>", without an allocation. A short suffix may follow, or the
// number of one of its holds: "<uuid>:<number>:<hold>".
class OwnerText {
public:
    OwnerText(std::string_view uuid, std::uint64_t number, std::uint64_t hold) noexcept : OwnerText(uuid, number, ":") {
        char* const end = std::to_chars(text_.data() + size_, text_.data() + text_.size(), hold).ptr;
        size_ = static_cast<std::size_t>(end - text_.data());
    }
    OwnerText(std::string_view uuid, std::uint64_t number, std::string_view suffix = {}) noexcept {
        char* end = uuid.copy(text_.data(), 36) + text_.data();
        if ((number & grants_nothing) != 0) text_[version_at] = '4';
        *end++ = ':';
        end = std::to_chars(end, text_.data() + text_.size(), number).ptr;
        end += suffix.copy(end, longest_suffix);
        size_ = static_cast<std::size_t>(end - text_.data());
    }

    std::string_view view() const noexcept { return {text_.data(), size_}; }
    operator std::string_view() const noexcept { return view(); }

private:
    static constexpr std::size_t longest_suffix = 1 + 20;
    static constexpr std::size_t version_at = 14;
    std::array<char, 36 + 1 + 20 + longest_suffix> text_;
    std::size_t size_;
};

// An owner of the form "<client id>:<number>".
struct OwnerParts {
    std::string_view client;
    std::uint64_t number;
};

// Returns the parts of an owner; nothing if it has another form. They refer to the text.
inline std::optional<OwnerParts> parts_of_owner(std::string_view owner) noexcept {
    constexpr std::size_t id_size = 36;
    if (owner.size() < id_size + 2 || owner[id_size] != ':') return std::nullopt;
    std::uint64_t number = 0;
    const char* const last = owner.data() + owner.size();
    const auto [end, error] = std::from_chars(owner.data() + id_size + 1, last, number);
    if (error != std::errc{} || end != last) return std::nullopt;
    return OwnerParts{owner.substr(0, id_size), number};
}

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
