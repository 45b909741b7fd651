// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/error.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/lock/lease_manager.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/wait/lock_request.hpp"
#include "redlatch/wait/wait_queue.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string_view>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace v0_1 {

// Lets the waiting threads of this process share one representative. The representative asks the server and listens to
// the channel. The other waiters queue up behind it and send nothing. A released hold is handed to a local waiter if
// there is one.
//
// mutex_ of the keeper guards all members. Each waiter sleeps on its own condition variable; the representative sleeps
// in the transport where possible, to receive the message itself. A waiter is woken by
//   the thread that hands its hold over to it,
//   any change of state, if it is the representative: a message (background thread), a releasing thread, a
//     representative that leaves,
//   its stop token.
template <class T, class Protocol>
class LockState final : public LeaseManager<T, Protocol> {
    using Keeper = LeaseManager<T, Protocol>;

public:
    using Keeper::Keeper;
    using Keeper::key;

    ~LockState() override { session_.subscriptions().remove(protocol_.channel(), *this); }

    // --- acquiring --------------------------------------------------------------------------------------------

    // Returns true if held, false if the deadline passes or a stop is requested. Throws Error.
    bool acquire(const LockRequest& request) {
        if (request.stop.stop_requested()) return false;
        std::unique_lock lock(mutex_);
        if (line_.empty()) failing_since_.reset();
        if (const std::optional<bool> reentered = reenter(lock, request)) return *reentered;
        if (request.one_try || (line_.empty() && !busy())) {
            if (ask(lock, request, true)) return true;
            if (request.one_try) return false;
        }
        lock.unlock();
        session_.count_wait();
        return wait(request);
    }

    // --- background -------------------------------------------------------------------------------------------

    void subscribed() override {
        const std::lock_guard lock(mutex_);
        subscribed_ = true;
        expect_anything();
        notify_representative();
    }

    void subscription_refused(const Reply& why) override {
        const std::lock_guard lock(mutex_);
        subscribed_ = false;
        wants_messages_ = false;
        while (Waiter* waiter = line_.first_listener()) {
            waiter->error = std::make_exception_ptr(error_of(why, key()));
            wake(*waiter);
            line_.leave(*waiter);
        }
        notify_representative();
    }

    // Any message may mean that the lock is free. Skips the message of our own release: the local waiters have already
    // retried. Messages keep the server's order. If this one is of another process's release, that came before ours,
    // and the message of ours is still to come.
    void message(std::string_view) override {
        const std::lock_guard lock(mutex_);
        ++messages_;
        if (own_messages_ > 0)
            --own_messages_;
        else
            notify_representative();
    }

    void disconnected() override {
        const std::lock_guard lock(mutex_);
        subscribed_ = false;
        expect_anything();
    }

private:
    using Keeper::claim_of, Keeper::deliver_pending, Keeper::failing_since_;
    using Keeper::foreground_deadline, Keeper::holds_, Keeper::live_hold, Keeper::mutex_, Keeper::next_number;
    using Keeper::not_delivered, Keeper::pending_, Keeper::record, Keeper::reenter, Keeper::release_last;
    using Keeper::releasing_, Keeper::report_loss, Keeper::session_, Keeper::schedule, Keeper::protocol_,
        Keeper::cancel_announcement;
    using typename Keeper::Leaving, typename Keeper::InFlightGuard;

    // Returns true if a thread of this process holds the lock or is releasing it. Then no thread has to ask the server.
    bool busy() const { return releasing_ || held_locally_until() > Clock::now(); }

    // Returns until when a thread of this process excludes the others; a time in the past if none does.
    Instant held_locally_until() const { return Protocol::shared ? Instant{} : holds_.held_until(); }

    void wake(Waiter& waiter) { waiter.sleeper.wake(session_); }

    // Stops waiting for messages of our own releases: one that has not come by now may never come.
    void expect_anything() {
        ++messages_;
        own_messages_ = 0;
    }

    void notify_representative() {
        line_.notify();
        if (Waiter* front = line_.front()) wake(*front);
    }

    bool is_waited_for() const override { return !line_.empty() || releasing_; }

    void notify() override { notify_representative(); }

    std::error_code release_hold(std::unique_lock<std::mutex>& lock, Hold& hold) override {
        if constexpr (Protocol::hands_over)
            if (Waiter* successor = line_.successor(); successor && handoffs_ < session_.options().local_handoff_limit)
                return hand_over(lock, hold, *successor);
        handoffs_ = 0;
        const std::uint64_t messages = messages_;
        return release_last(lock, hold, [&](const ReleaseAnswer& answer, bool resent) {
            // A message that came before this reply may already have been that of this release.
            if (answer.kind == ReleaseAnswer::Kind::released && answer.listeners > 0 && !resent && subscribed_ &&
                line_.empty() && messages == messages_) {
                ++own_messages_;
                // A thread that asked before the release, and is not in the queue yet, does not get the message.
                line_.notify();
            }
            // Who waits here for a shared lock does not wait for this hold.
            if constexpr (!Protocol::shared) released_here(answer.listeners > 1);
        });
    }

    // If others listen, the message notifies them and this process alike, so all have the same chance. Without other
    // listeners, or without a subscription, wakes the next local waiter at once.
    void released_here(bool others_listen) {
        if (!subscribed_ || !others_listen) {
            notify_representative();
        } else if (Waiter* front = line_.front()) {
            // The message may have come before this reply: the waiter checks again.
            line_.expect_message(Clock::now());
            wake(*front);
        }
    }

    // --- acquire command --------------------------------------------------------------------------------------

    // Sends the acquire command for a first hold. Returns true if held; otherwise the queue knows for how long it is
    // blocked. `first`: True before any waiting.
    bool ask(std::unique_lock<std::mutex>& lock, const LockRequest& request, bool first) {
        const std::uint64_t generation = line_.generation();
        const std::optional<AcquireAnswer> answer = Keeper::ask(lock, request, first);
        if (!answer) return false;
        if (answer->kind == AcquireAnswer::Kind::held)
            acquired_locally();
        else
            line_.blocked(generation, answer->holder_lease, Clock::now());
        return answer->kind == AcquireAnswer::Kind::held;
    }

    void acquired_locally() {
        if constexpr (Protocol::shared)
            notify_representative();  // other waiters may share the lock now
        else
            line_.acquired_locally();
    }

    // --- waiting ----------------------------------------------------------------------------------------------

    bool wait(const LockRequest& request) {
        Waiter me{.owner = request.owner, .lease = request.lease};
        // Constructed and destroyed without mutex_, which the callback locks.
        const std::stop_callback on_stop(request.stop, [&] {
            const std::lock_guard lock(mutex_);
            wake(me);
        });
        std::unique_lock lock(mutex_);
        if (request.polling) me.pause.emplace(request.polling->first, request.polling->longest);
        try {
            line_.join(me);
            if (!me.pause) listen();
            const bool held = wait_in_line(lock, request, me);
            leave(lock, me);
            return held;
        } catch (...) {
            if (!lock.owns_lock()) lock.lock();
            leave(lock, me);
            throw;
        }
    }

    bool wait_in_line(std::unique_lock<std::mutex>& lock, const LockRequest& request, Waiter& me) {
        bool may_watch = true;
        pause(me);
        for (;;) {
            if (me.granted) {
                if (live_hold(me.owner)) return true;
                stand_again(me);  // handed over, and lost before this thread woke up
            }
            if (me.error) std::rethrow_exception(me.error);
            const Instant now = Clock::now();
            if (request.stop.stop_requested() || now >= request.deadline) return false;
            Instant sleep_until = request.deadline;
            if (line_.is_front(me) && !releasing_) {
                const WaitQueue::Step step = line_.step(now, held_locally_until(), me.ask_again);
                if (step.ask) {
                    me.trying = true;
                    const bool held = ask(lock, request, false);
                    me.trying = false;
                    if (held) return true;
                    pause(me);
                    continue;
                }
                sleep_until = std::min(sleep_until, step.sleep_until);
                if (subscribed_ && std::exchange(may_watch, false)) {
                    may_watch = me.sleeper.watch(lock, session_, sleep_until);
                    continue;  // the state may have changed meanwhile
                }
            }
            may_watch = true;
            me.sleeper.sleep(lock, sleep_until);
        }
    }

    static void pause(Waiter& me) {
        if (me.pause) me.ask_again = Clock::now() + me.pause->next();
    }

    void stand_again(Waiter& me) {
        session_.lost_levels().take(Keeper::kind, key(), me.owner);
        me.granted = false;
        line_.join_first(me);
    }

    void listen() {
        if (wants_messages_) return;
        session_.start_background();
        const bool listened = subscribed_;
        subscribed_ = session_.subscriptions().acquire(protocol_.channel(), *this);
        wants_messages_ = true;
        // Another state of this client is already subscribed to this channel. A message since the acquire command
        // reached only that state.
        if (subscribed_ && !listened) line_.notify();
    }

    // Removes the waiter from the queue. If it was the representative, wakes the next one, which checks the generation
    // again.
    void leave(std::unique_lock<std::mutex>& lock, Waiter& me) {
        if (successor_ == &me) successor_ = nullptr;
        const bool was_front = line_.is_front(me);
        line_.leave(me);
        if (line_.empty()) {
            wants_messages_ = false;
            failing_since_.reset();
            session_.subscriptions().release(protocol_.channel(), *this);
            cancel_announcement(lock);
        } else if (was_front) {
            wake(*line_.front());
        }
    }

    // --- releasing --------------------------------------------------------------------------------------------

    // A template, so that an explicit instantiation omits it for protocols without a hand-over (clang 14 ignores a
    // requires clause here).
    template <class = void>
    std::error_code hand_over(std::unique_lock<std::mutex>& lock, Hold& held, Waiter& next) {
        const std::optional<Milliseconds> successor_lease = next.lease;
        Claim claim = claim_of(next.owner, next_number(), 1, successor_lease);
        const Leaving leaving = this->leave_level(held);
        line_.leave(next);
        successor_ = &next;
        SendTime sent_at;
        bool unknown = false;
        Reply reply;
        try {
            const InFlightGuard in_flight_guard(*this, lock);
            lock.unlock();
            reply = session_.call_with_retry(foreground_deadline(), {}, [&](Instant deadline, bool) {
                return session_.call_wanted(key(), deadline, [&](ServerMilliseconds until) {
                    claim.until = until;
                    // The successor's lease counts from the first sending that may have taken effect: a resend does not
                    // prolong it.
                    if (!unknown) sent_at = SendTime();
                    Reply one = session_.call(protocol_.hand_over(leaving.hold, claim), deadline);
                    if (!one.answered() && !one.is_unsent()) unknown = true;
                    return one;
                });
            });
        } catch (...) {  // no memory: handled as if nothing had been sent
            reply = Reply::of(Reply::Kind::not_sent, std::string());
        }
        Waiter* waiting = std::exchange(successor_, nullptr);  // null if it has left meanwhile
        const Instant now = Clock::now();
        const Instant sent = sent_at.as_of_now();
        const HandOverAnswer answer = Protocol::read_hand_over(reply);
        const bool answered = classify(reply) == ReplyClass::answered && answer.kind != HandOverAnswer::Kind::senseless;
        const bool handed = answered && answer.kind == HandOverAnswer::Kind::handed;
        if (handed && reply.replicated && waiting && now < redlatch::valid_until(sent, claim.lease) &&
            recorded(claim.owner, claim.hold, sent, successor_lease, answer.token)) {
            // A copy of the unanswered acquire command may still arrive.
            if (leaving.unsettled != 0) this->give_back_later(leaving, this->unsettled_until(leaving.unsettled));
            ++handoffs_;
            session_.count_handoff();
            line_.acquired_locally();
            waiting->granted = true;
            wake(*waiting);
            return {};
        }
        if (waiting) line_.join_first(*waiting);
        // The server refused the script for good, perhaps for a reason of this script alone, such as a missing access
        // right. Releases the hold by the usual script instead.
        if (classify(reply) == ReplyClass::refused && reply.is_error() && !unknown)
            return release_instead(lock, leaving);
        // Without a proper reply either number may hold the lock: release both. If it was handed over without success,
        // release the successor's number: the successor left, its lease is over, too few replicas confirmed the
        // hand-over, or there was no memory to record it.
        const Instant over = now + claim.lease;
        if (handed) pending_.add({claim.hold}, 0, over, now);
        if (!answered) pending_.add({leaving.hold, claim.hold}, leaving.unsettled, std::max(over, leaving.until), now);
        notify_representative();
        schedule();
        deliver_pending(lock);
        if (handed) return {};
        if (!answered)
            return classify(reply) == ReplyClass::answered ? make_error_code(errc::protocol_error)
                                                           : error_of(reply, key()).code();
        report_loss("the server says that it was not held any more");
        return errc::hold_lost;
    }

    std::error_code release_instead(std::unique_lock<std::mutex>& lock, const Leaving& leaving) {
        const auto outcome = this->send_last(
            lock, leaving, [&](const ReleaseAnswer& answer, bool) { released_here(answer.listeners > 1); });
        schedule();
        deliver_pending(lock);
        return outcome;
    }

    // Returns false if there is no memory for it.
    bool recorded(OwnerNumber successor, std::uint64_t hold, Instant sent, std::optional<Milliseconds> lease,
                  std::int64_t token) {
        try {
            record(successor, hold, sent, lease, token);
            return true;
        } catch (...) {
            this->forget(successor);
            return false;
        }
    }

    WaitQueue line_;
    unsigned handoffs_ = 0;        // in a row, within this process
    Waiter* successor_ = nullptr;  // the waiter to which a hold is being handed, as long as it waits
    bool wants_messages_ = false;
    bool subscribed_ = false;     // True if the server confirmed the subscription, so messages arrive
    std::uint64_t messages_ = 0;  // number of messages received
    unsigned own_messages_ = 0;   // messages of our own releases that are still to come; they wake no waiter
};

}  // namespace v0_1
}  // namespace redlatch
