// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/protocol/shared_permits.hpp"
#include "redlatch/wait/wait_queue.hpp"
#include "redlatch/wait/waiter.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The answer to a query that was refused, and the generation from before it.
struct RefusedQuery {
    std::uint64_t generation;
    Answer answer;
};

// One caller that waits for permits, or for the end of a count.
template <class Want>
struct RequestWaiter : Waiter {
    explicit RequestWaiter(Want what, WaitBy by = by_thread) : Waiter(by), want(std::move(what)) {}

    Want want;
    unsigned require_replicas = 0;
    bool require_fsync = false;
    std::optional<RefusedQuery> refusal{};  // of its query before it joined the queue
    std::uint64_t refused_at = 0;           // the generation at its last refused query
    std::uint64_t questions = 0;            // at this query: see WaitingPlace::questions()
    bool is_told = false;                   // True once it was reported that there is nothing to wait for
};

// The queue of the threads of this process that wait for one name. The representative queries the server for all of
// them at once. A waiter behind one that cannot be served waits, too, so that many small requests cannot starve a large
// one.
//
// A request for more than can ever be served must not block the others indefinitely. How much the server has is not
// known, but how much was recently seen there is. A front waiter that wants more than that takes turns with those
// behind it:
//   - It holds them back, then lets them pass for as long. Each turn is longer than the one before, up to longest_turn.
//   - It holds them back again when more is available than it has seen before. So the queue keeps permits for it that
//     come back piece by piece.
// One that wants a single permit takes no turns: nobody can want less.
template <class Want>
class RequestQueue : public WaitQueue<RequestWaiter<Want>> {
public:
    using Member = RequestWaiter<Want>;
    using WaitQueue<Member>::front, WaitQueue<Member>::size, WaitQueue<Member>::ask_again;
    using WaitQueue<Member>::last_number;

    // The representative queries again after this time, up to twice as long, even without a notification. A message may
    // be lost, and not every end of a wait sends one (a key that expires). Wants may name a time of their own.
    static constexpr Milliseconds slow_poll = [] {
        if constexpr (requires { Want::slow_poll; })
            return Want::slow_poll;
        else
            return Milliseconds(5000);
    }();

    static constexpr Milliseconds first_turn{1000};
    static constexpr Milliseconds longest_turn{10'000};
    static constexpr Milliseconds lately = std::chrono::minutes(10);

    // Records that a query made at `generation` was refused for this waiter. `hint` is the time after which a retry may
    // succeed, as far as the server knows. `there` is the amount available, as far as the reply tells.
    void refused(Member& member, std::uint64_t generation, Milliseconds hint, Instant now, std::int64_t there = 0) {
        member.refused_at = generation;
        saw(there, now);
        if (turns_of_ != member.number || there > most_) {
            turns_of_ = member.number;
            turns_began_ = now;
            most_ = there;
        }
        this->asked(generation, now + std::min<Clock::duration>(std::min(hint, slow_poll * 2), poll_.next()));
    }

    // Records that there was this much.
    void saw(std::int64_t there, Instant now) {
        if (there < seen_ && now - seen_at_ <= lately) return;
        seen_ = there;
        seen_at_ = now;
    }

    // Returns the next step of the representative.
    QueueStep step(Instant now) const {
        // A new representative was perhaps not part of the last query.
        if (front()->refused_at != this->generation() || now >= ask_again()) return {true, now};
        if (size() == 1 || is_within_reach(front()->want, now)) return {false, ask_again()};
        const Turn turn = turn_at(now);
        if (!turn.lets_pass) return {false, std::min(ask_again(), turn.ends)};
        // Without notifications, each waiter behind is queried for once per turn.
        const bool was_asked = passed_until_ == turn.ends && passed_number_ == last_number();
        return {!was_asked, was_asked ? ask_again() : now};
    }

    // Returns true if, in the query being made now, this waiter lets those behind pass when there is not enough for it.
    // A waiter that has become the front learns that only with its next query.
    bool lets_pass(const Want& want, Instant now) {
        if (turns_of_ != front()->number || is_within_reach(front()->want, now)) return false;
        const Turn turn = turn_at(now);
        if (!turn.lets_pass) return false;
        passed_until_ = turn.ends;
        passed_number_ = last_number();
        return !is_within_reach(want, now);
    }

    // Returns true if this much was recently seen there, or if nobody can want less.
    bool is_within_reach(const Want& want, Instant now) const {
        if constexpr (requires { want.amount(); })
            return want.amount() <= 1 || (want.amount() <= seen_ && now - seen_at_ <= lately);
        else
            return true;
    }

private:
    std::int64_t seen_ = 0;  // the largest amount seen recently, and when
    Instant seen_at_{};

    struct Turn {
        bool lets_pass;
        Instant ends;
    };
    Turn turn_at(Instant now) const {
        Instant ends = turns_began_;
        for (Milliseconds length = first_turn;; length = std::min(length * 2, longest_turn))
            for (const bool lets_pass : {false, true})
                if (ends += length; now < ends) return {lets_pass, ends};
    }
    std::uint64_t turns_of_ = 0;  // the front waiter at its last refusal
    Instant turns_began_{};
    std::int64_t most_ = 0;   // the largest amount seen since it is the front
    Instant passed_until_{};  // the end of the turn of the last query that let others pass, and the last waiter then
    std::uint64_t passed_number_ = 0;
    Backoff poll_{slow_poll * 2, slow_poll * 2};  // each pause is between half and all of it
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
