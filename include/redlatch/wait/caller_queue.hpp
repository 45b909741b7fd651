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

// A thread that waits for something that has no owner: permits, the end of a count.
template <class Want>
struct Caller {
    Want want;
    WaitSlot sleeper{};
    bool served = false;           // has what it wants, by the question of whichever thread
    std::exception_ptr error{};    // waiting is in vain
    std::uint64_t number = 0;      // in the order of arrival
    std::uint64_t refused_at = 0;  // the news that were known when it last asked in vain
};

// The threads of this process that wait for one name, in the order of their arrival. The first, the representative,
// asks the server for all of them at once; who comes behind one that cannot be served waits, too, so that many who want
// little do not starve one who wants much. Plain data: the local state guards it and does the I/O.
//
// Who wants more than can ever be served must not hold up the others for good. What a server has is not known, but what
// it was seen to have lately is. The first one that wants more takes turns with those behind it: it holds them back, then
// lets them pass for as long, and each turn is longer than the one before. It holds them back anew when more is there
// than it has seen before, so that what comes back piece by piece is kept for it.
//
// No wake-up is lost, because every piece of news counts the generation up, and whoever asks remembers the generation
// from before the question.
template <class Want>
class CallerQueue {
public:
    using Member = Caller<Want>;

    // The server is asked again after this time, and up to as much again, even without news: a message may be lost, and
    // what ends a wait need not send one (a key that expires).
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

    // The first ones, at most `most`.
    std::vector<Member*> first(std::size_t most) const {
        return {members_.begin(), members_.begin() + static_cast<std::ptrdiff_t>(std::min(most, members_.size()))};
    }

    // The one of this number, if it still waits.
    Member* find(std::uint64_t number) const {
        const auto found =
            std::find_if(members_.begin(), members_.end(), [&](const Member* m) { return m->number == number; });
        return found == members_.end() ? nullptr : *found;
    }

    void news() { ++generation_; }
    std::uint64_t generation() const { return generation_; }

    // A question asked at `generation` was in vain for this one. `hint`: after which time it may be otherwise, as far
    // as the server knows. `there`: how much there is, as far as its answer told.
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

    // What the representative does now.
    struct Step {
        bool ask;
        Instant sleep_until;
    };

    Step step(Instant now) const {
        if (front()->refused_at != generation_ || now >= ask_again_) return {true, now};
        if (members_.size() == 1 || is_within_reach(front()->want, now)) return {false, ask_again_};
        const Turn turn = turn_at(now);
        if (!turn.lets_pass) return {false, std::min(ask_again_, turn.ends)};
        // Each of them is asked for once in a turn, without news.
        const bool asked = passed_until_ == turn.ends && passed_number_ == last_number_;
        return {!asked, asked ? ask_again_ : now};
    }

    // Of the question that is asked now: who lets those behind pass, where there is not enough for it. One that has come
    // to be the first is told so with its next question.
    bool lets_pass(const Want& want, Instant now) {
        if (turns_of_ != front()->number || is_within_reach(front()->want, now)) return false;
        const Turn turn = turn_at(now);
        if (!turn.lets_pass) return false;
        passed_until_ = turn.ends;
        passed_number_ = last_number_;
        return !is_within_reach(want, now);
    }

    // Whether so much was there lately.
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
    std::int64_t seen_ = 0;  // the most that was there lately, and when
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
    std::uint64_t turns_of_ = 0;  // the first one in line, when it was last refused
    Instant turns_began_{};
    std::int64_t most_ = 0;   // that was there since it is the first
    Instant passed_until_{};  // the turn of the last question that let others pass, and who was in line then
    std::uint64_t passed_number_ = 0;
    Backoff poll_{slow_poll * 2, slow_poll * 2};  // between half and all of it
};

}  // namespace v0_1
}  // namespace redlatch
