// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/error.hpp"
#include "redlatch/lock/fair_ticket.hpp"
#include "redlatch/lock/lease_manager.hpp"
#include "redlatch/protocol/fair_lock.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/session/server_errors.hpp"
#include "redlatch/session/session.hpp"
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

// The lock whose waiting threads stand, each for itself, in one queue on the server. Nobody asks in another's name and
// nothing is handed over within the process, because either would let a thread pass others that came before it.
//
// A waiting thread has a place here (its channel and its sleep) and one in the queue there, which lasts only a few
// seconds unless it is refreshed: the background does that, for all waiters of this process together, and learns on
// this occasion who has lost the place nevertheless. The server tells the first in the queue when the lock is free: at
// a release, when a waiter before it leaves, and at every refresh, should such a message have been lost.
//
// mutex_ of the keeper guards all members, and may be held when a place's own mutex is taken. Each waiter sleeps
// in its place.
template <class T>
class FairLockState final : public LeaseManager<T, FairProtocol> {
    using Keeper = LeaseManager<T, FairProtocol>;
    using Place = FairTicket<T>;

public:
    using Keeper::Keeper;
    using Keeper::key;

    // --- taking -----------------------------------------------------------------------------------------------

    // True when held; false at the deadline or when stopped. Throws Error.
    bool acquire(const LockRequest& request) {
        if (request.stop.stop_requested()) return false;
        std::unique_lock lock(mutex_);
        if (waiting_ == 0) failing_since_.reset();
        if (const std::optional<bool> reentered = reenter(lock, request)) return *reentered;
        if (request.one_try) {
            const auto answer = ask(lock, request, true, [&](const Claim& claim, Instant deadline) {
                return wire_.acquire(claim, session_.calling(deadline, Effect::grants));
            });
            return answer && answer->kind == AcquireAnswer::Kind::held;
        }
        for (;;) {
            // Nothing is to be given back then.
            if (auto refusal = this->mixed_kinds()) throw *std::move(refusal);
            Question question{.number = spare_number()};
            // Who still listens from an earlier wait misses no message between the question and the sleep.
            if (const auto warm = places_.find(question.number); warm != places_.end())
                question.generation = warm->second->generation();
            if (!ask_at_first(lock, request, question)) return false;
            if (question.held) return true;
            session_.count_wait();
            if (wait(lock, request, question)) return true;
            if (!question.in_vain) return false;
        }
    }

    // --- the background ---------------------------------------------------------------------------------------

    void tick(Instant now, Instant horizon, std::vector<Renewal>& due) override {
        {
            std::unique_lock lock(mutex_);
            if (now >= refresh_at_) refresh(lock, now);
            // Channels that nobody has listened to for a while are given up by the subscriptions; so is the place.
            std::erase_if(places_, [&](const auto& place) {
                const Instant idle = place.second->idle_since();
                return idle != never && now - idle >= Subscriptions::keep_warm;
            });
            if (refresh_at_ != never) session_.timers().schedule(*this, refresh_at_);
            if (!places_.empty()) session_.timers().schedule(*this, now + Subscriptions::keep_warm);
        }
        Keeper::tick(now, horizon, due);
    }

    // Channels belong to the places.
    void subscribed() override {}
    void subscription_refused(const Reply&) override {}
    void message(std::string_view) override {}
    void disconnected() override {}

private:
    using Keeper::ask, Keeper::failing_since_, Keeper::lease_of, Keeper::mutex_;
    using Keeper::next_number, Keeper::pending_, Keeper::reenter, Keeper::release_last, Keeper::session_;
    using Keeper::take_back, Keeper::wire_;
    using typename Keeper::Asked;

    // What a waiter knows of its last question.
    struct Question {
        std::uint64_t number = 0;      // of the place in the queue, and of the hold
        std::uint64_t generation = 0;  // from before it
        std::int64_t unsettled = 0;    // some question remained without an answer: until when it may take effect
        bool held = false;
        bool in_vain = false;  // what it gave came too late, and is given back: the next one needs another number
        Instant ask_again{};   // unless there is news before
    };

    // A queue whose times are far away is asked about again after this anyway.
    static constexpr Milliseconds longest_sleep{30'000};
    static constexpr std::size_t waiters_a_refresh = 100;

    bool is_waited_for() const override { return waiting_ > 0; }

    // A number is used again, with the channel that it listens to already, where nothing that was sent in its name can
    // still be on its way.
    std::uint64_t spare_number() {
        while (!spare_.empty()) {
            const std::uint64_t number = spare_.back();
            spare_.pop_back();
            if (places_.contains(number)) return number;
        }
        return next_number();
    }

    std::error_code let_go(std::unique_lock<std::mutex>& lock, Hold& hold) override {
        const std::uint64_t number = hold.id;
        const bool settled = hold.unsettled == 0 && !hold.renewing && !hold.doubtful;
        return release_last(lock, hold, [&](const ReleaseAnswer& answer, bool resent) {
            if (settled && !resent && answer.kind == ReleaseAnswer::Kind::released && places_.contains(number))
                spare_.push_back(number);
        });
    }

    // Before there is a place to give back.
    bool ask_at_first(std::unique_lock<std::mutex>& lock, const LockRequest& request, Question& question) {
        bool answered = false;
        try {
            answered = ask_or_queue(lock, request, question, true);
        } catch (const Error& error) {
            if (!lock.owns_lock()) lock.lock();
            // A server that was not reached has nothing to take back.
            if (error.code() != errc::unreachable || question.unsettled != 0) take_back(lock, request, question);
            throw;
        } catch (...) {
            if (!lock.owns_lock()) lock.lock();
            take_back(lock, request, question);
            throw;
        }
        if (!answered && question.unsettled != 0) take_back(lock, request, question);
        return answered;
    }

    void take_back(std::unique_lock<std::mutex>& lock, const LockRequest& request, const Question& question) {
        if (pending_.has(question.number)) return;
        Asked asked;
        asked.hold = question.number;
        asked.unsettled = question.unsettled;
        Keeper::take_back(lock, asked, lease_of(request.lease));
    }

    // Asks for the lock or a place in the queue. False when the caller wants no answer any more.
    bool ask_or_queue(std::unique_lock<std::mutex>& lock, const LockRequest& request, Question& question, bool first) {
        const std::optional<AcquireAnswer> answer = ask(
            lock, request, question.number, first,
            [&](const Claim& claim, Instant deadline) {
                return wire_.acquire_or_queue(claim, session_.calling(deadline, Effect::grants));
            },
            &question.unsettled);
        if (!answer) return false;
        question.held = answer->kind == AcquireAnswer::Kind::held;
        question.in_vain = !question.held && pending_.has(question.number);
        // A key without a lease is refused by the script; whatever says otherwise is not asked in a loop.
        const Milliseconds left = answer->holder_lease < Milliseconds(0) ? longest_sleep : answer->holder_lease;
        // One more than told: the key is gone only in the millisecond after its last.
        question.ask_again = Clock::now() + std::min(left, longest_sleep) + Milliseconds(1);
        return true;
    }

    bool wait(std::unique_lock<std::mutex>& lock, const LockRequest& request, Question& question) {
        const std::shared_ptr<Place> place = place_or_leave(lock, request, question);
        ++waiting_;
        if (refresh_at_ == never) {
            refresh_at_ = Clock::now() + wire_.slot() / 3;
            session_.timers().schedule(*this, refresh_at_);
        }
        if (question.generation == 0) question.generation = place->generation();
        bool held = false;
        try {
            session_.start_background();
            place->begin();
            lock.unlock();
            // Built and destroyed without mutex_.
            const std::stop_callback on_stop(request.stop, [&] { place->news(); });
            lock.lock();
            held = wait_in_queue(lock, request, *place, question);
            lock.unlock();
        } catch (...) {
            if (!lock.owns_lock()) lock.lock();
            leave(lock, request, *place, question, false);
            throw;
        }
        lock.lock();
        leave(lock, request, *place, question, held);
        return held;
    }

    bool wait_in_queue(std::unique_lock<std::mutex>& lock, const LockRequest& request, Place& place,
                       Question& question) {
        for (;;) {
            const Instant now = Clock::now();
            if (question.in_vain || request.stop.stop_requested() || now >= request.deadline) return false;
            const std::uint64_t generation = place.generation();
            if (generation != question.generation || now >= std::min(question.ask_again, place.ask_at())) {
                question.generation = generation;
                place.ask();
                if (!ask_or_queue(lock, request, question, false)) return false;
                if (question.held) return true;
                continue;
            }
            lock.unlock();
            const auto refusal = place.sleep(generation, std::min(request.deadline, question.ask_again));
            lock.lock();
            if (refusal) throw error_of(*refusal, key());
        }
    }

    std::shared_ptr<Place> place_of(std::uint64_t number) {
        if (const auto found = places_.find(number); found != places_.end()) return found->second;
        return places_.emplace(number, std::make_shared<Place>(session_, wire_.channel(number))).first->second;
    }

    // Without memory for a place here there is none in the queue either.
    std::shared_ptr<Place> place_or_leave(std::unique_lock<std::mutex>& lock, const LockRequest& request,
                                          const Question& question) {
        try {
            return place_of(question.number);
        } catch (...) {
            take_back(lock, request, question);
            throw;
        }
    }

    // Whoever goes without the lock gives its place in the queue back, and the server passes the turn on.
    void leave(std::unique_lock<std::mutex>& lock, const LockRequest& request, Place& place, const Question& question,
               bool held) {
        const Instant now = Clock::now();
        place.end(held, now);
        if (--waiting_ == 0) {
            failing_since_.reset();
            refresh_at_ = never;
        }
        if (held) {
            session_.timers().schedule(*this, now + Subscriptions::keep_warm);
            return;
        }
        places_.erase(question.number);
        take_back(lock, request, question);
    }

    // --- being alive ------------------------------------------------------------------------------------------

    void refresh(std::unique_lock<std::mutex>& lock, Instant now) {
        std::vector<std::uint64_t> waiters;
        for (const auto& [number, place] : places_)
            if (place->is_waiting()) waiters.push_back(number);
        refresh_at_ = waiters.empty() ? never : now + wire_.slot() / 3;
        lock.unlock();
        for (std::size_t first = 0; first < waiters.size(); first += waiters_a_refresh) {
            const std::size_t size = std::min(waiters_a_refresh, waiters.size() - first);
            post_refresh({waiters.begin() + static_cast<std::ptrdiff_t>(first), size});
        }
        lock.lock();
    }

    void post_refresh(std::span<const std::uint64_t> waiters) {
        wire_.post_refresh(waiters, [self = std::static_pointer_cast<FairLockState>(this->shared_from_this()),
                                     asked = std::vector<std::uint64_t>(waiters.begin(), waiters.end()),
                                     sent = Clock::now()](const Reply& reply) {
            self->session_.learn_if_late(self->key(), sent, reply);
            self->refreshed(asked, reply);
        });
    }

    // Whoever has lost its place, because it was not refreshed in time or the server lost its data, queues up again.
    void refreshed(const std::vector<std::uint64_t>& waiters, const Reply& reply) {
        const std::lock_guard lock(mutex_);
        if (judge(reply) != ReplyClass::answered) {
            if (waiting_ == 0) return;
            refresh_at_ = std::min(refresh_at_, Clock::now() + wire_.slot() / 20);
            session_.timers().schedule(*this, refresh_at_);
            return;
        }
        if (reply.kind != Reply::Kind::array || reply.elements.size() != waiters.size()) return;
        for (std::size_t i = 0; i < waiters.size(); ++i) {
            if (!reply.elements[i].is_integer() || reply.elements[i].integer != 0) continue;
            const auto place = places_.find(waiters[i]);
            if (place != places_.end() && place->second->is_waiting()) place->second->news();
        }
    }

    std::map<std::uint64_t, std::shared_ptr<Place>> places_;  // of those who wait, and of those who did a moment ago
    std::vector<std::uint64_t> spare_;                        // numbers of the latter
    std::size_t waiting_ = 0;
    Instant refresh_at_ = never;
};

}  // namespace v0_1
}  // namespace redlatch
