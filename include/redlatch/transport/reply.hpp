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
    // Tells what arrived, or why nothing did.
    enum class Kind {
        nil,         // the server has no value
        integer,     // a number
        text,        // a bulk string or a status
        error,       // `text` is the server's error, which begins with a code such as WRONGTYPE
        array,       // several replies
        not_sent,    // there was no connection: the command had no effect. `text` gives the reason
        no_time,     // the same, but only because the caller's time ran out: the server may be available
        unanswered,  // sent, but no reply arrived: the outcome is unknown. `text` gives the reason
        malformed,   // the reply violates the protocol; the connection was closed: the outcome is unknown
    };

    // What did not confirm a command that was carried out.
    enum class Lacking : std::uint8_t {
        replicas,  // fewer replicas than required
        disk,      // the server's disk, in time
        log,       // the server keeps no append-only file
        command,   // the server does not have WAITAOF
        right,     // the user may not call WAITAOF
    };

    Kind kind = Kind::nil;                // what arrived, or why nothing did
    std::int64_t integer = 0;             // of an integer
    std::string text;                     // of a text or an error, or the reason why there is no reply
    std::vector<Reply> elements;          // of an array
    bool replicated = true;               // false if it was carried out, but not confirmed as required
    Lacking lacking = Lacking::replicas;  // why not, if so

    // Makes a reply of this kind; of a number or a text its own kind. For transports and tests.
    static Reply of(std::int64_t number) { return {Kind::integer, number, {}, {}}; }
    static Reply of(std::string text) { return {Kind::text, 0, std::move(text), {}}; }
    static Reply of(Kind kind, std::string text) { return {kind, 0, std::move(text), {}}; }

    // Returns true for Kind::nil.
    bool is_nil() const noexcept { return kind == Kind::nil; }

    // Returns true for Kind::integer.
    bool is_integer() const noexcept { return kind == Kind::integer; }

    // Returns true for Kind::error.
    bool is_error() const noexcept { return kind == Kind::error; }

    // The prefix of an error that comes from the transport, not from the server: they could not establish trust.
    static constexpr std::string_view untrusted = "UNTRUSTED ";

    // Returns true if the server replied.
    bool answered() const noexcept { return kind < Kind::not_sent; }

    // Returns true if the command certainly never reached the server.
    bool is_unsent() const noexcept { return kind == Kind::not_sent || kind == Kind::no_time; }
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch
