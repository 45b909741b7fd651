// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

// The text of a reply for which there is no memory. Short enough to need no allocation.
inline constexpr const char* no_memory = "out of memory";

}  // namespace detail

// The result of a command: the server's reply, or the reason why there is none. Short texts and numbers need no
// allocation.
struct Reply {
    enum class Kind {
        nil,
        integer,
        text,   // a bulk string or a status
        error,  // `text` is the server's error, which begins with a code such as WRONGTYPE
        array,
        not_sent,    // there was no connection: the command had no effect. `text` gives the reason
        no_time,     // the same, but only because the caller's time ran out: the server may be available
        unanswered,  // sent, but no reply arrived: the outcome is unknown. `text` gives the reason
        malformed,   // the reply violates the protocol; the connection was closed: the outcome is unknown
    };

    Kind kind = Kind::nil;
    std::int64_t integer = 0;
    std::string text;
    std::vector<Reply> elements;
    bool replicated = true;  // false if it was carried out, but fewer replicas than required confirmed it

    static Reply of(std::int64_t number) { return {Kind::integer, number, {}, {}, true}; }
    static Reply of(std::string text) { return {Kind::text, 0, std::move(text), {}, true}; }
    static Reply of(Kind kind, std::string text) { return {kind, 0, std::move(text), {}, true}; }

    bool is_nil() const noexcept { return kind == Kind::nil; }
    bool is_integer() const noexcept { return kind == Kind::integer; }
    bool is_error() const noexcept { return kind == Kind::error; }

    // The prefix of an error that comes from the transport, not from the server: they could not establish trust.
    static constexpr std::string_view untrusted = "UNTRUSTED ";

    // answered() returns true if the server replied. is_unsent() returns true if the command certainly never reached
    // it.
    bool answered() const noexcept { return kind < Kind::not_sent; }
    bool is_unsent() const noexcept { return kind == Kind::not_sent || kind == Kind::no_time; }
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch
