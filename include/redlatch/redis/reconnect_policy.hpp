// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/redis/failure_reply.hpp"

#include <cstdint>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Decides when the next attempt to connect may begin, and keeps the reason why there is no connection. Connects nothing.
// Not thread-safe.
class ReconnectPolicy {
public:
    bool may_begin(Instant now) const noexcept { return now >= next_attempt_; }
    Instant next_attempt() const noexcept { return next_attempt_; }

    // Counts failed attempts and refusals, so that a waiting thread notices those since it began.
    std::uint64_t failures() const noexcept { return failures_; }

    Reply why_not() const noexcept { return detail::copy_of(why_not_); }

    // Returns false if the last attempt reached a server that refused us.
    bool is_unreachable() const noexcept { return why_not_.is_unsent(); }

    // Returns why there is no connection at the deadline of a caller: no_time unless an attempt failed for another
    // reason than a short deadline.
    Reply why_not_in_time() const noexcept {
        Reply reply = why_not();
        if (!attempt_failed_) reply.kind = Reply::Kind::no_time;
        return reply;
    }

    void connected() noexcept {
        backoff_.reset();
        is_proven_ = false;
        attempt_failed_ = false;
        next_attempt_ = {};
    }

    // True `for_want_of_time`: the attempt shows nothing about the server.
    void attempt_failed(const Reply& why, Instant now, bool for_want_of_time) noexcept {
        attempt_failed_ = !for_want_of_time;
        detail::copy_reply(why_not_, why, why.kind);
        ++failures_;
        next_attempt_ = now + backoff_.next();
    }

    void attempt_not_begun(Instant now) noexcept { next_attempt_ = now + backoff_.next(); }

    // Called with each reply. Returns true for the first one of a connection.
    bool replied() noexcept {
        if (std::exchange(is_proven_, true)) return false;
        closed_backoff_.reset();
        return true;
    }

    // If a server accepts connections only to close them, retries with pauses. They are short, because this may be
    // chance.
    void connection_ended(Reply why, Instant now) noexcept {
        why_not_ = std::move(why);
        if (is_proven_) return;
        attempt_failed_ = true;
        next_attempt_ = now + closed_backoff_.next();
    }

    // The server gets no more commands. Threads that wait for a connection give up.
    void refuse(Reply why) noexcept {
        why_not_ = std::move(why);
        ++failures_;
    }

    // Ends the pause. Returns true if there was one.
    bool end_pause(Instant now) noexcept { return std::exchange(next_attempt_, Instant{}) > now; }

    // Another server is wanted: the pauses begin with the shortest one again.
    void start_over() noexcept {
        next_attempt_ = {};
        backoff_.reset();
    }

private:
    Reply why_not_ = Reply::of(Reply::Kind::not_sent, "the deadline left no time to connect");
    Backoff backoff_{Milliseconds(10), longest_pause};           // after failed attempts
    Backoff closed_backoff_{Milliseconds(1), Milliseconds(50)};  // after connections without any reply
    Instant next_attempt_{};
    std::uint64_t failures_ = 0;
    bool is_proven_ = false;       // this connection has received a reply
    bool attempt_failed_ = false;  // the last attempt failed, and not for lack of time
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
