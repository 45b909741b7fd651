// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/wait/wait_slot.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// A thread that waits for something without an owner: permits, or the end of a count.
template <class Want>
struct Caller {
    Want want;
    WaitSlot sleeper{};
    bool served = false;           // true if a query, of this thread or another, got what it wants
    std::exception_ptr error{};    // waiting cannot succeed
    std::uint64_t number = 0;      // in the order of arrival
    std::uint64_t refused_at = 0;  // the generation at its last refused query
};

// Queues the threads of this process that wait for one name, in order of arrival. The first, the representative,
// queries the server for all of them at once. A waiter behind one that cannot be served waits, too, so that many small
// requests cannot starve a large one. Plain data: the local state guards it and does the I/O.
//
// A request for more than can ever be served must not block the others indefinitely. How much the server has is not
// known, but how much was recently seen there is. A front waiter that wants more than that takes turns with those
// behind it:
//   - It holds them back, then lets them pass for as long. Each turn is longer than the one before, up to longest_turn.
//   - It holds them back again when more is available than it has seen before. So the queue keeps permits for it that
//     come back piece by piece.
//
// No wake-up is lost: each notification increments the generation, and a query remembers the generation from before it.
template <class Want>
class CallerQueue {
public:
    using Member = Caller<Want>;

    // The representative queries again after this time, up to twice as long, even without a notification. A message may
    // be lost, and not every end of a wait sends one (a key that expires).
    static constexpr Milliseconds slow_poll{5000};

    static constexpr Milliseconds first_turn{1000};
    static constexpr Milliseconds longest_turn{10'000};
    static constexpr Milliseconds lately = std::chrono::minutes(10);

    bool empty() const { return members_.empty(); }
    Member* front() const { return members_.empty() ? nullptr : members_.front(); }
    bool is_front(const Member& member) const { return front() == &member; }

    void join(Member& member) {
        member.number = ++last_number_;
        members_.push_back(&member);
    }
    void leave(const Member& member) { std::erase(members_, &member); }

    // Returns the first waiters, at most `most`.
    std::vector<Member*> first(std::size_t most) const {
        return {members_.begin(), members_.begin() + static_cast<std::ptrdiff_t>(std::min(most, members_.size()))};
    }

    // Returns the waiter with this number, or null if it waits no longer.
    Member* find(std::uint64_t number) const {
        const auto found =
            std::find_if(members_.begin(), members_.end(), [&](const Member* m) { return m->number == number; });
        return found == members_.end() ? nullptr : *found;
    }

    void notify() { ++generation_; }
    std::uint64_t generation() const { return generation_; }

    // Records that a query made at `generation` was refused for this waiter. `hint` is the time after which a retry may
    // succeed, as far as the server knows. `there` is the amount available, as far as the reply tells.
    void refused(Member& member, std::uint64_t generation, Milliseconds hint, Instant now, std::int64_t there = 0) {
        member.refused_at = generation;
        if (there >= seen_ || now - seen_at_ > lately) {
            seen_ = there;
            seen_at_ = now;
        }
        if (turns_of_ != member.number || there > most_) {
            turns_of_ = member.number;
            turns_began_ = now;
            most_ = there;
        }
        ask_again_ = now + std::min<Clock::duration>(std::min(hint, slow_poll * 2), poll_.next());
    }

    // The next step of the representative.
    struct Step {
        bool ask;
        Instant sleep_until;
    };

    Step step(Instant now) const {
        if (front()->refused_at != generation_ || now >= ask_again_) return {true, now};
        if (members_.size() == 1 || is_within_reach(front()->want, now)) return {false, ask_again_};
        const Turn turn = turn_at(now);
        if (!turn.lets_pass) return {false, std::min(ask_again_, turn.ends)};
        // Without notifications, each waiter behind is queried for once per turn.
        const bool asked = passed_until_ == turn.ends && passed_number_ == last_number_;
        return {!asked, asked ? ask_again_ : now};
    }

    // Returns true if, in the query being made now, this waiter lets those behind pass when there is not enough for it.
    // A waiter that has become the front learns that only with its next query.
    bool lets_pass(const Want& want, Instant now) {
        if (turns_of_ != front()->number || is_within_reach(front()->want, now)) return false;
        const Turn turn = turn_at(now);
        if (!turn.lets_pass) return false;
        passed_until_ = turn.ends;
        passed_number_ = last_number_;
        return !is_within_reach(want, now);
    }

    // Returns true if this much was recently seen there.
    bool is_within_reach(const Want& want, Instant now) const {
        if constexpr (requires { want.amount(); })
            return want.amount() <= seen_ && now - seen_at_ <= lately;
        else
            return true;
    }

private:
    std::vector<Member*> members_;
    std::uint64_t generation_ = 1;
    std::uint64_t last_number_ = 0;
    Instant ask_again_{};
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

}  // namespace v0_1
}  // namespace redlatch
