// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/quorum/quorum_core.hpp"
#include "redlatch/quorum/quorum_holds.hpp"
#include "redlatch/quorum/quorum_releases.hpp"
#include "redlatch/quorum/quorum_rounds.hpp"
#include "redlatch/quorum/quorum_votes.hpp"
#include "redlatch/quorum/round.hpp"
#include "redlatch/wait/lock_request.hpp"
#include "redlatch/wait/patience.hpp"
#include "redlatch/wait/wait_loop.hpp"
#include "redlatch/wait/waiter.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Acquires a lock over several. It asks all members in a round: see QuorumRounds. A waiter holds no member: it waits for one
// that another owner has, acquires it, and asks the others again. So no order of members makes two callers wait for each
// other.
//
// Between two rounds a caller sleeps in its own slot; only its stop token wakes it.
class QuorumAcquire {
public:
    QuorumAcquire(QuorumCore& core, QuorumVotes& votes, QuorumHolds& holds, QuorumReleases& releases)
        : core_(core), holds_(holds), releases_(releases), rounds_(core, votes, holds, releases) {}

    // Returns true if held, false if the deadline passes or a stop is requested. Throws Error.
    Task<bool> acquire(const LockRequest& wanted) {
        LockRequest request = wanted;
        request.again_of = 0;  // that number is of this process alone, and the members see the request
        std::optional<UnderWay> under_way;
        if (request.by) request.stop = under_way.emplace(core_, wanted.stop).stop.get_token();
        if (request.stop.stop_requested()) co_return in_vain(under_way.has_value());
        if (request.one_try) request.deadline = never;
        check_lease(request);
        Caller me(request.by);
        {
            std::unique_lock lock(core_.mutex);
            if (request.again) me.again = holds_.live_hold_or_throw(request.owner, {}).id;
            co_await ask(lock, me, request);
            if (me.is_served()) co_return true;  // from here on nothing may fail for want of memory
        }
        if (co_await wait_loop<Caller&>(Wait{*this, me}, request)) co_return true;
        co_return in_vain(under_way.has_value());
    }

    // Returns false, the result of a caller that got nothing. A coroutine that gets nothing because the lock is destroyed
    // fails: that may happen at any time, even before it has asked a member.
    bool in_vain(bool is_coroutine) const {
        if (is_coroutine && core_.closing.stop_requested()) throw destroyed(core_);
        return false;
    }

    static Error destroyed(const QuorumCore& core) { return {errc::cancelled, core.name, "the lock was destroyed"}; }

    // Counts a coroutine that acquires the lock. It stops when its caller wants that, or when the lock is destroyed.
    struct UnderWay {
        UnderWay(QuorumCore& quorum, const std::stop_token& callers)
            : core(quorum), by_caller(callers, Stop{stop}), by_close(quorum.closing.get_token(), Stop{stop}) {
            const std::lock_guard lock(core.mutex);
            if (core.closing.stop_requested()) throw destroyed(core);
            ++core.acquiring;
        }
        UnderWay(const UnderWay&) = delete;
        UnderWay& operator=(const UnderWay&) = delete;
        ~UnderWay() {
            const std::lock_guard lock(core.mutex);
            if (--core.acquiring == 0) core.idle.notify_all();
        }

        struct Stop {
            std::stop_source& source;
            void operator()() const { source.request_stop(); }
        };

        QuorumCore& core;
        std::stop_source stop;
        const std::stop_callback<Stop> by_caller, by_close;
    };

    // --- the caller's state machine -----------------------------------------------------------------------------

    // Since when too few members have answered, and the first reason. A later reason may only be that an earlier try is
    // still in flight.
    struct Failure {
        Instant since;
        Error why;
    };

    struct Caller : Waiter {
        using Waiter::Waiter;

        const Instant begun = Clock::now();
        Backoff pause{Milliseconds(2), Milliseconds(100)};
        std::optional<Failure> failing{};
        std::optional<std::size_t> blocked_on{};  // a member that another owner holds: it waits for that one first
        Instant ask_again{};                      // when the next round is due
        bool leaves = false;                      // True if it stops trying
        bool asked = false;                       // True after the first round
        std::optional<std::uint64_t> again{};     // the hold that gets one more level; no other will do
    };

    // This as a host of wait_loop().
    struct Wait {
        std::mutex& mutex() const noexcept { return acquire.core_.mutex; }
        NoReceiver& session() const noexcept { return acquire.no_receiver_; }
        Caller& waiter(const LockRequest&) const noexcept { return me; }
        // Its members count their waits.
        int counted() const noexcept { return 0; }
        void join(Caller&) const noexcept {}
        void leave(std::unique_lock<std::mutex>&, Caller&) const noexcept {}
        NextStep next(const Caller&, Instant now) const { return acquire.next(me, now); }
        Task<void> ask(std::unique_lock<std::mutex>& lock, Caller&, const LockRequest& request) const {
            return acquire.ask(lock, me, request);
        }

        QuorumAcquire& acquire;
        Caller& me;
    };

    NextStep next(const Caller& me, Instant now) const {
        if (me.is_served()) return {NextStep::Kind::served};
        if (me.leaves) return {NextStep::Kind::leave};
        if (now >= me.ask_again) return {NextStep::Kind::ask};
        return {NextStep::Kind::sleep, me.ask_again};
    }

    // Waits for the member that stood in the way, if there is one, and asks all members.
    Task<void> ask(std::unique_lock<std::mutex>& lock, Caller& me, const LockRequest& request) {
        lock.unlock();
        std::optional<std::size_t> waited_for;
        if (me.blocked_on) {
            waited_for = co_await wait_for(*std::exchange(me.blocked_on, std::nullopt), me, request);
            if (!waited_for) {
                lock.lock();
                co_return;
            }
        }
        if (request.stop.stop_requested()) {
            lock.lock();
            releases_.give_back(lock, request.owner, request.by, [&](std::size_t i) { return i == waited_for; });
            co_return;
        }
        const Instant asked = Clock::now();
        const Instant give_up = give_up_at(request, me.begun, me.failing ? me.failing->since : asked);
        const Instant deadline =
            std::exchange(me.asked, true) ? request.deadline : std::max(request.deadline, asked + Patience::honest_try);
        QuorumRounds::Outcome outcome;
        std::shared_ptr<QuorumRound> round;
        try {
            core_.client().start_losses();
            core_.client().start_background();
            round = std::make_shared<QuorumRound>(core_.members.size(), request.by);
            outcome = co_await rounds_.take(request, me.again, deadline, waited_for, give_up, round);
        } catch (...) {  // no memory, no thread, no hold any more: releases what was acquired and what still comes
            lock.lock();
            if (round) round->over = true;
            releases_.give_back(lock, request.owner, request.by,
                                [&](std::size_t i) { return i == waited_for || (round && round->had(i)); });
            throw;
        }
        lock.lock();
        if (outcome.held)
            me.phase = Waiter::Phase::served;
        else
            go_on_after(me, outcome, request, {asked, give_up, waited_for.has_value()});
    }

private:
    // The longest wait for one of several independent members, whose server may be the one that fails.
    static constexpr Milliseconds slice{3000};

    // A round that was asked at `asked`, could go on until `give_up`, and began with a member that was waited for.
    struct RoundTimes {
        Instant asked;
        Instant give_up;
        bool in_vain;
    };

    // Decides how the caller goes on after a round without success. Throws if it cannot succeed.
    void go_on_after(Caller& me, const QuorumRounds::Outcome& outcome, const LockRequest& request,
                     const RoundTimes& round) const {
        const Instant now = Clock::now();
        if (!outcome.why && !outcome.cut_short) me.failing.reset();
        if (outcome.why && !me.failing) me.failing = Failure{round.asked, *outcome.why};
        if (outcome.why && (is_for_good(*outcome.why) || (request.one_try && outcome.by_servers))) throw *outcome.why;
        // Servers that got less than node_timeout count as slow, not as unreachable.
        const bool given_time = me.failing && now - me.failing->since >= core_.rules.node_timeout;
        if (me.failing && (now >= round.give_up || (now >= request.deadline && given_time))) throw me.failing->why;
        me.leaves = (request.one_try && !me.failing) || now >= request.deadline;
        if (me.failing) {
            me.ask_again = std::min(round.give_up, now + me.pause.next());
            return;
        }
        me.blocked_on = outcome.blocked_on;
        // Pause, so that callers that released a member each do not collide again. An acquire that came too late may
        // also do so again.
        const Instant rested = round.in_vain || outcome.too_late ? now + me.pause.next() : now;
        if (outcome.blocked_on)
            me.ask_again = rested;
        else if (outcome.again_at != never)
            me.ask_again = std::max(rested, std::min(outcome.again_at, now + slice));
        else  // an earlier try of a member has no reply yet
            me.ask_again = now + me.pause.next();
    }

    // The minimum of each member would count from another instant, by another server's clock, and an acquire that does not
    // get enough members would keep those that it got.
    void check_lease(const LockRequest& request) const {
        if (request.settings.bounds.is_any())
            throw Error(errc::unsupported, core_.name,
                        "a lock over several has neither a minimum nor a maximum hold; use a lock of one server");
        if (!core_.rules.independent || !request.lease) return;
        if (*request.lease > core_.rules.longest_lease)
            throw Error(
                errc::invalid_argument, core_.name,
                "the lease exceeds RedLockOptions::longest_lease; use a shorter lease, or raise longest_lease in "
                "all processes");
        if (*request.lease <= core_.drift_over(*request.lease))
            throw Error(errc::invalid_argument, core_.name,
                        "the lease does not exceed the clock drift allowance; use a longer lease");
    }

    static bool is_for_good(const Error& error) {
        return error.code() != errc::unreachable && error.code() != errc::overloaded &&
               error.code() != errc::not_replicated && error.code() != errc::not_on_disk;
    }

    Instant give_up_at(const LockRequest& request, Instant begun, Instant failing_since) const {
        const Settings& settings = core_.client().settings();
        if (request.one_try)
            return begun +
                   std::max(Milliseconds(100), std::min(settings.command_timeout, settings.unreachable_timeout));
        return deadline_after(failing_since, settings.unreachable_timeout);
    }

    // Waits for a member that another owner holds. Returns it if it was acquired.
    Task<std::optional<std::size_t>> wait_for(std::size_t member, Caller& me, const LockRequest& request) {
        LockRequest one = request;
        if (core_.rules.independent) one.deadline = std::min(request.deadline, Clock::now() + slice);
        try {
            const bool held = co_await core_.members[member]->acquire(one);
            if (held) co_return member;
        } catch (const Error& error) {
            // The next round shows whether only a minority fails.
            if (!core_.rules.independent || is_for_good(error)) throw;
            me.ask_again = Clock::now() + Milliseconds(50);
        }
        co_return std::nullopt;
    }

    QuorumCore& core_;
    QuorumHolds& holds_;
    QuorumReleases& releases_;
    QuorumRounds rounds_;
    NoReceiver no_receiver_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
