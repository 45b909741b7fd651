// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/task.hpp"
#include "redlatch/error.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/lock/lock_parts.hpp"
#include "redlatch/lock/lock_queue.hpp"
#include "redlatch/lock/turn_queue.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/wait/lock_request.hpp"
#include "redlatch/wait/waiting_room.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Lets the waiting threads of this process share one representative. The representative asks the server and listens to
// the channel. The other waiters queue up behind it and send nothing. A released hold is handed to a local waiter if
// there is one.
//
// The mutex of the lock guards all members. Besides the events of the waiting room, the thread that hands its hold over
// wakes its successor.
class LocalQueue final : public TurnQueue {
    using Room = WaitingRoom<LockQueue>;

public:
    explicit LocalQueue(LockParts& parts)
        : parts_(parts), core_(parts.core), room_(core_.mutex, core_.session, core_.task, core_.protocol.channel()) {}

    bool is_waited_for() const override { return !room_.queue.empty() || core_.releasing; }

    // --- acquiring --------------------------------------------------------------------------------------------

    // Returns true if held, false if the deadline passes or a stop is requested. Throws Error.
    Task<bool> acquire(const LockRequest& request) override { return room_.wait(*this, request); }

    // --- the waiter's state machine; called by the waiting room -------------------------------------------------

    // A reentry, or the first try.
    Task<std::optional<bool>> first(std::unique_lock<std::mutex>& lock, LockWaiter& me, const LockRequest& request) {
        if (room_.queue.empty()) core_.patience.answered();
        if (HoldRecord* hold = parts_.acquires.hold_to_reenter(request)) {
            const std::optional<bool> reentered = co_await parts_.acquires.reenter(lock, request, *hold);
            if (reentered) co_return *reentered;
        }
        me.writer = writer_of(request.owner);
        if (request.one_try || me.writer != 0 || (room_.queue.empty() && !is_busy())) {
            const std::uint64_t generation = room_.queue.generation();
            if (learn(generation, co_await parts_.acquires.ask(lock, request, core_.next_number(), true)))
                co_return true;
            if (request.one_try && !parts_.acquires.can_join(request.owner)) co_return false;
            if (request.one_try) co_return (co_await parts_.acquires.join(lock, request)).value_or(0) != 0;
        }
        co_return std::nullopt;
    }

    void joined(LockWaiter& me) {
        if (me.listens) room_.listen();
        pause(me);
    }

    NextStep next(LockWaiter& me, Instant now) {
        if (me.is_served()) {
            const HoldRecord* hold = parts_.leases.live_hold(me.request.owner);
            if (hold && hold->id == me.hold) return {NextStep::Kind::served};
            stand_again(me);  // handed over, and lost before this thread woke up
        }
        if (me.error) std::rethrow_exception(me.error);
        if (parts_.acquires.can_join(me.request.owner)) return {NextStep::Kind::ask};
        // The writer is let in beside the readers that wait for it, which may be before it in the queue.
        const std::uint64_t writer = writer_of(me.request.owner);
        if (std::exchange(me.writer, writer) != writer && writer != 0) return {NextStep::Kind::ask};
        if (!room_.queue.is_front(me) || core_.releasing) return {NextStep::Kind::sleep};
        const QueueStep step = room_.queue.step(now, held_locally_until(), me.ask_again);
        if (step.ask) return {NextStep::Kind::ask};
        return {NextStep::Kind::sleep, step.sleep_until, room_.is_subscribed()};
    }

    Task<void> ask(std::unique_lock<std::mutex>& lock, LockWaiter& me, const LockRequest& request) {
        if (parts_.acquires.can_join(me.request.owner)) {
            const auto joined = co_await parts_.acquires.join(lock, request);
            if (me.is_served()) co_return;  // handed over meanwhile
            if (joined && *joined != 0) {
                me.hold = *joined;
                me.phase = Waiter::Phase::served;
            }
            if (joined) co_return;
        }
        const std::uint64_t generation = room_.queue.generation();
        me.hold = core_.next_number();
        if (learn(generation, co_await parts_.acquires.ask(lock, request, me.hold, false)))
            me.phase = Waiter::Phase::served;
        else
            pause(me);
    }

    void left(std::unique_lock<std::mutex>& lock, LockWaiter& me) {
        if (successor_ == &me) successor_ = nullptr;
        if (!room_.queue.empty()) return;
        core_.patience.answered();
        parts_.deliveries.cancel_announcement(lock);
    }

    // --- releasing --------------------------------------------------------------------------------------------

    // Releases the last level of a hold: to the server, or by a hand-over.
    std::error_code release_hold(std::unique_lock<std::mutex>& lock, HoldRecord& hold) override {
        if (core_.kind.hands_over)
            if (LockWaiter* successor = room_.queue.successor();
                successor && handoffs_ < hold.settings.local_handoff_limit)
                return hand_over(lock, hold, *successor);
        handoffs_ = 0;
        const std::uint64_t messages = messages_;
        return parts_.releases.release_last(lock, hold, [&](const ReleaseAnswer& answer, bool resent) {
            // A message that came before this reply may already have been that of this release.
            if (answer.kind == ReleaseAnswer::Kind::released && answer.listeners > 0 && !resent &&
                room_.is_subscribed() && room_.queue.empty() && messages == messages_) {
                ++own_messages_;
                // A thread that asked before the release, and is not in the queue yet, does not get the message.
                room_.queue.notify();
            }
            // Who waits here for a shared lock does not wait for this hold.
            if (!core_.kind.shared) released_here(answer.listeners > 1);
        });
    }

    // --- events -----------------------------------------------------------------------------------------------

    void may_be_free() override { room_.notify(); }

    void acquired_for(OwnerNumber owner) override {
        room_.queue.for_each([&](LockWaiter& waiter) {
            if (waiter.request.owner == owner) room_.wake(waiter);
        });
    }

    // An Owner that waits as a reader may have become the writer.
    void on_timer(std::unique_lock<std::mutex>&, Instant) override {
        room_.queue.for_each([&](LockWaiter& waiter) {
            if (waiter.request.owner.is_of_program() && waiter.writer != writer_of(waiter.request.owner))
                room_.wake(waiter);
        });
    }

    void subscribed(const std::string&) override {
        expect_anything();
        room_.subscribed();
    }

    void subscription_refused(const std::string&, const Reply& why) override {
        room_.refused(error_of(why, core_.key()));
    }

    // Any message may mean that the lock is free. Skips the message of our own release: the local waiters have already
    // retried. Messages keep the server's order. If this one is of another process's release, that came before ours,
    // and the message of ours is still to come.
    void message(const std::string&, std::string_view) override {
        ++messages_;
        if (own_messages_ > 0)
            --own_messages_;
        else
            room_.notify();
    }

    void disconnected(const std::string&) override {
        room_.disconnected();
        expect_anything();
    }

private:
    // Returns true if a thread of this process holds the lock or is releasing it. Then no thread has to ask the server.
    bool is_busy() const { return core_.releasing || held_locally_until() > Clock::now(); }

    // Returns until when a thread of this process excludes the others; a time in the past if none does.
    Instant held_locally_until() const { return core_.kind.shared ? Instant{} : core_.holds.held_until(); }

    // For a reader: returns the number of its owner's hold as the writer, 0 if it has none.
    std::uint64_t writer_of(OwnerNumber owner) const {
        return core_.kind.shared ? core_.key_holds->writer_of(owner) : 0;
    }

    // Stops waiting for messages of our own releases: one that has not come by now may never come.
    void expect_anything() {
        ++messages_;
        own_messages_ = 0;
    }

    // If others listen, the message notifies them and this process alike, so all have the same chance. Without other
    // listeners, or without a subscription, wakes the next local waiter at once.
    void released_here(bool others_listen) {
        if (!room_.is_subscribed() || !others_listen) {
            room_.notify();
        } else if (!room_.queue.empty()) {
            // The message may have come before this reply: the waiter checks again.
            room_.queue.expect_message(Clock::now());
            room_.wake_front();
        }
    }

    // Learns from the answer to a query made at `generation`. Returns true if held; otherwise the queue knows for how
    // long it is blocked.
    bool learn(std::uint64_t generation, const std::optional<AcquireAnswer>& answer) {
        if (!answer) return false;
        if (answer->kind == AcquireAnswer::Kind::held)
            acquired_locally();
        else
            room_.queue.blocked(generation, answer->holder_lease, Clock::now());
        return answer->kind == AcquireAnswer::Kind::held;
    }

    void acquired_locally() {
        if (core_.kind.shared)
            room_.notify();  // other waiters may share the lock now
        else
            room_.queue.acquired_locally();
    }

    static void pause(LockWaiter& me) {
        if (me.pause) me.ask_again = Clock::now() + me.pause->next();
    }

    void stand_again(LockWaiter& me) {
        core_.session.lost_levels().take(core_.kind.name, core_.key(), me.request.owner);
        me.phase = Waiter::Phase::waiting;
        room_.queue.join_first(me);
    }

    // --- handing over -----------------------------------------------------------------------------------------

    // A hand-over that was sent, and its reply.
    struct HandOver {
        Leaving leaving;    // the hold that is released
        Claim claim;        // the hold of the successor
        Settings settings;  // of the successor
        Reply reply{};
        SendTime sent_at{};  // of the first sending that may have taken effect
        bool unknown = false;
    };

    std::error_code hand_over(std::unique_lock<std::mutex>& lock, HoldRecord& held, LockWaiter& next) {
        const std::optional<Milliseconds> successor_lease = next.request.lease;
        const Settings successor_settings = next.request.settings;
        HandOver sent{parts_.releases.leave_level(held),
                      core_.claim_of(next.request.owner, core_.next_number(), 1, successor_lease, successor_settings),
                      successor_settings};
        room_.queue.leave(next);
        successor_ = &next;
        send_hand_over(lock, sent);
        LockWaiter* waiting = std::exchange(successor_, nullptr);  // null if it has left meanwhile
        const Instant sent_at = sent.sent_at.as_of_now();
        const HandOverAnswer answer = core_.protocol.read_hand_over(sent.reply);
        const bool answered =
            classify(sent.reply) == ReplyClass::answered && answer.kind != HandOverAnswer::Kind::senseless;
        const bool handed = answered && answer.kind == HandOverAnswer::Kind::handed;
        if (handed && sent.reply.replicated && waiting &&
            Clock::now() < redlatch::valid_until(sent_at, sent.claim.lease) &&
            recorded(sent, sent_at, successor_lease, answer.token)) {
            // A copy of the unanswered acquire command may still arrive.
            if (sent.leaving.unsettled != 0)
                parts_.deliveries.give_back_later(sent.leaving,
                                                  parts_.deliveries.unsettled_until(sent.leaving.unsettled));
            ++handoffs_;
            core_.session.count_handoff();
            room_.queue.acquired_locally();
            waiting->hold = sent.claim.hold;
            waiting->phase = Waiter::Phase::served;
            room_.wake(*waiting);
            return {};
        }
        if (waiting) room_.queue.join_first(*waiting);
        return not_handed_over(lock, sent, answered, handed);
    }

    void send_hand_over(std::unique_lock<std::mutex>& lock, HandOver& hand_over) {
        try {
            const InFlightGuard in_flight_guard(core_, lock);
            lock.unlock();
            Retry retry = core_.session.retry(Releases::foreground_deadline(hand_over.leaving.settings));
            do hand_over.reply = hand_over_once(hand_over, retry.deadline());
            while (retry.again(hand_over.reply));
        } catch (...) {  // no memory: handled as if nothing had been sent
            hand_over.reply = Reply::of(Reply::Kind::not_sent, std::string());
        }
    }

    Reply hand_over_once(HandOver& hand_over, Instant deadline) try {
        Session& session = core_.session;
        for (int tries = 1;; ++tries) {
            Reply failure;
            const auto now = session.server_time(core_.key(), deadline, failure);
            if (!now) return failure;
            hand_over.claim.until = *now + hand_over.leaving.settings.command_timeout.count();
            // The successor's lease counts from the first sending that may have taken effect: a resend does not prolong
            // it.
            if (!hand_over.unknown) hand_over.sent_at = SendTime();
            const Instant sent = Clock::now();
            Call call = core_.protocol.hand_over(hand_over.leaving.hold, hand_over.claim);
            call.replication = hand_over.settings.replication();
            Reply reply = session.call(call, deadline);
            if (!reply.answered() && !reply.is_unsent()) hand_over.unknown = true;
            if (!session.learn_if_late(core_.key(), sent, reply) || tries == 3 || Clock::now() >= deadline)
                return reply;
        }
    } catch (const std::bad_alloc&) {
        return detail::short_of_memory();
    }

    std::error_code not_handed_over(std::unique_lock<std::mutex>& lock, const HandOver& sent, bool answered,
                                    bool handed) {
        const bool refused = classify(sent.reply) == ReplyClass::refused && sent.reply.is_error();
        // The server refused the script for good, perhaps for a reason of this script alone, such as a missing access
        // right. Releases the hold by the usual script instead.
        if (refused && !sent.unknown) return release_instead(lock, sent.leaving);
        // Without a proper reply either number may hold the lock: release both. If it was handed over without success,
        // release the successor's number: the successor left, its lease is over, too few replicas confirmed the
        // hand-over, or there was no memory to record it.
        const Instant now = Clock::now();
        const Instant over = now + sent.claim.lease;
        if (handed) core_.outbox.add({sent.claim.hold}, 0, over, now);
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

    std::error_code release_instead(std::unique_lock<std::mutex>& lock, const Leaving& leaving) {
        const auto outcome = parts_.releases.send_last(
            lock, leaving, [&](const ReleaseAnswer& answer, bool) { released_here(answer.listeners > 1); });
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
            parts_.leases.record(successor.owner, successor.hold, sent, lease, token, handed.settings);
            return true;
        } catch (...) {
            parts_.leases.forget(successor.owner);
            return false;
        }
    }

    LockParts& parts_;
    LockCore& core_;
    Room room_;
    unsigned handoffs_ = 0;            // in a row, within this process
    LockWaiter* successor_ = nullptr;  // the waiter to which a hold is being handed, as long as it waits
    std::uint64_t messages_ = 0;       // number of messages received
    unsigned own_messages_ = 0;        // messages of our own releases that are still to come; they wake no waiter
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
