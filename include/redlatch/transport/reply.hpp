// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// What a command gave: the server's answer, or the reason why there is none. Short texts and numbers need no
// allocation.
struct Reply {
    enum class Kind {
        nil,
        integer,
        text,   // a bulk string or a status
        error,  // the server's own words in `text`, beginning with a code such as WRONGTYPE
        array,
        not_sent,    // no connection could be had: the command had no effect. `text` says why
        no_time,     // the same, but only because the caller's time was over: the server may be well
        unanswered,  // sent, but no answer came: the outcome is unknown. `text` says why
        malformed,   // answered with what no server should say; the connection was closed: the outcome is unknown
    };

    Kind kind = Kind::nil;
    std::int64_t integer = 0;
    std::string text;
    std::vector<Reply> elements;
    bool replicated = true;  // false: carried out, but fewer replicas than required have confirmed it

    static Reply of(std::int64_t number) { return {Kind::integer, number, {}, {}, true}; }
    static Reply of(std::string text) { return {Kind::text, 0, std::move(text), {}, true}; }
    static Reply of(Kind kind, std::string text) { return {kind, 0, std::move(text), {}, true}; }

    bool is_nil() const noexcept { return kind == Kind::nil; }
    bool is_integer() const noexcept { return kind == Kind::integer; }
    bool is_error() const noexcept { return kind == Kind::error; }

    // How the text of an error begins that is not the server's but the transport's: there can be no trust between them.
    static constexpr std::string_view untrusted = "UNTRUSTED ";

    // Whether the server answered at all, and whether the command certainly never reached it.
    bool answered() const noexcept { return kind < Kind::not_sent; }
    bool is_unsent() const noexcept { return kind == Kind::not_sent || kind == Kind::no_time; }
};

}  // namespace v0_1
}  // namespace redlatch
