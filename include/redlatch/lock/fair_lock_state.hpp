// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/error.hpp"
#include "redlatch/lock/fair_ticket.hpp"
#include "redlatch/lock/lease_manager.hpp"
#include "redlatch/protocol/fair_lock.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// Lets the waiting threads of all processes stand in one queue on the server, each for itself. No thread asks on behalf
// of another, and there is no local hand-over: either would let a thread pass others that came before it.
//
// A waiting thread has a ticket here (its channel, on which it sleeps) and a slot in the server's queue. The slot lasts
// a few seconds unless it is refreshed. The background refreshes the slots of all waiters of this process together; the
// reply shows which waiters have lost their slot. The server notifies the head of the queue when the lock is free:
//   at a release,
//   when a waiter before it leaves,
//   at every refresh, in case such a message was lost.
//
// mutex_ of the keeper guards all members. A ticket's own mutex may be locked while it is held. Each waiter sleeps on
// its ticket.
template <class T>
class FairLockState final : public LeaseManager<T, FairProtocol> {
    using Keeper = LeaseManager<T, FairProtocol>;
    using Ticket = FairTicket<T>;

public:
    using Keeper::Keeper;
    using Keeper::key;

    // --- acquiring --------------------------------------------------------------------------------------------

    // Returns true if held, false if the deadline passes or a stop is requested. Throws Error.
    bool acquire(const LockRequest& request) {
        if (request.stop.stop_requested()) return false;
        std::unique_lock lock(mutex_);
        if (waiting_ == 0) failing_since_.reset();
        if (const std::optional<bool> reentered = reenter(lock, request)) return *reentered;
        if (request.one_try) {
            const auto answer = ask(lock, request, true);
            return answer && answer->kind == AcquireAnswer::Kind::held;
        }
        for (;;) {
            // Checked before anything is sent, so a refusal leaves nothing to release.
            if (auto refusal = this->mixed_kinds()) throw *std::move(refusal);
            Question question{.number = spare_number()};
            // A waiter that is still subscribed from an earlier wait misses no message between the command and the
            // sleep.
            if (const auto warm = tickets_.find(question.number); warm != tickets_.end())
                question.generation = warm->second->generation();
            if (!ask_at_first(lock, request, question)) return false;
            if (question.held) return true;
            session_.count_wait();
            if (wait(lock, request, question)) return true;
            if (!question.too_late) return false;
        }
    }

    // --- background -------------------------------------------------------------------------------------------

    void on_timer(Instant now, Instant horizon, std::vector<Renewal>& due) override {
        {
            std::unique_lock lock(mutex_);
            if (now >= refresh_at_) refresh(lock, now);
            // The session drops subscriptions that have been idle for keep_warm. Drop their tickets, too.
            std::erase_if(tickets_, [&](const auto& ticket) {
                const Instant idle = ticket.second->idle_since();
                return idle != never && now - idle >= Subscriptions::keep_warm;
            });
            if (refresh_at_ != never) session_.timers().schedule(*this, refresh_at_);
            if (!tickets_.empty()) session_.timers().schedule(*this, now + Subscriptions::keep_warm);
        }
        Keeper::on_timer(now, horizon, due);
    }

    // The channels belong to the tickets.
    void subscribed() override {}
    void subscription_refused(const Reply&) override {}
    void message(std::string_view) override {}
    void disconnected() override {}

private:
    using Keeper::ask, Keeper::failing_since_, Keeper::lease_of, Keeper::mutex_;
    using Keeper::next_number, Keeper::pending_, Keeper::reenter, Keeper::release_last, Keeper::session_;
    using Keeper::undo_acquire, Keeper::protocol_;
    using typename Keeper::Asked;

    // What a waiter knows from its last command.
    struct Question {
        std::uint64_t number = 0;      // of the slot in the queue, and of the hold
        std::uint64_t generation = 0;  // from before the command
        std::int64_t unsettled = 0;    // server time until which an unanswered sending may take effect; 0 for none
        bool held = false;
        bool too_late = false;  // True if the reply came too late: the number is being released, a retry needs another
        Instant ask_again{};    // unless an event comes earlier
    };

    // The longest wait between two commands, even if the reply names a later time.
    static constexpr Milliseconds longest_sleep{30'000};
    static constexpr std::size_t waiters_a_refresh = 100;

    bool is_waited_for() const override { return waiting_ > 0; }

    // Returns a number to wait under. Prefers the number of an earlier hold, whose channel may still be subscribed, if
    // no command in its name can be in flight.
    std::uint64_t spare_number() {
        while (!spare_.empty()) {
            const std::uint64_t number = spare_.back();
            spare_.pop_back();
            if (tickets_.contains(number)) return number;
        }
        return next_number();
    }

    std::error_code release_hold(std::unique_lock<std::mutex>& lock, Hold& hold) override {
        const std::uint64_t number = hold.id;
        const bool settled = hold.unsettled == 0 && !hold.renewing && !hold.doubtful;
        return release_last(lock, hold, [&](const ReleaseAnswer& answer, bool resent) {
            if (settled && !resent && answer.kind == ReleaseAnswer::Kind::released && tickets_.contains(number))
                spare_.push_back(number);
        });
    }

    // Sends the first command, before there is a ticket. Without success, releases what it may have acquired.
    bool ask_at_first(std::unique_lock<std::mutex>& lock, const LockRequest& request, Question& question) {
        bool answered = false;
        try {
            answered = ask_or_queue(lock, request, question, true);
        } catch (const Error& error) {
            if (!lock.owns_lock()) lock.lock();
            // A server that was not reached has nothing to release.
            if (error.code() != errc::unreachable || question.unsettled != 0) undo_acquire(lock, request, question);
            throw;
        } catch (...) {
            if (!lock.owns_lock()) lock.lock();
            undo_acquire(lock, request, question);
            throw;
        }
        if (!answered && question.unsettled != 0) undo_acquire(lock, request, question);
        return answered;
    }

    void undo_acquire(std::unique_lock<std::mutex>& lock, const LockRequest& request, const Question& question) {
        if (pending_.has(question.number)) return;
        Asked asked;
        asked.hold = question.number;
        asked.unsettled = question.unsettled;
        Keeper::undo_acquire(lock, asked, lease_of(request.lease));
    }

    // Acquires the lock or joins the queue. Returns false if the caller's stop token or deadline ended the call.
    bool ask_or_queue(std::unique_lock<std::mutex>& lock, const LockRequest& request, Question& question, bool first) {
        const std::optional<AcquireAnswer> answer = ask(lock, request, question.number, first, &question.unsettled);
        if (!answer) return false;
        question.held = answer->kind == AcquireAnswer::Kind::held;
        question.too_late = !question.held && pending_.has(question.number);
        // The script refuses a key without a TTL. A reply without one all the same must not cause a tight loop.
        const Milliseconds left = answer->holder_lease < Milliseconds(0) ? longest_sleep : answer->holder_lease;
        // One ms more: the key exists until the end of its last millisecond.
        question.ask_again = Clock::now() + std::min(left, longest_sleep) + Milliseconds(1);
        return true;
    }

    bool wait(std::unique_lock<std::mutex>& lock, const LockRequest& request, Question& question) {
        const std::shared_ptr<Ticket> ticket = ticket_or_leave(lock, request, question);
        ++waiting_;
        if (refresh_at_ == never) {
            refresh_at_ = Clock::now() + protocol_.slot() / 3;
            session_.timers().schedule(*this, refresh_at_);
        }
        if (question.generation == 0) question.generation = ticket->generation();
        bool held = false;
        try {
            session_.start_background();
            ticket->begin();
            lock.unlock();
            // Constructed and destroyed without mutex_.
            const std::stop_callback on_stop(request.stop, [&] { ticket->notify(); });
            lock.lock();
            held = wait_in_queue(lock, request, *ticket, question);
            lock.unlock();
        } catch (...) {
            if (!lock.owns_lock()) lock.lock();
            leave(lock, request, *ticket, question, false);
            throw;
        }
        lock.lock();
        leave(lock, request, *ticket, question, held);
        return held;
    }

    bool wait_in_queue(std::unique_lock<std::mutex>& lock, const LockRequest& request, Ticket& ticket,
                       Question& question) {
        for (;;) {
            const Instant now = Clock::now();
            if (question.too_late || request.stop.stop_requested() || now >= request.deadline) return false;
            const std::uint64_t generation = ticket.generation();
            if (generation != question.generation || now >= std::min(question.ask_again, ticket.ask_at())) {
                question.generation = generation;
                ticket.ask();
                if (!ask_or_queue(lock, request, question, false)) return false;
                if (question.held) return true;
                continue;
            }
            lock.unlock();
            const auto refusal = ticket.sleep(generation, std::min(request.deadline, question.ask_again));
            lock.lock();
            if (refusal) throw error_of(*refusal, key());
        }
    }

    std::shared_ptr<Ticket> ticket_of(std::uint64_t number) {
        if (const auto found = tickets_.find(number); found != tickets_.end()) return found->second;
        return tickets_.emplace(number, std::make_shared<Ticket>(session_, protocol_.channel(number))).first->second;
    }

    // Without memory for a ticket, gives up the slot in the queue and rethrows.
    std::shared_ptr<Ticket> ticket_or_leave(std::unique_lock<std::mutex>& lock, const LockRequest& request,
                                            const Question& question) {
        try {
            return ticket_of(question.number);
        } catch (...) {
            undo_acquire(lock, request, question);
            throw;
        }
    }

    // Ends a wait. A waiter that leaves without the lock gives up its slot, and the server notifies the next one.
    void leave(std::unique_lock<std::mutex>& lock, const LockRequest& request, Ticket& ticket, const Question& question,
               bool held) {
        const Instant now = Clock::now();
        ticket.end(held, now);
        if (--waiting_ == 0) {
            failing_since_.reset();
            refresh_at_ = never;
        }
        if (held) {
            session_.timers().schedule(*this, now + Subscriptions::keep_warm);
            return;
        }
        tickets_.erase(question.number);
        undo_acquire(lock, request, question);
    }

    // --- refreshing the slots ---------------------------------------------------------------------------------

    void refresh(std::unique_lock<std::mutex>& lock, Instant now) {
        std::vector<std::uint64_t> waiters;
        for (const auto& [number, ticket] : tickets_)
            if (ticket->is_waiting()) waiters.push_back(number);
        refresh_at_ = waiters.empty() ? never : now + protocol_.slot() / 3;
        lock.unlock();
        for (std::size_t first = 0; first < waiters.size(); first += waiters_a_refresh) {
            const std::size_t size = std::min(waiters_a_refresh, waiters.size() - first);
            post_refresh({waiters.begin() + static_cast<std::ptrdiff_t>(first), size});
        }
        lock.lock();
    }

    void post_refresh(std::span<const std::uint64_t> waiters) {
        session_.post(protocol_.refresh(waiters, session_.wanted_until(key())),
                      [self = std::static_pointer_cast<FairLockState>(this->shared_from_this()),
                       asked = std::vector<std::uint64_t>(waiters.begin(), waiters.end()),
                       sent = Clock::now()](const Reply& reply) {
                          self->session_.learn_if_late(self->key(), sent, reply);
                          self->refreshed(asked, reply);
                      });
    }

    // Wakes waiters that lost their slot, because the refresh was late or the server lost its data. They join the queue
    // again.
    void refreshed(const std::vector<std::uint64_t>& waiters, const Reply& reply) {
        const std::lock_guard lock(mutex_);
        if (classify(reply) != ReplyClass::answered) {
            if (waiting_ == 0) return;
            refresh_at_ = std::min(refresh_at_, Clock::now() + protocol_.slot() / 20);
            session_.timers().schedule(*this, refresh_at_);
            return;
        }
        if (reply.kind != Reply::Kind::array || reply.elements.size() != waiters.size()) return;
        for (std::size_t i = 0; i < waiters.size(); ++i) {
            if (!reply.elements[i].is_integer() || reply.elements[i].integer != 0) continue;
            const auto ticket = tickets_.find(waiters[i]);
            if (ticket != tickets_.end() && ticket->second->is_waiting()) ticket->second->notify();
        }
    }

    std::map<std::uint64_t, std::shared_ptr<Ticket>> tickets_;  // of the waiters, and of recent ones
    std::vector<std::uint64_t> spare_;                          // numbers of recent holders, ready to be used again
    std::size_t waiting_ = 0;
    Instant refresh_at_ = never;
};

}  // namespace v0_1
}  // namespace redlatch
