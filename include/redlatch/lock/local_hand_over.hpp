// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/suspended.hpp"
#include "redlatch/error.hpp"
#include "redlatch/lock/hand_over.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/lock/lock_parts.hpp"
#include "redlatch/lock/lock_queue.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/wait/waiting_room.hpp"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Hands a hold that is released to a waiter of this process, in one command. The mutex of the lock guards all members.
class LocalHandOver {
    using Room = WaitingRoom<LockQueue>;

public:
    LocalHandOver(LockParts& parts, Room& room) : parts_(parts), core_(parts.core), room_(room) {}

    // Returns the waiter that gets this hold next; nullptr if the server has to be told that it is free. While a hold is
    // being handed over, another one that was acquired beside it (the server has lost the first) is not: only one waiter
    // at a time can be out of the queue.
    LockWaiter* successor_of(const HoldRecord& hold) {
        if (is_sending_) return nullptr;
        LockWaiter* const next = core_.kind.hands_over ? room_.queue.successor() : nullptr;
        if (next && handoffs_ < hold.settings.local_handoff_limit) return next;
        handoffs_ = 0;
        return nullptr;
    }

    // `released`: called with the mutex held if the hold was released in the usual way instead, with true if others
    // listen. Frees the mutex meanwhile.
    template <class Released>
    std::error_code send(std::unique_lock<std::mutex>& lock, HoldRecord& held, LockWaiter& next,
                         const Released& released) {
        const std::optional<Milliseconds> successor_lease = next.request.lease;
        const Settings successor_settings = next.request.settings;
        HandOver sent{parts_.releases.leave_level(held),
                      core_.claim_of(next.request.owner, core_.next_number(), 1, successor_lease, successor_settings),
                      successor_settings};
        room_.queue.leave(next);
        successor_ = &next;
        is_sending_ = true;
        detail::send_hand_over(core_, lock, sent);
        is_sending_ = false;
        LockWaiter* waiting = std::exchange(successor_, nullptr);  // null if it has left meanwhile
        const Instant sent_at = sent.sent_at.as_of_now();
        const HandOverAnswer answer = core_.protocol.read_hand_over(sent.reply);
        const bool answered =
            classify(sent.reply) == ReplyClass::answered && answer.kind != HandOverAnswer::Kind::senseless;
        const bool handed = answered && answer.kind == HandOverAnswer::Kind::handed;
        // The successor comes first: what follows it may fail for want of memory.
        if (handed && sent.reply.replicated && waiting &&
            Clock::now() < redlatch::valid_until(sent_at, sent.claim.lease) &&
            recorded(sent, sent_at, successor_lease, answer.token)) {
            ++handoffs_;
            core_.session.count_handoff();
            room_.queue.acquired_locally();
            waiting->hold = sent.claim.hold;
            waiting->phase = Waiter::Phase::served;
            room_.wake(*waiting);
            give_back_late_acquire(sent.leaving);
            return {};
        }
        if (waiting) room_.queue.join_first(*waiting);
        if (answered) give_back_late_acquire(sent.leaving);
        return not_handed_over(lock, sent, answered, handed, released);
    }

    // A waiter has left.
    void left(const LockWaiter& waiter) noexcept {
        if (successor_ == &waiter) successor_ = nullptr;
    }

private:
    // A copy of the unanswered acquire command may still arrive.
    void give_back_late_acquire(const Leaving& leaving) {
        if (leaving.unsettled != 0)
            parts_.deliveries.give_back_later(leaving, parts_.deliveries.unsettled_until(leaving.unsettled));
    }

    template <class Released>
    std::error_code not_handed_over(std::unique_lock<std::mutex>& lock, const HandOver& sent, bool answered,
                                    bool handed, const Released& released) {
        const bool refused = classify(sent.reply) == ReplyClass::refused && sent.reply.is_error();
        // The server refused the script for good, perhaps for a reason of this script alone, such as a missing access
        // right. Releases the hold by the usual script instead.
        if (refused && !sent.unknown) return release_instead(lock, sent.leaving, released);
        // Without a proper reply either number may hold the lock: release both. If it was handed over without success,
        // release the successor's number: the successor left, its lease is over, too few replicas confirmed the
        // hand-over, or there was no memory to record it.
        const Instant now = Clock::now();
        const Instant over = now + sent.claim.lease;
        if (answered && !handed) parts_.deliveries.wake_queue(sent.leaving);
        if (handed) core_.outbox.add({sent.claim.hold}, unsettled_of_successor(sent), over, now);
        if (!answered)
            core_.outbox.add({sent.leaving.hold, sent.claim.hold}, sent.leaving.unsettled,
                             std::max(over, sent.leaving.until), now);
        room_.notify();
        core_.schedule();
        parts_.deliveries.deliver(lock);
        if (handed) return {};
        if (!answered)
            return classify(sent.reply) == ReplyClass::answered ? make_error_code(errc::protocol_error)
                                                                : error_of(sent.reply, core_.key()).code();
        core_.report_loss("the server no longer had this hold at its release");
        return errc::hold_lost;
    }

    template <class Released>
    std::error_code release_instead(std::unique_lock<std::mutex>& lock, const Leaving& leaving,
                                    const Released& released) {
        const auto outcome = parts_.releases.send_last(
            lock, leaving, [&](const ReleaseAnswer& answer, bool) { released(answer.listeners > 1); });
        core_.schedule();
        parts_.deliveries.deliver(lock);
        return outcome;
    }

    // Records the successor's hold. Returns false if there is no memory for it, or if another caller of its owner has
    // acquired the lock meanwhile.
    bool recorded(const HandOver& handed, Instant sent, const std::optional<Milliseconds>& lease, std::int64_t token) {
        const Claim& successor = handed.claim;
        if (parts_.leases.live_hold(successor.owner)) return false;
        try {
            parts_.leases.record(successor.owner, successor.hold, sent, lease, token, handed.settings).unsettled =
                unsettled_of_successor(handed);
            return true;
        } catch (...) {
            parts_.leases.forget(successor.owner);
            return false;
        }
    }

    // Returns the server time until which the successor's number may hold the lock by late copies of the acquire and of the
    // hand-over, in this order; 0 if they cannot do that.
    static std::int64_t unsettled_of_successor(const HandOver& handed) {
        if (!handed.unknown || handed.leaving.unsettled == 0) return 0;
        return std::max(handed.leaving.unsettled, handed.claim.until);
    }

    LockParts& parts_;
    LockCore& core_;
    Room& room_;
    unsigned handoffs_ = 0;            // in a row
    bool is_sending_ = false;          // true while a hand-over is in flight
    LockWaiter* successor_ = nullptr;  // the waiter to which a hold is being handed, as long as it waits
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
