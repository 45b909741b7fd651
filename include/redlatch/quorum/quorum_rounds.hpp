// SPDX-License-Identifier: MIT
#pragma once

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

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

// Asks the members of a lock over several, all at once, and waits until that is decided. If too few could be acquired, it
// releases them at once. A caller sleeps in the slot of its round: replies and its stop token wake it.
class QuorumRounds {
public:
    QuorumRounds(QuorumCore& core, QuorumVotes& votes, QuorumHolds& holds, QuorumReleases& releases)
        : core_(core), votes_(votes), holds_(holds), releases_(releases), silent_(core.members.size()) {
        for (std::size_t i = 0; i < core_.members.size(); ++i) order_.push_back(i);
        std::sort(order_.begin(), order_.end(), [this](std::size_t a, std::size_t b) {
            return std::forward_as_tuple(core_.members[a]->key(), a) <
                   std::forward_as_tuple(core_.members[b]->key(), b);
        });
    }

    struct Outcome {
        bool held = false;
        bool too_late = false;                    // True if enough members were held, but not for long enough
        bool cut_short = false;                   // True if the caller ended it before it was decided
        std::optional<std::size_t> blocked_on{};  // a member that another owner holds
        Instant again_at{};                       // otherwise when to ask again
        std::optional<Error> why{};               // the error if too few answered
        bool by_servers = false;                  // True if too many servers have answered with an error
    };

    // Asks all members for one more level. `waited_for` is held already. Waits until `deadline` at most. `again`: see
    // QuorumAcquire::Caller.
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

private:
    // How often a call with a limit asks again for members that other callers had at the same time.
    static constexpr int most_again = 3;

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

    QuorumCore& core_;
    QuorumVotes& votes_;
    QuorumHolds& holds_;
    QuorumReleases& releases_;
    std::vector<std::size_t> order_;  // the members sorted by key: the same order for all callers
    std::vector<bool> silent_;        // by member: see await_no_silent_member(); guarded by the mutex of the quorum
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
