// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/quorum/member.hpp"
#include "redlatch/quorum/quorum_core.hpp"
#include "redlatch/quorum/quorum_holds.hpp"
#include "redlatch/quorum/quorum_releases.hpp"
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
#include <new>
#include <optional>
#include <stop_token>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Acquires a lock over several. It asks all members at once. If too few could be acquired, it releases them at once. A
// waiter holds no member: it waits for one that another owner has, acquires it, and asks the others again. So no order
// of members makes two callers wait for each other.
//
// A caller that waits for the replies of a round sleeps in the round's slot; replies and its stop token wake it. Between
// two rounds it sleeps in its own slot; only its stop token wakes it.
class QuorumAcquire {
public:
    QuorumAcquire(QuorumCore& core, QuorumVotes& votes, QuorumHolds& holds, QuorumReleases& releases)
        : core_(core), votes_(votes), holds_(holds), releases_(releases), silent_(core.members.size()) {
        for (std::size_t i = 0; i < core_.members.size(); ++i) order_.push_back(i);
        std::sort(order_.begin(), order_.end(), [this](std::size_t a, std::size_t b) {
            return std::forward_as_tuple(core_.members[a]->key(), a) <
                   std::forward_as_tuple(core_.members[b]->key(), b);
        });
    }

    // Returns true if held, false if the deadline passes or a stop is requested. Throws Error.
    Task<bool> acquire(const LockRequest& wanted) {
        LockRequest request = wanted;
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
        Outcome outcome;
        std::shared_ptr<QuorumRound> round;
        try {
            core_.client().start_losses();
            core_.client().start_background();
            round = std::make_shared<QuorumRound>(core_.members.size(), request.by);
            outcome = co_await take(request, me.again, deadline, waited_for, give_up, round);
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
    struct Outcome {
        bool held = false;
        bool too_late = false;                    // True if enough members were held, but not for long enough
        bool cut_short = false;                   // True if the caller ended it before it was decided
        std::optional<std::size_t> blocked_on{};  // a member that another owner holds
        Instant again_at{};                       // otherwise when to ask again
        std::optional<Error> why{};               // the error if too few answered
        bool by_servers = false;                  // True if too many servers have answered with an error
    };

    // The longest wait for one of several independent members, whose server may be the one that fails.
    static constexpr Milliseconds slice{3000};

    // How often a call with a limit asks again for members that other callers had at the same time.
    static constexpr int most_again = 3;

    // A round that was asked at `asked`, could go on until `give_up`, and began with a member that was waited for.
    struct RoundTimes {
        Instant asked;
        Instant give_up;
        bool in_vain;
    };

    // Decides how the caller goes on after a round without success. Throws if it cannot succeed.
    void go_on_after(Caller& me, const Outcome& outcome, const LockRequest& request, const RoundTimes& round) const {
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

    // --- a round ----------------------------------------------------------------------------------------------

    // Asks all members for one more level. `waited_for` is held already. Waits until `deadline` at most. `again`: see
    // Caller.
    Task<Outcome> take(const LockRequest& request, std::optional<std::uint64_t> again, Instant deadline,
                       std::optional<std::size_t> waited_for, Instant give_up,
                       const std::shared_ptr<QuorumRound>& round) {
        {
            // Drops the votes of earlier levels that are lost by now. They must not count as held without a gap.
            const std::lock_guard lock(core_.mutex);
            holds_.live_hold(request.owner);
            if (again) holds_.live_hold_or_throw(request.owner, again);
            await_no_silent_member(*round);
        }
        const Instant begun = Clock::now();
        for (std::size_t i = 0; i < core_.members.size(); ++i) {
            if (i == waited_for)
                answered(round, request.owner, i, {TryAnswer::Kind::held});
            else
                ask(request, round, i);
        }
        // Constructed and destroyed without the mutex, which the callback locks.
        const std::stop_callback on_stop(request.stop, [this, &round] {
            const std::lock_guard lock(core_.mutex);
            round->stopped = true;
            round->changed.wake();
        });
        std::unique_lock lock(core_.mutex);
        round->whole_time = std::min(give_up, begun + core_.rules.node_timeout);
        const Instant limit = std::min(round->whole_time, deadline);
        Instant asked = begun;
        for (int asked_again = 0;; ++asked_again) {
            co_await await_answers(lock, *round, request.by, asked, limit);
            if (round->votes(Clock::now()) >= core_.rules.needed && holds_.accept(request, again, *round, begun)) {
                Outcome held;
                held.held = true;
                co_return held;
            }
            if (asked_again == most_again || (request.deadline == never && !request.one_try)) break;
            if (round->stopped || !round->goes_first(order_)) break;
            // Callers that asked at the same time and got the other members are releasing them now.
            const Instant now = Clock::now();
            const Clock::duration trip =
                std::clamp<Clock::duration>(now - asked, std::chrono::microseconds(500), Milliseconds(20));
            const Instant rested = std::min(limit, now + trip * (1 << asked_again));
            while (!round->stopped && Clock::now() < rested) co_await round->changed.sleep(lock, rested);
            asked = Clock::now();
            if (round->stopped || asked >= limit || !ask_again(lock, request, round)) break;
        }
        if (limit >= begun + core_.rules.node_timeout && Clock::now() >= limit) note_silent_members(*round);
        const Outcome outcome = why_not(*round, limit);
        round->over = true;
        const auto sent = releases_.send(lock, request.owner, request.by, [&](std::size_t i) { return round->had(i); });
        const Instant until = round->stopped ? Clock::now() : deadline;
        try {
            co_await releases_.outcome(lock, sent, request.by, until);
        } catch (const std::bad_alloc&) {  // does not wait for the replies
        }
        co_return outcome;
    }

    Task<void> await_answers(std::unique_lock<std::mutex>& lock, QuorumRound& round, WaitBy by, Instant asked,
                             Instant limit) {
        co_await core_.await(lock, round.changed, by, limit,
                             [&] { return round.stopped || round.decided(core_.rules.needed, Clock::now()); });
        const Instant now = Clock::now();
        // The remaining members will most likely answer soon, too. Waiting for them leaves nothing to the background,
        // whatever the outcome.
        const Instant soon = std::min(limit, now + (now - asked) + Milliseconds(1));
        co_await core_.await(lock, round.changed, by, soon, [&] { return round.stopped || round.complete(); });
        if (by == by_thread && round.any_outstanding()) core_.stop_attending();
    }

    void ask(const LockRequest& request, const std::shared_ptr<QuorumRound>& round, std::size_t member) {
        const auto tell = [this, keep = core_.keep(), round, owner = request.owner, member](const TryAnswer& answer) {
            return answered(round, owner, member, answer);
        };
        core_.members[member]->try_in_background(request.owner, request.lease, tell,
                                                 request.by == by_thread ? Receiver::poster : Receiver::background);
    }

    // Asks the members again that refused. Returns true if there were any.
    bool ask_again(std::unique_lock<std::mutex>& lock, const LockRequest& request,
                   const std::shared_ptr<QuorumRound>& round) {
        bool any = false;
        for (std::size_t i = 0; i < core_.members.size(); ++i) {
            if (!round->ask_again(i)) continue;
            any = true;
            lock.unlock();
            ask(request, round, i);
            lock.lock();
        }
        return any;
    }

    // A member that did not reply within node_timeout is asked in each round, but none waits for it before it replies
    // again. Otherwise its frozen server would delay every round that other callers' holds leave undecided, and the round
    // would keep the members that it has from them. But a round waits if it cannot succeed without silent members.
    void await_no_silent_member(QuorumRound& round) const {
        const auto silent = static_cast<std::size_t>(std::count(silent_.begin(), silent_.end(), true));
        if (silent > core_.members.size() - core_.rules.needed) return;
        for (std::size_t i = 0; i < silent_.size(); ++i)
            if (silent_[i]) round.do_not_await(i);
    }

    void note_silent_members(const QuorumRound& round) {
        for (std::size_t i = 0; i < silent_.size(); ++i)
            if (round.is_outstanding(i)) silent_[i] = true;
    }

    // Handles a member's reply. Returns true if the member is still wanted.
    bool answered(const std::shared_ptr<QuorumRound>& round, OwnerNumber owner, std::size_t member,
                  const TryAnswer& answer) {
        std::unique_lock lock(core_.mutex);
        if (core_.closed) return false;
        if (answer.kind != TryAnswer::Kind::failed || answer.by_server) silent_[member] = false;
        if (round->over) return round->hold != 0 && holds_.answered(lock, {owner, round->hold, member}, answer);
        switch (answer.kind) {
            case TryAnswer::Kind::late: return true;
            case TryAnswer::Kind::refused: round->refused(member); break;
            case TryAnswer::Kind::failed: round->failed(member, answer.why, answer.by_server); break;
            case TryAnswer::Kind::held:
                round->held_without_vote(member);
                try {
                    votes_.ask_trust(
                        lock, member,
                        [this, round, owner, member](Instant trusted_from, const std::optional<Error>& why) {
                            if (why)
                                round->failed(member, *why);
                            else if (round->hold != 0)
                                holds_.let_vote({owner, round->hold, member}, trusted_from);
                            else
                                round->held(member, std::max(trusted_from, Clock::now()));
                            round->changed.wake();
                        });
                } catch (const std::bad_alloc&) {  // acquired, so the round releases it
                    round->failed(member, std::nullopt);
                }
                break;
        }
        round->changed.wake();
        return true;
    }

    // `limit`: until when the round waited for replies.
    Outcome why_not(QuorumRound& round, Instant limit) const {
        Outcome outcome;
        const bool decided = round.decided(core_.rules.needed, Clock::now());
        if (!decided && (round.stopped || limit < round.whole_time)) {
            outcome.cut_short = true;
            return outcome;
        }
        if (!decided) round.time_is_up();
        if (round.unreachable(core_.rules.needed)) {
            outcome.why = round.why();
            outcome.by_servers = round.refused_by_servers(core_.rules.needed);
            if (!outcome.why)
                outcome.why.emplace(errc::unreachable, core_.name,
                                    std::to_string(round.failures()) + " of the " +
                                        std::to_string(core_.members.size()) +
                                        " members did not reply in time; check that their servers are running");
        } else {
            outcome.blocked_on = round.first_refused();
            outcome.again_at = round.votes_at(core_.rules.needed);
            outcome.too_late = outcome.again_at <= Clock::now();
        }
        return outcome;
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
    QuorumVotes& votes_;
    QuorumHolds& holds_;
    QuorumReleases& releases_;
    std::vector<std::size_t> order_;  // the members sorted by key: the same order for all callers
    std::vector<bool> silent_;        // by member: see await_no_silent_member(); guarded by the mutex of the quorum
    NoReceiver no_receiver_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
