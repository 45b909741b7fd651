// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/quoted.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/scripts/rlock.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

// Queries the state of a lock on the server, for most functions a hash of owner -> hold count. One round trip each. If
// the server is unreachable, a query retries for unreachable_timeout, or until `limit` if that is earlier. All throw
// Error.
namespace redlatch {
inline namespace v0_1 {

namespace detail {

// `ask(deadline)` sends the query.
template <class T, class Ask>
Reply inquire(Session<T>& session, std::string_view key, Ask ask, Instant limit = never) {
    const Instant give_up = std::min(limit, deadline_after(Clock::now(), session.options().unreachable_timeout));
    Reply reply = session.persist(give_up, {}, [&](Instant deadline, bool) { return ask(deadline); });
    if (classify(reply) != ReplyClass::answered) throw error_of(reply, key);
    return reply;
}

}  // namespace detail

// Returns the number in a text, or 0 for nil. Throws Error for anything else, and for a number of 2^53 or more, which
// scripts could not count with: the key then belongs to something else.
inline std::int64_t number_of(const Reply& reply, std::string_view key) {
    if (reply.is_nil()) return 0;
    if (reply.kind != Reply::Kind::text) throw unexpected(reply, key);
    std::int64_t number = 0;
    const char* const last = reply.text.data() + reply.text.size();
    const auto [end, error] = std::from_chars(reply.text.data(), last, number);
    constexpr std::int64_t limit = std::int64_t{1} << 53;
    if (error != std::errc{} || end != last || number >= limit || number <= -limit)
        throw Error(errc::wrong_type, key,
                    "the key holds " + printable(reply.text, 40) +
                        " and no number of ours; something else uses this key: choose another name");
    return number;
}

// Uses HLEN rather than EXISTS: a key of another type is an error, not a lock.
template <class T>
bool ask_locked(Session<T>& session, std::string_view key, Instant limit) {
    const std::array<std::string_view, 2> words{"HLEN", key};
    const Reply reply = detail::inquire(
        session, key,
        [&](Instant deadline) {
            return session.call({words, 1}, deadline);
        },
        limit);
    if (!reply.is_integer() || reply.integer < 0) throw unexpected(reply, key);
    return reply.integer > 0;
}

// `ask(deadline)` sends the query. The reply is nil for none, or the text of a number.
template <class T, class Ask>
int ask_count(Session<T>& session, std::string_view key, Ask ask, Instant limit) {
    const Reply reply = detail::inquire(session, key, ask, limit);
    if (reply.is_nil()) return 0;
    if (reply.kind != Reply::Kind::text) throw unexpected(reply, key);
    int count = 0;
    const char* const last = reply.text.data() + reply.text.size();
    const auto [end, error] = std::from_chars(reply.text.data(), last, count);
    if (error != std::errc{} || end != last || count < 0) throw unexpected(reply, key);
    return count;
}

template <class T>
int ask_hold_count(Session<T>& session, std::string_view key, std::string_view owner, Instant limit) {
    const std::array<std::string_view, 3> words{"HGET", key, owner};
    return ask_count(
        session, key,
        [&](Instant deadline) {
            return session.call({words, 1}, deadline);
        },
        limit);
}

// `ask(deadline)` sends the query. The reply is nil or a text.
template <class T, class Ask>
std::optional<std::string> ask_text(Session<T>& session, std::string_view key, Ask ask, Instant limit) {
    Reply reply = detail::inquire(session, key, ask, limit);
    if (reply.is_nil()) return std::nullopt;
    if (reply.kind != Reply::Kind::text) throw unexpected(reply, key);
    return std::move(reply.text);
}

// `ask(deadline)` sends the query. The reply is a PTTL, or -2 if the lock is free.
template <class T, class Ask>
std::optional<Milliseconds> ask_lease(Session<T>& session, std::string_view key, Ask ask, Instant limit) {
    const Reply reply = detail::inquire(session, key, ask, limit);
    if (!reply.is_integer() || reply.integer < -2) throw unexpected(reply, key);
    if (reply.integer == -2) return std::nullopt;
    return reply.integer < 0 ? Milliseconds::max() : Milliseconds(reply.integer);
}

// Returns the number stored at a key, or 0 if there is none.
template <class T>
std::int64_t ask_number(Session<T>& session, std::string_view key) {
    const std::array<std::string_view, 2> words{"GET", key};
    const Reply reply = detail::inquire(session, key, [&](Instant deadline) {
        return session.call({words, 1}, deadline);
    });
    return number_of(reply, key);
}

template <class T>
std::optional<Milliseconds> ask_remaining_lease(Session<T>& session, std::string_view key, Instant limit) {
    const auto ask = [&](Instant deadline) {
        return session.calling(deadline)(digested<scripts::rlock_remaining_lease>, Texts<1>{key}, Texts<0>{});
    };
    return ask_lease(session, key, ask, limit);
}

}  // namespace v0_1
}  // namespace redlatch
