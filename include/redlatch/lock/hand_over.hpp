// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/suspended.hpp"
#include "redlatch/lock/deliveries.hpp"
#include "redlatch/lock/lock_core.hpp"
#include "redlatch/lock/releases.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/session/settings.hpp"

#include <mutex>
#include <new>
#include <string>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A hand-over to another waiter of this process that was sent, and its reply.
struct HandOver {
    Leaving leaving;    // the hold that is released
    Claim claim;        // the hold of the successor
    Settings settings;  // of the successor
    Reply reply{};
    SendTime sent_at{};  // of the first sending that may have taken effect
    bool unknown = false;
};

inline Reply hand_over_once(LockCore& core, HandOver& hand_over, Instant deadline) try {
    Session& session = core.session;
    for (int tries = 1;; ++tries) {
        Reply failure;
        const auto now = session.server_time(core.key(), deadline, failure);
        if (!now) return failure;
        hand_over.claim.until = *now + hand_over.leaving.settings.command_timeout.count();
        // The successor's lease counts from the first sending that may have taken effect: a resend does not prolong
        // it.
        const SendTime sent;
        if (!hand_over.unknown) hand_over.sent_at = sent;
        Call call = core.protocol.hand_over(hand_over.leaving.hold, hand_over.claim);
        call.replication = hand_over.settings.replication();
        Reply reply = session.call(call, deadline);
        if (!reply.answered() && !reply.is_unsent()) hand_over.unknown = true;
        if (!session.learn_if_late(core.key(), sent, reply) || tries == 3 || Clock::now() >= deadline) return reply;
    }
} catch (const std::bad_alloc&) {
    return detail::short_of_memory();
}

// Sends a hand-over until it is answered, refused for good, or out of time. Frees the mutex of the lock meanwhile.
inline void send_hand_over(LockCore& core, std::unique_lock<std::mutex>& lock, HandOver& hand_over) {
    try {
        const InFlightGuard in_flight_guard(core, lock);
        lock.unlock();
        Retry retry = core.session.retry(Releases::foreground_deadline(hand_over.leaving.settings));
        do hand_over.reply = hand_over_once(core, hand_over, retry.deadline());
        while (retry.again(hand_over.reply));
    } catch (...) {  // no memory: handled as if nothing had been sent
        hand_over.reply = Reply::of(Reply::Kind::not_sent, std::string());
    }
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
