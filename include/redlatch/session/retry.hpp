// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/base/pause.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/session/continuations.hpp"
#include "redlatch/session/counters.hpp"
#include "redlatch/session/events.hpp"
#include "redlatch/session/remote_clock.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <algorithm>
#include <optional>
#include <stop_token>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Decides whether a command is sent again, until it is answered or refused for good, until a deadline, or until a stop
// is requested. It sends nothing itself. A caller that blocks its thread:
//   do
//       reply = …call(…, retry.deadline());
//   while (retry.again(reply));
// A task rests between rest_after() and goes_on(), which together do what again() does.
class Retry {
public:
    struct Limits {
        Instant deadline;
        std::stop_token stop{};
        bool one_try = false;  // true if a temporary refusal ends the call, too
        WaitBy by = by_thread;
        Milliseconds command_timeout{};  // zero: that of the client
    };

    Retry(Limits limits, RemoteClock& clock, Events& events, Counters& counters)
        : limits_(std::move(limits)), clock_(clock), events_(events), counters_(counters) {}

    // Returns until when the next try may take. Each has command_timeout.
    Instant deadline() const { return std::min(limits_.deadline, Clock::now() + limits_.command_timeout); }

    // Returns true if an earlier try may have taken effect.
    bool is_resend() const noexcept { return is_resend_; }

    // Takes the reply to a try. Returns until when to rest before the command is sent again, perhaps not at all; nothing
    // if it is not sent again.
    std::optional<Instant> rest_after(const Reply& reply) {
        const ReplyClass verdict = classify(reply);
        if (verdict == ReplyClass::answered) {
            events_.on_reconnect();
            return std::nullopt;
        }
        // no_script here: the server rejected even the text. late: the sender has already resent it with the time that
        // the reply reported.
        if (verdict == ReplyClass::refused || verdict == ReplyClass::no_script || verdict == ReplyClass::late ||
            limits_.stop.stop_requested())
            return std::nullopt;
        if (limits_.one_try && verdict == ReplyClass::refused_now) return std::nullopt;
        if (reply.kind == Reply::Kind::unanswered) is_resend_ = true;
        if (verdict == ReplyClass::no_answer) {
            // The next reply may come from another server, or from this one with another clock.
            clock_.doubt();
            events_.on_disconnect(reply.text);
        }
        const Instant now = Clock::now();
        // A call waits for its connection in the transport. A posted command does not wait.
        if (verdict != ReplyClass::refused_now && limits_.by == by_thread) return now;
        return std::min(limits_.deadline, now + backoff_.next());
    }

    // Called after the rest. Returns true if there is time to send the command again.
    bool goes_on() {
        if (Clock::now() >= limits_.deadline) return false;
        counters_.resends.add();
        return true;
    }

    // Takes the reply to a try, and rests. Returns true if the command has to be sent again.
    bool again(const Reply& reply) {
        const auto rest = rest_after(reply);
        if (!rest) return false;
        pause(*rest, limits_.stop);
        return goes_on();
    }

private:
    const Limits limits_;
    RemoteClock& clock_;
    Events& events_;
    Counters& counters_;
    Backoff backoff_{Milliseconds(2), longest_pause};
    bool is_resend_ = false;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
