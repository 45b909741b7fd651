// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/base/pause.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/session/counters.hpp"
#include "redlatch/session/events.hpp"
#include "redlatch/session/remote_clock.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <algorithm>
#include <new>
#include <stop_token>
#include <thread>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Decides whether a command is sent again, until it is answered or refused for good, until a deadline, or until a stop
// is requested. It sends nothing itself:
//   do
//       reply = …call(…, retry.deadline());
//   while (retry.again(reply));
class Retry {
public:
    struct Limits {
        Instant deadline;
        std::stop_token stop{};
        bool one_try = false;  // true if a temporary refusal ends the call, too
    };

    Retry(const Limits& limits, Milliseconds command_timeout, RemoteClock& clock, Events& events, Counters& counters)
        : limits_(limits), command_timeout_(command_timeout), clock_(clock), events_(events), counters_(counters) {}

    // Returns until when the next try may take. Each has command_timeout.
    Instant deadline() const { return std::min(limits_.deadline, Clock::now() + command_timeout_); }

    // Returns true if an earlier try may have taken effect.
    bool is_resend() const noexcept { return is_resend_; }

    // Takes the reply to a try. Returns true if the command has to be sent again; then it has paused, if the server or
    // a shortage of memory demands it.
    bool again(const Reply& reply) {
        const ReplyClass verdict = classify(reply);
        if (verdict == ReplyClass::answered) {
            events_.on_reconnect();
            return false;
        }
        // no_script here: the server rejected even the text. late: the sender has already resent it with the time that
        // the reply reported.
        if (verdict == ReplyClass::refused || verdict == ReplyClass::no_script || verdict == ReplyClass::late ||
            limits_.stop.stop_requested())
            return false;
        if (limits_.one_try && verdict == ReplyClass::refused_now) return false;
        if (reply.kind == Reply::Kind::unanswered) is_resend_ = true;
        // The transport itself waits for its connection; only a temporary refusal by the server needs a pause.
        if (verdict == ReplyClass::refused_now) rest(std::min(limits_.deadline, Clock::now() + backoff_.next()));
        if (Clock::now() >= limits_.deadline) return false;
        if (verdict == ReplyClass::no_answer) {
            // The next reply may come from another server, or from this one with another clock.
            clock_.doubt();
            events_.on_disconnect();
        }
        counters_.resends.add();
        return true;
    }

private:
    // Sleeps until `until`; only briefly if memory is short.
    void rest(Instant until) const {
        try {
            pause(until, limits_.stop);
        } catch (const std::bad_alloc&) {
            std::this_thread::sleep_for(Milliseconds(1));
        }
    }

    const Limits limits_;
    const Milliseconds command_timeout_;
    RemoteClock& clock_;
    Events& events_;
    Counters& counters_;
    Backoff backoff_{Milliseconds(2), longest_pause};
    bool is_resend_ = false;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
