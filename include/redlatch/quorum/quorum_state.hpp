// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/adaptive_spin.hpp"
#include "redlatch/base/backoff.hpp"
#include "redlatch/base/ids.hpp"
#include "redlatch/base/pause.hpp"
#include "redlatch/base/process.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/quorum/member.hpp"
#include "redlatch/quorum/round.hpp"
#include "redlatch/session/background_task.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// Manages a lock that is held while `needed` of its members are held. It asks all members at once. If too few could be
// acquired, it releases them at once. A waiter holds no member: it waits for one that another owner has, acquires it,
// and asks the others again. So no order of members makes two callers wait for each other.
//
// A member that did not answer at first, or lost its part of the hold, is asked again at each renewal of the watchdog.
// Its vote counts from its reply on at the earliest, and only if the hold never lacked votes until then.
//
// mutex_ guards all members except the constant ones. It is held while the members' validity is read, which locks their
// mutexes; but nothing is sent and no user code runs meanwhile. A thread in take() sleeps on its round's condition
// variable, a thread in give_back() on that of its releases. Replies wake both; the stop token wakes the first. idle_
// notifies close() when no thread is inside a member any more.
class QuorumState final : public BackgroundTask {
public:
    QuorumState(std::vector<std::shared_ptr<QuorumMember>> members, const QuorumRules& rules, const std::string& name,
                bool is_fork_child)
        : members_(std::move(members)),
          rules_(rules),
          name_(name),
          is_fork_child_(is_fork_child),
          servers_(members_.size()) {
        ends_.reserve(members_.size());
        for (std::size_t i = 0; i < members_.size(); ++i) order_.push_back(i);
        std::stable_sort(order_.begin(), order_.end(),
                         [this](std::size_t a, std::size_t b) { return members_[a]->key() < members_[b]->key(); });
    }

    // Returns false in a child that was forked since this object was made.
    bool is_of_this_process() const noexcept { return process_ == this_process(); }

    // Ends the supervision of the holds and reports them as lost. Afterwards no other thread calls a member.
    void close() {
        {
            std::unique_lock lock(mutex_);
            for (Hold& hold : holds_) tell_loss(hold);
            closed_ = true;
            idle_.wait(lock, [this] { return inside_ == 0; });
        }
        client().timers().forget(*this);
        client().losses().timers().forget(*this);
    }

    // --- acquiring --------------------------------------------------------------------------------------------

    // Returns true if held, false if the deadline passes or a stop is requested. Throws Error.
    bool acquire(LockRequest request) {
        if (request.one_try) request.deadline = never;
        check_lease(request);
        const Instant begun = Clock::now();
        Backoff pause(Milliseconds(2), Milliseconds(100));
        std::optional<Failure> failing;
        std::optional<std::size_t> waited_for;
        while (!request.stop.stop_requested()) {
            const bool in_vain = waited_for.has_value();
            const Instant asked = Clock::now();
            const Instant give_up = give_up_at(request, begun, failing ? failing->since : asked);
            const Outcome outcome = take(request, std::exchange(waited_for, std::nullopt), give_up);
            if (outcome.held) return true;
            const Instant now = Clock::now();
            if (!outcome.why && !outcome.cut_short) failing.reset();
            if (outcome.why && !failing) failing = Failure{asked, *outcome.why};
            if (outcome.why && is_for_good(*outcome.why)) throw *outcome.why;
            // Servers that got less than node_timeout count as slow, not as unreachable.
            const bool given_time = failing && now - failing->since >= rules_.node_timeout;
            if (failing && (now >= give_up || (now >= request.deadline && given_time))) throw failing->why;
            if ((request.one_try && !failing) || now >= request.deadline) return false;
            if (failing) {
                rest(std::min(give_up, now + pause.next()), request);
                continue;
            }
            // Pause, so that callers that released a member each do not collide again. An acquire that came too late
            // may also do so again.
            if (in_vain || outcome.too_late) rest(now + pause.next(), request);
            if (outcome.blocked_on)
                waited_for = wait_for(*outcome.blocked_on, request);
            else
                rest(std::min(outcome.again_at, now + slice), request);
            if (!waited_for && Clock::now() >= request.deadline) return false;
        }
        if (waited_for) {
            std::unique_lock lock(mutex_);
            give_back(
                lock, request.owner, [&](std::size_t i) { return i == waited_for; }, Clock::now());
        }
        return false;
    }

    // --- releasing --------------------------------------------------------------------------------------------

    // Releases one level. Returns no error on success, hold_lost if the hold had already ended, unreachable if too few
    // members could be released yet (the background resends the releases). Throws Error(errc::not_owner) and nothing
    // else: without memory the members' holds end all the same, at the latest with their leases.
    std::error_code release(OwnerNumber owner) {
        std::unique_lock lock(mutex_);
        Hold* hold = holds_.find(owner);
        if (!hold) {
            if (is_fork_child_) return errc::hold_lost;
            throw Error(errc::not_owner, name_, "unlock() by a thread that does not hold the lock");
        }
        look_at(*hold, Clock::now());
        const bool live = hold->live();
        const std::uint32_t remaining = hold->count + hold->dead - 1;
        Shares& shares = shares_.at(owner);
        for (Share& share : shares.of) {
            share.leaving = share.levels > remaining ? 1 : 0;
            // The member also expects releases of the levels that it lost.
            share.owed = share.levels > remaining + 1 ? share.levels - remaining - 1 : 0;
            share.levels = std::min(share.levels, remaining);
        }
        if (!live)
            --hold->dead;
        else if (hold->count > 1)
            hold->leave();
        else
            holds_.finish(*hold);
        std::map<OwnerNumber, Shares>::node_type last;  // keeps `shares` alive
        if (remaining == 0) {
            holds_.erase(owner);
            last = shares_.extract(owner);
        }
        const Releases releases = give_back(lock, owner, [&](std::size_t i) { return shares.of[i].leaving; });
        give_back(
            lock, owner, [&](std::size_t i) { return shares.of[i].owed; }, Clock::now());
        if (!live) return errc::hold_lost;
        if (releases.lost > 0) live_hold(owner);  // the remaining levels may be lost, too
        // Others can acquire the lock as soon as too few members are left with this owner.
        if (releases.asked - releases.done <= members_.size() - rules_.needed) return {};
        return releases.lost > 0 ? errc::hold_lost : errc::unreachable;
    }

    // --- queries without a command ----------------------------------------------------------------------------

    Instant valid_until(OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        const Hold* hold = live_hold(owner);
        return hold ? hold->valid_until : Instant::min();
    }

    std::stop_token lost(OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        Hold* hold = live_hold(owner);
        if (!hold) {
            std::stop_source already;
            already.request_stop();
            return already.get_token();
        }
        if (!hold->lost) hold->lost.emplace();
        return hold->lost->get_token();
    }

    // Recomputes the validity of all holds, because members may have changed.
    void look() {
        const std::lock_guard lock(mutex_);
        for (Hold& hold : holds_) look_at(hold, Clock::now());
        schedule();
    }

    // --- background -------------------------------------------------------------------------------------------

    void on_timer(Instant now, Instant horizon, std::vector<Renewal>&) override {
        std::vector<Part> missing, untrusted;
        std::unique_lock lock(mutex_);
        if (closed_) return;
        for (Hold& hold : holds_) {
            look_at(hold, now);
            if (!hold.live() || !hold.watched() || hold.renew_at > horizon) continue;
            const Milliseconds timeout = client().options().watchdog_timeout;
            hold.renew_at = now + timeout / 3;
            // The watchdogs of the members renew now, too. Their replies will have come by then.
            Shares& shares = shares_.at(hold.owner);
            shares.look_again = now + std::max(Milliseconds(10), timeout / 60);
            for (std::size_t i = 0; i < shares.of.size(); ++i) {
                if (!has(shares.of[i], members_[i]->part(hold.owner), now))
                    missing.push_back({hold.owner, hold.id, i});
                else if (shares.of[i].votes_from == never)
                    untrusted.push_back({hold.owner, hold.id, i});
            }
        }
        schedule();
        for (const Part& part : untrusted) ask_for_vote(lock, part);
        const Inside inside(*this, lock);
        for (const Part& p : missing) {
            const auto tell = [self = self(), p](const TryAnswer& answer) {
                return answer.kind == TryAnswer::Kind::held && self->adopt(p);
            };
            members_[p.member]->try_in_background(p.owner, std::nullopt, tell, Receiver::background);
        }
    }

    void expire(Instant now) override {
        const std::lock_guard lock(mutex_);
        if (closed_) return;
        for (Hold& hold : holds_) look_at(hold, now);
        schedule();
    }

    void renewed(const Renewal&, Renewed, Instant) override {}
    void subscribed() override {}
    void subscription_refused(const Reply&) override {}
    void message(std::string_view) override {}
    void disconnected() override {}

private:
    // One member's share of an owner's hold, and from when its vote counts.
    struct Share {
        std::uint32_t levels = 0;  // that the member has to release, including those of lost holds
        std::uint64_t hold = 0;    // the member's hold that votes; another one does not
        Instant votes_from = never;
        std::uint32_t leaving = 0, owed = 0;  // levels for release() to release: of this hold, and of lost ones
    };

    struct Shares {
        std::vector<Share> of;  // one for each member
        Instant looked_at{};    // when the validity was last computed
        Instant look_again{};   // when it will most likely have changed
        Instant leases_end{};   // the latest lease end of the levels without the watchdog
        Milliseconds drift{};   // allowance for clock drift over its lease
    };

    // Identifies a member's part of a hold.
    struct Part {
        OwnerNumber owner;
        std::uint64_t hold;
        std::size_t member;
    };

    // What is known of a member's server. If `connections` has grown since, the server may be another process.
    struct Server {
        std::optional<std::uint64_t> connections{};
        Instant trusted_from = never;
    };

    struct Outcome {
        bool held = false;
        bool too_late = false;                    // True if enough members were held, but not for long enough
        bool cut_short = false;                   // True if the caller ended it before it was decided
        std::optional<std::size_t> blocked_on{};  // a member that another owner holds
        Instant again_at{};                       // otherwise when to ask again
        std::optional<Error> why{};               // the error if too few answered
    };

    // Since when too few members have answered, and the first reason. A later reason may only be that an earlier try is
    // still in flight.
    struct Failure {
        Instant since;
        Error why;
    };

    struct Releases {
        std::size_t asked = 0;
        std::size_t answered = 0;
        std::size_t done = 0;
        std::size_t lost = 0;
    };

    // The longest wait for one of several independent members, whose server may be the one that fails.
    static constexpr Milliseconds slice{3000};

    // How often a call with a limit asks again for members that other callers had at the same time.
    static constexpr int most_again = 3;

    QuorumMember& client() const { return *members_.front(); }
    std::shared_ptr<QuorumState> self() { return std::static_pointer_cast<QuorumState>(shared_from_this()); }

    // Unlocks mutex_ in order to call members. close() waits until no Inside is left.
    class Inside {
    public:
        Inside(QuorumState& state, std::unique_lock<std::mutex>& lock) : state_(state), lock_(lock) {
            ++state_.inside_;
            lock_.unlock();
        }
        Inside(const Inside&) = delete;
        Inside& operator=(const Inside&) = delete;
        ~Inside() {
            lock_.lock();
            if (--state_.inside_ == 0) state_.idle_.notify_all();
        }

    private:
        QuorumState& state_;
        std::unique_lock<std::mutex>& lock_;
    };

    void check_lease(const LockRequest& request) const {
        if (!rules_.independent || !request.lease) return;
        if (*request.lease > rules_.longest_lease)
            throw Error(errc::invalid_argument, name_,
                        "the lease is above RedLockOptions::longest_lease, after which a restarted server is trusted "
                        "again; raise that in all processes");
        if (*request.lease <= drift_over(*request.lease))
            throw Error(errc::invalid_argument, name_, "the lease is not longer than servers' clocks may drift apart");
    }

    static bool is_for_good(const Error& error) {
        return error.code() != errc::unreachable && error.code() != errc::overloaded &&
               error.code() != errc::not_replicated;
    }

    Instant give_up_at(const LockRequest& request, Instant begun, Instant failing_since) const {
        const ClientOptions& options = client().options();
        if (request.one_try)
            return begun + std::max(Milliseconds(100), std::min(options.command_timeout, options.unreachable_timeout));
        return deadline_after(failing_since, options.unreachable_timeout);
    }

    static void rest(Instant until, const LockRequest& request) {
        pause(std::min(until, request.deadline), request.stop);
    }

    // --- a round ----------------------------------------------------------------------------------------------

    // Asks all members for one more level. `waited_for` is held already.
    Outcome take(const LockRequest& request, std::optional<std::size_t> waited_for, Instant give_up) {
        std::shared_ptr<QuorumRound> round;
        try {
            client().start_losses();
            client().start_background();
            round = std::make_shared<QuorumRound>(members_.size());
            return take(request, waited_for, give_up, round);
        } catch (...) {  // no memory, no thread: releases what was acquired and what still comes
            std::unique_lock lock(mutex_);
            if (round) round->over = true;
            give_back(
                lock, request.owner, [&](std::size_t i) { return i == waited_for || (round && round->had(i)); },
                Clock::now());
            throw;
        }
    }

    Outcome take(const LockRequest& request, std::optional<std::size_t> waited_for, Instant give_up,
                 const std::shared_ptr<QuorumRound>& round) {
        {
            // Drops the votes of earlier levels that are lost by now. They must not count as held without a gap.
            const std::lock_guard lock(mutex_);
            live_hold(request.owner);
        }
        const Instant begun = Clock::now();
        for (std::size_t i = 0; i < members_.size(); ++i) {
            if (i == waited_for)
                answered(round, request.owner, i, {TryAnswer::Kind::held});
            else
                ask(request, round, i);
        }
        // Constructed and destroyed without mutex_, which the callback locks.
        const std::stop_callback on_stop(request.stop, [&] {
            const std::lock_guard lock(mutex_);
            round->stopped = true;
            round->changed.notify_all();
        });
        std::unique_lock lock(mutex_);
        round->whole_time = std::min(give_up, begun + rules_.node_timeout);
        const Instant limit = std::min(round->whole_time, request.deadline);
        Instant asked = begun;
        for (int again = 0;; ++again) {
            await_answers(lock, *round, asked, limit);
            if (round->votes(Clock::now()) >= rules_.needed && accept(request, *round, begun)) return {.held = true};
            if (again == most_again || (request.deadline == never && !request.one_try)) break;
            if (round->stopped || !round->goes_first(order_)) break;
            // Callers that asked at the same time and got the other members are releasing them now.
            const Instant now = Clock::now();
            const Clock::duration trip =
                std::clamp<Clock::duration>(now - asked, std::chrono::microseconds(500), Milliseconds(20));
            round->changed.wait_until(lock, std::min(limit, now + trip * (1 << again)), [&] { return round->stopped; });
            asked = Clock::now();
            if (round->stopped || asked >= limit || !ask_again(lock, request, round)) break;
        }
        const Outcome outcome = why_not(*round, limit);
        round->over = true;
        const auto had = [&](std::size_t i) { return round->had(i); };
        give_back(lock, request.owner, had, round->stopped ? Clock::now() : request.deadline);
        return outcome;
    }

    void await_answers(std::unique_lock<std::mutex>& lock, QuorumRound& round, Instant asked, Instant limit) {
        await(lock, round.changed, limit, [&] { return round.stopped || round.decided(rules_.needed, Clock::now()); });
        const Instant now = Clock::now();
        // The remaining members will most likely answer soon, too. Waiting for them leaves nothing to the background,
        // whatever the outcome.
        const Instant soon = std::min(limit, now + (now - asked) + Milliseconds(1));
        await(lock, round.changed, soon, [&] { return round.stopped || round.complete(); });
        if (!round.complete()) stop_attending();
    }

    void ask(const LockRequest& request, const std::shared_ptr<QuorumRound>& round, std::size_t member) {
        const auto tell = [self = self(), round, owner = request.owner, member](const TryAnswer& answer) {
            return self->answered(round, owner, member, answer);
        };
        members_[member]->try_in_background(request.owner, request.lease, tell, Receiver::poster);
    }

    // Asks the members again that refused. Returns true if there were any.
    bool ask_again(std::unique_lock<std::mutex>& lock, const LockRequest& request,
                   const std::shared_ptr<QuorumRound>& round) {
        bool any = false;
        for (std::size_t i = 0; i < members_.size(); ++i) {
            if (!round->ask_again(i)) continue;
            any = true;
            lock.unlock();
            ask(request, round, i);
            lock.lock();
        }
        return any;
    }

    // Handles a member's reply. Returns true if the hold that it reports is wanted.
    bool answered(const std::shared_ptr<QuorumRound>& round, OwnerNumber owner, std::size_t member,
                  const TryAnswer& answer) {
        std::unique_lock lock(mutex_);
        if (closed_) return false;
        if (round->over) {
            lock.unlock();
            return answer.kind == TryAnswer::Kind::held && round->hold != 0 && adopt({owner, round->hold, member});
        }
        switch (answer.kind) {
            case TryAnswer::Kind::refused: round->refused(member); break;
            case TryAnswer::Kind::failed: round->failed(member, answer.why); break;
            case TryAnswer::Kind::held:
                round->held_without_vote(member);
                try {
                    ask_trust(lock, member,
                              [this, round, owner, member](Instant trusted_from, const std::optional<Error>& why) {
                                  if (why)
                                      round->failed(member, *why);
                                  else if (round->hold != 0)
                                      let_vote({owner, round->hold, member}, trusted_from);
                                  else
                                      round->held(member, std::max(trusted_from, Clock::now()));
                                  round->changed.notify_all();
                              });
                } catch (const std::bad_alloc&) {  // acquired, so the round releases it
                    round->failed(member, std::nullopt);
                }
                break;
        }
        round->changed.notify_all();
        return true;
    }

    // Records the hold, or one more level of it, once there are enough votes. Returns false if the acquire took longer
    // than the votes last.
    bool accept(const LockRequest& request, QuorumRound& round, Instant begun) {
        const Instant now = Clock::now();
        const ClientOptions& options = client().options();
        const Milliseconds drift = drift_over(request.lease.value_or(longest_watchdog()));
        const auto votes = [&](std::size_t i) { return round.had(i) && round.votes_from(i) <= now; };
        const Instant end = request.lease ? redlatch::valid_until(begun, *request.lease) - drift : never;
        const Instant until = std::min(end, validity(request.owner, drift, votes));
        if (until <= now || closed_) return false;

        Hold* hold = live_hold(request.owner);
        const bool first = !hold;
        // Steps that need memory come first, so that a failure changes nothing.
        Shares& shares = shares_[request.owner];
        shares.of.resize(members_.size());
        if (first) hold = &holds_.start(request.owner, ++last_hold_);
        for (std::size_t i = 0; i < members_.size(); ++i) {
            if (!round.had(i)) continue;
            Share& share = shares.of[i];
            const std::uint64_t part = members_[i]->part(request.owner).hold;
            const bool goes_on = !first && part == share.hold;
            share.votes_from = goes_on ? std::min(share.votes_from, round.votes_from(i)) : round.votes_from(i);
            share.hold = part;
            ++share.levels;
        }
        shares.looked_at = now;
        shares.drift = first ? drift : std::max(shares.drift, drift);
        if (first) shares.leases_end = {};
        if (request.lease) shares.leases_end = std::max(shares.leases_end, end);
        hold->enter(begun, request.lease, options.watchdog_timeout);
        hold->valid_until = end_of(*hold, until);
        round.over = true;
        round.hold = hold->id;
        schedule();
        return true;
    }

    // `limit`: until when the round waited for replies.
    Outcome why_not(QuorumRound& round, Instant limit) const {
        Outcome outcome;
        const bool decided = round.decided(rules_.needed, Clock::now());
        if (!decided && (round.stopped || limit < round.whole_time)) {
            outcome.cut_short = true;
            return outcome;
        }
        if (!decided) round.time_is_up();
        if (round.unreachable(rules_.needed)) {
            outcome.why = round.why();
            if (!outcome.why)
                outcome.why.emplace(errc::unreachable, name_,
                                    std::to_string(round.failures()) + " of its " + std::to_string(members_.size()) +
                                        " members did not answer in time; are their servers running?");
        } else {
            outcome.blocked_on = round.first_refused();
            outcome.again_at = round.votes_at(rules_.needed);
            outcome.too_late = outcome.again_at <= Clock::now();
        }
        return outcome;
    }

    // Waits for a member that another owner holds. Returns it if it was acquired.
    std::optional<std::size_t> wait_for(std::size_t member, const LockRequest& request) {
        LockRequest one = request;
        if (rules_.independent) one.deadline = std::min(request.deadline, Clock::now() + slice);
        try {
            if (members_[member]->acquire(one)) return member;
        } catch (const Error& error) {
            // The next round shows whether only a minority fails.
            if (!rules_.independent || is_for_good(error)) throw;
            rest(Clock::now() + Milliseconds(50), request);
        }
        return std::nullopt;
    }

    // Handles a member's hold that comes late. Returns true if it is still wanted.
    bool adopt(const Part& part) {
        std::unique_lock lock(mutex_);
        Hold* hold = closed_ ? nullptr : live_hold(part.owner);
        if (!hold || hold->id != part.hold) return false;
        Share& share = shares_.at(part.owner).of[part.member];
        const HeldPart given = members_[part.member]->part(part.owner);
        ++share.levels;
        if (has(share, given, Clock::now())) return true;  // one more level
        share.hold = given.hold;
        share.votes_from = never;
        ask_for_vote(lock, part);
        return true;
    }

    void ask_for_vote(std::unique_lock<std::mutex>& lock, const Part& part) try {
        ask_trust(lock, part.member, [this, part](Instant trusted_from, const std::optional<Error>& why) {
            if (!why) let_vote(part, trusted_from);
        });
    } catch (const std::bad_alloc&) {  // retried at the next renewal
    }

    // Lets the part vote from `trusted_from` on, but not before now.
    void let_vote(const Part& part, Instant trusted_from) {
        Hold* hold = live_hold(part.owner);
        if (!hold || hold->id != part.hold) return;
        Share& share = shares_.at(part.owner).of[part.member];
        share.votes_from = std::min(share.votes_from, std::max(trusted_from, Clock::now()));
        look_at(*hold, Clock::now());
        schedule();
    }

    // --- which servers may vote -------------------------------------------------------------------------------

    // Calls `then(from when the vote counts, or the error)` with mutex_ held, now or later.
    template <class Then>
    void ask_trust(std::unique_lock<std::mutex>& lock, std::size_t member, Then then) {
        if (!rules_.independent) return then(Instant::min(), std::nullopt);
        const std::optional<std::uint64_t> connections = members_[member]->connections();
        const Server& server = servers_[member];
        if (connections && server.connections == connections) return then(server.trusted_from, std::nullopt);
        const Inside inside(*this, lock);
        members_[member]->ask_info([self = self(), member, connections, then](const Reply& reply) {
            const std::lock_guard relock(self->mutex_);
            if (!self->closed_) self->learn_age(member, connections, reply, then);
        });
    }

    // Learns the server's age from the reply to INFO. The reply is newer than the member's part, so the server process
    // that granted the part started no later than INFO shows.
    template <class Then>
    void learn_age(std::size_t member, const std::optional<std::uint64_t>& connections, const Reply& reply,
                   const Then& then) {
        QuorumMember& m = *members_[member];
        if (classify(reply) != ReplyClass::answered) return then(never, error_of(reply, m.name()));
        const auto uptime = reply.kind == Reply::Kind::text ? read_uptime(reply.text) : std::nullopt;
        if (!uptime) return then(never, unexpected(reply, m.name()));
        // INFO counts whole seconds, and the last one may have just begun.
        const auto enough = std::chrono::ceil<std::chrono::seconds>(rules_.longest_lease * 2);
        const auto age = std::clamp(*uptime - std::chrono::seconds(1), std::chrono::seconds(0), enough);
        const Instant born = Clock::now() - age;
        servers_[member].trusted_from = born + rules_.longest_lease + drift_over(rules_.longest_lease);
        servers_[member].connections = m.connections() == connections ? connections : std::nullopt;
        then(servers_[member].trusted_from, std::nullopt);
    }

    // --- validity ---------------------------------------------------------------------------------------------

    // Returns the allowance for clock drift between independent servers: one percent, and 2 ms for the resolution of a
    // server's clock.
    Milliseconds drift_over(Milliseconds lease) const {
        return rules_.independent ? lease / 100 + Milliseconds(2) : Milliseconds(0);
    }

    Milliseconds longest_watchdog() const {
        Milliseconds longest{0};
        for (const auto& member : members_) longest = std::max(longest, member->options().watchdog_timeout);
        return longest;
    }

    // Returns until when enough of the voting members are certainly held. Needs no memory.
    template <class Votes>
    Instant validity(OwnerNumber owner, Milliseconds drift, Votes votes) {
        ends_.clear();
        for (std::size_t i = 0; i < members_.size(); ++i)
            if (votes(i)) ends_.push_back(members_[i]->part(owner).until);
        if (ends_.size() < rules_.needed) return Instant::min();
        const auto last = ends_.begin() + static_cast<std::ptrdiff_t>(rules_.needed - 1);
        std::nth_element(ends_.begin(), last, ends_.end(), std::greater<>());
        return *last == Instant::min() ? *last : *last - drift;
    }

    static bool lasts(const Hold& hold, Instant now) {
        return hold.valid_until != Instant::min() && hold.lost_at() > now;
    }

    // Recomputes until when a hold is valid. Votes that came since the last time count only if the hold was valid
    // without them all the time. A lost part votes no more, even if the member is acquired again.
    void look_at(Hold& hold, Instant now) {
        if (!hold.live()) return;
        Shares& shares = shares_.at(hold.owner);
        for (std::size_t i = 0; i < shares.of.size(); ++i)
            if (!has(shares.of[i], members_[i]->part(hold.owner), now)) shares.of[i].votes_from = never;
        const auto votes_since = [&](Instant then) {
            return
                [&shares, then](std::size_t i) { return shares.of[i].levels > 0 && shares.of[i].votes_from <= then; };
        };
        hold.valid_until = end_of(hold, validity(hold.owner, shares.drift, votes_since(shares.looked_at)));
        if (!lasts(hold, now)) return lose(hold);
        hold.valid_until = end_of(hold, validity(hold.owner, shares.drift, votes_since(now)));
        shares.looked_at = now;
    }

    // Members may still have longer leases from before. These are not relied upon, because they may hide a restarted
    // server.
    Instant end_of(const Hold& hold, Instant until) const {
        return hold.watched() ? until : std::min(until, shares_.at(hold.owner).leases_end);
    }

    static bool has(const Share& share, const HeldPart& part, Instant now) {
        return part.hold != 0 && part.hold == share.hold && part.until > now;
    }

    Hold* live_hold(OwnerNumber owner) {
        Hold* hold = holds_.find(owner);
        if (hold) look_at(*hold, Clock::now());
        return hold && hold->live() ? hold : nullptr;
    }

    // Ends a hold that is lost. Keeps the parts that are left until unlock(), which is still to come.
    void lose(Hold& hold) {
        hold.lose();
        tell_loss(hold);
        client().raise(Event::Kind::hold_lost, name_, "too few of its members are held any more");
    }

    void tell_loss(Hold& hold) noexcept {
        if (hold.lost) client().losses().tell(std::move(*hold.lost));
        hold.lost.reset();
    }

    void schedule() {
        if (closed_) return;
        Instant at = never;
        Instant lost_at = never;
        for (const Hold& hold : holds_) {
            if (!hold.live()) continue;
            at = std::min(at, hold.next_deadline());
            lost_at = std::min(lost_at, hold.lost_at());
            const Shares& shares = shares_.at(hold.owner);
            if (shares.look_again > shares.looked_at) at = std::min(at, shares.look_again);
            for (const Share& share : shares.of)
                if (share.votes_from > shares.looked_at) at = std::min(at, share.votes_from);
        }
        if (at != never) client().timers().schedule(*this, at);
        if (lost_at != never) client().losses().timers().schedule(*this, lost_at);
    }

    // --- releasing, together ----------------------------------------------------------------------------------

    // Releases `how_many(i)` levels of each member i. Returns the outcome once all have replied, or after node_timeout,
    // or at `limit`. Without memory it does not wait for the replies.
    template <class HowMany>
    Releases give_back(std::unique_lock<std::mutex>& lock, OwnerNumber owner, HowMany how_many, Instant limit = never) {
        struct Shared {
            Releases count;
            std::condition_variable changed;
        };
        Releases none;
        for (std::size_t i = 0; i < members_.size(); ++i) none.asked += how_many(i);
        if (none.asked == 0) return none;
        lock.unlock();
        std::shared_ptr<Shared> shared;
        std::function<void(std::error_code)> told = [](std::error_code) {};
        try {
            shared = std::make_shared<Shared>();
            shared->count = none;
            told = [self = self(), shared](std::error_code ec) {
                const std::lock_guard relock(self->mutex_);
                ++shared->count.answered;
                if (!ec) ++shared->count.done;
                if (ec == errc::hold_lost) ++shared->count.lost;
                shared->changed.notify_all();
            };
        } catch (const std::bad_alloc&) {
            shared.reset();
        }
        for (std::size_t i = 0; i < members_.size(); ++i) {
            lock.lock();
            std::size_t levels = how_many(i);
            lock.unlock();
            for (; levels > 0; --levels) give_back(i, owner, told);
        }
        const Instant until = std::min(limit, Clock::now() + rules_.node_timeout);
        lock.lock();
        if (!shared) return none;
        await(lock, shared->changed, until, [&] { return shared->count.answered == shared->count.asked; });
        return shared->count;
    }

    void give_back(std::size_t member, OwnerNumber owner, const std::function<void(std::error_code)>& told) {
        try {
            members_[member]->release_in_background(owner, told, Receiver::poster);
        } catch (const std::exception&) {  // no memory, no thread: the member retries by itself, or its lease ends
            told(make_error_code(std::errc::not_enough_memory));
        }
    }

    // --- waiting for replies ----------------------------------------------------------------------------------

    // Waits until `done()` or `until`. This thread spins to receive replies of near servers; the background receives
    // the others.
    template <class Done>
    void await(std::unique_lock<std::mutex>& lock, std::condition_variable& changed, Instant until, Done done) {
        if (done()) return;
        lock.unlock();
        const auto came = [&] {
            try {
                for (const auto& member : members_) member->attend();
            } catch (const std::bad_alloc&) {  // the background receives then
            }
            const std::lock_guard look(mutex_);
            return done();
        };
        if (!brief_wait_.reply_came(until, came, brief_wait_.for_several)) stop_attending();
        lock.lock();
        changed.wait_until(lock, until, done);
    }

    void stop_attending() {
        for (const auto& member : members_) member->stop_attending();
    }

    const std::vector<std::shared_ptr<QuorumMember>> members_;
    const QuorumRules rules_;
    const std::string name_;
    std::vector<std::size_t> order_;  // the members sorted by key: the same order for all callers
    const bool is_fork_child_;
    const ProcessMark process_ = this_process();

    AdaptiveSpin<> brief_wait_;

    std::mutex mutex_;
    std::condition_variable idle_;
    std::size_t inside_ = 0;  // number of Inside objects
    bool closed_ = false;
    HoldTable holds_;
    std::uint64_t last_hold_ = 0;
    std::map<OwnerNumber, Shares> shares_;
    std::vector<Server> servers_;
    std::vector<Instant> ends_;  // scratch memory of validity(), with room for all members
};

}  // namespace v0_1
}  // namespace redlatch
