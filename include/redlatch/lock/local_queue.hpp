// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/task.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/lock/local_hand_over.hpp"
#include "redlatch/lock/lock_parts.hpp"
#include "redlatch/lock/lock_queue.hpp"
#include "redlatch/lock/queue_place.hpp"
#include "redlatch/lock/turn_queue.hpp"
#include "redlatch/lock/watched_key.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/wait/lock_request.hpp"
#include "redlatch/wait/waiting_room.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
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
// a channel, or watches the key where releases send no message. The other waiters queue up behind it and send nothing. A
// released hold is handed to a local waiter if there is one.
//
// Where the lock has a queue on the server, the representative waits at the place of this process there, and listens only to
// the channel of that place. It listens to the common channel of all waiters only while the holder is a client whose releases
// grant nothing, or while it may have no place itself.
//
// The mutex of the lock guards all members. Besides the events of the waiting room, the thread that hands its hold over
// wakes its successor.
class LocalQueue final : public TurnQueue {
    using Room = WaitingRoom<LockQueue>;

public:
    explicit LocalQueue(LockParts& parts)
        : parts_(parts),
          core_(parts.core),
          room_(core_.mutex, core_.session, core_.task, core_.protocol.channel()),
          place_(parts, [this](bool answered) { answered ? room_.wake_front() : room_.notify(); }) {}

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
        if (request.one_try || me.writer != 0 ||
            (room_.queue.empty() && !is_busy() && (core_.kind.shared || !place_.is_asking()))) {
            const std::uint64_t generation = room_.queue.generation();
            try {
                const std::optional<AcquireAnswer> answer = co_await question(lock, me, request, true);
                if (is_for_all(me, answer) && learn(generation, answer)) co_return true;
            } catch (...) {
                if (room_.queue.empty()) place_.give_up(lock);
                throw;
            }
            if (request.one_try && !parts_.acquires.can_join(request.owner)) co_return false;
            if (request.one_try) co_return (co_await parts_.acquires.join(lock, request)).value_or(0) != 0;
        }
        co_return std::nullopt;
    }

    void joined(LockWaiter& me) {
        if (me.listens) listen(me);
        if (me.request.polling) watch_.begin();
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
        if (!is_turn_of(me)) return {NextStep::Kind::sleep};
        switch (place_.enter(me)) {
            case QueuePlace::Entry::none: break;
            // If this waiter leaves without an answer, the next one asks.
            case QueuePlace::Entry::ask: room_.queue.notify(); return {NextStep::Kind::ask};
            case QueuePlace::Entry::entered: acquired_locally(); return {NextStep::Kind::served};
        }
        if ((me.writer == 0 && place_.has_other_lease(me.request)) || is_deaf(me)) return {NextStep::Kind::ask};
        const QueueStep step = step_of(me, now);
        if (step.ask || is_to_watch(me)) return {NextStep::Kind::ask};
        return {NextStep::Kind::sleep, step.sleep_until,
                room_.is_receivable() || place_.subscription().is_receivable() || watch_.is_armed()};
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
            // The hold has ended meanwhile, so this waiter needs its turn like any other.
            if (!is_turn_of(me)) co_return;
        }
        if (is_to_watch(me) && !step_of(me, Clock::now()).ask) {
            watch_.arm(lock, [this](bool is_free) { is_free ? room_.notify() : room_.wake_front(); });
            co_return;
        }
        if (room_.queue.is_front(me) && !place_.is_for(request)) place_.give_up(lock);
        const std::uint64_t generation = room_.queue.generation();
        if (learn(generation, co_await question(lock, me, request, false))) {
            me.phase = Waiter::Phase::served;
        } else {
            if (me.listens) listen(me);
            pause(me);
        }
    }

    void left(std::unique_lock<std::mutex>& lock, LockWaiter& me) {
        hand_over_.left(me);
        if (!room_.queue.empty()) return;
        watch_.end();
        core_.patience.answered();
        place_.subscription().stop();
        parts_.deliveries.cancel_announcement(lock);
        if (room_.queue.empty()) place_.give_up(lock);
    }

    // --- releasing --------------------------------------------------------------------------------------------

    // Releases the last level of a hold: to the server, or by a hand-over.
    std::error_code release_hold(std::unique_lock<std::mutex>& lock, HoldRecord& hold) override {
        if (LockWaiter* successor = hand_over_.successor_of(hold))
            return hand_over_.send(lock, hold, *successor, [&](bool others_listen) { released_here(others_listen); });
        const std::uint64_t messages = messages_;
        return parts_.releases.release_last(lock, hold, [&](const ReleaseAnswer& answer, bool resent) {
            // A message that came before this reply may already have been that of this release.
            if (!core_.protocol.queues() && answer.kind == ReleaseAnswer::Kind::released && answer.listeners > 0 &&
                !resent && room_.is_subscribed() && room_.queue.empty() && messages == messages_) {
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

    void subscribed(const std::string& channel) override {
        if (channel == place_.channel()) {
            place_.subscription().confirmed();
            return room_.notify();
        }
        expect_anything();
        room_.subscribed();
    }

    void subscription_refused(const std::string& channel, const Reply& why) override {
        if (channel == place_.channel()) {
            place_.refused();
            if (room_.queue.first_that([](const LockWaiter& w) { return w.listens; })) room_.listen();
            return room_.notify();
        }
        room_.refused(error_of(why, core_.key()));
    }

    // Any message may mean that the lock is free, except that of a record. Skips the message of our own release: the local
    // waiters have already retried. Messages keep the server's order. If this one is of another process's release, that
    // came before ours, and the message of ours is still to come.
    void message(const std::string& channel, std::string_view payload) override {
        if (channel == place_.channel()) {
            place_.message(payload);
            room_.queue.set_ask_again(std::min(room_.queue.ask_again(), place_.ask_at()));
            return room_.wake_front();
        }
        if (payload == record_message) return;
        ++messages_;
        if (own_messages_ > 0)
            --own_messages_;
        else
            room_.notify();
    }

    void disconnected(const std::string& channel) override {
        if (channel == place_.channel()) return place_.subscription().disconnected();
        room_.disconnected();
        expect_anything();
    }

    // The release or the loss of a hold of this process notifies the waiters anyway.
    void key_changed() override {
        watch_.disarm();
        if (held_locally_until() <= Clock::now()) room_.notify();
    }

private:
    // Asks the server under the number of the place, or else under a new one.
    Task<std::optional<AcquireAnswer>> question(std::unique_lock<std::mutex>& lock, LockWaiter& me,
                                                const LockRequest& request, bool first) {
        // Readers ask at the same time. One whose owner writes enters beside the queue.
        if (!request.one_try && !place_.is_asking() && has_place(me)) {
            const std::optional<AcquireAnswer> answer = co_await place_.ask(lock, request, first, me.hold);
            if (answer && answer->kind != AcquireAnswer::Kind::held) {
                queued_ = answer->queued;
                granted_by_holder_ = answer->queued && !answer->foreign;
            }
            co_return answer;
        }
        if (room_.queue.is_front(me)) place_.asks_elsewhere();
        me.hold = core_.next_number();
        co_return co_await parts_.acquires.ask(lock, request, me.hold, first);
    }

    // Returns true if this waiter waits at the place of the process.
    bool has_place(const LockWaiter& me) const { return me.writer == 0 && place_.is_for(me.request); }

    // Returns true if this waiter needs no messages but those to the place.
    bool is_queued(const LockWaiter& me) const { return has_place(me) && queued_ && granted_by_holder_; }

    // Only the first waiter that listens chooses the channels: those that it needs. If it stands behind a waiter that polls,
    // it has not asked yet, so it has no place.
    void listen(const LockWaiter& me) {
        if (room_.queue.first_that([](const LockWaiter& w) { return w.listens; }) != &me) return;
        if (has_place(me) && queued_ && place_.subscription().listen()) room_.queue.notify();
        if (is_queued(me) && room_.queue.is_front(me))
            room_.stop_listening();
        else
            room_.listen();
    }

    // Returns true if the representative must ask because it may have a place but has none, or because nothing would wake it:
    // its predecessor waited in another way. While a thread of this process holds the lock, its release wakes this waiter.
    bool is_deaf(const LockWaiter& me) const {
        if (!me.listens || is_busy()) return false;
        if (has_place(me) && (!place_.is_taken() || (queued_ && !place_.subscription().is_wanted()))) return true;
        return !is_queued(me) && !room_.is_listening();
    }

    // Returns true if this waiter is the representative, and may ask. Two that asked under the number of the place would
    // both get its hold.
    bool is_turn_of(const LockWaiter& me) const {
        return room_.queue.is_front(me) && !core_.releasing && !place_.is_asking();
    }

    // What the representative does next, and when.
    QueueStep step_of(const LockWaiter& me, Instant now) const {
        return room_.queue.step(now, held_locally_until(), watch_.is_armed() ? watch_.try_again() : me.ask_again);
    }

    bool is_to_watch(const LockWaiter& me) const { return me.request.polling && watch_.is_due(); }

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
        if (core_.protocol.queues() || !room_.is_subscribed() || !others_listen) {
            room_.notify();
        } else if (!room_.queue.empty()) {
            // The message may have come before this reply: the waiter checks again.
            room_.queue.expect_message(Clock::now());
            room_.wake_front();
        }
    }

    // Returns false if only the caller that asked can use the answer. A waiter at the place of this process relies on the
    // answers and the messages to that place.
    bool is_for_all(const LockWaiter& me, const std::optional<AcquireAnswer>& answer) const {
        return (answer && answer->kind == AcquireAnswer::Kind::held) || !place_.is_taken() || place_.is_of(me.hold);
    }

    // Learns from the answer to a query made at `generation`. Returns true if held; otherwise the queue knows for how
    // long it is blocked.
    bool learn(std::uint64_t generation, const std::optional<AcquireAnswer>& answer) {
        if (!answer) return false;
        if (answer->kind == AcquireAnswer::Kind::held) {
            acquired_locally();
        } else {
            room_.queue.blocked(generation, answer->holder_lease, Clock::now());
            // A message may have overtaken this reply.
            room_.queue.set_ask_again(std::min(room_.queue.ask_again(), place_.ask_at()));
            watch_.try_failed();
        }
        return answer->kind == AcquireAnswer::Kind::held;
    }

    void acquired_locally() {
        if (core_.kind.shared)
            room_.notify();  // other waiters may share the lock now
        else
            room_.queue.acquired_locally();
    }

    static void pause(LockWaiter& me) {
        if (me.request.polling) me.ask_again = Clock::now() + me.request.polling->next(me.pause);
    }

    void stand_again(LockWaiter& me) {
        core_.session.lost_levels().take(core_.kind.name, core_.key(), me.request.owner);
        me.phase = Waiter::Phase::waiting;
        room_.queue.join_first(me);
    }

    LockParts& parts_;
    LockCore& core_;
    Room room_;
    QueuePlace place_;
    bool queued_ = true;             // the last question under the place's number, if there was one, got the place
    bool granted_by_holder_ = true;  // its answer: the holder grants to who queues
    WatchedKey watch_{core_};        // for the waiters that poll
    LocalHandOver hand_over_{parts_, room_};
    std::uint64_t messages_ = 0;  // number of messages received
    unsigned own_messages_ = 0;   // messages of our own releases that are still to come; they wake no waiter
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
