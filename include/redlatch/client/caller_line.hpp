// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client/sleeper.hpp"
#include "redlatch/core/backoff.hpp"
#include "redlatch/core/deadline.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

namespace redlatch {

// A thread that waits for something that has no owner: permits, the end of a count.
template <class Want>
struct Caller {
    Want want;
    Sleeper sleeper{};
    bool served = false;           // has what it wants, by the question of whichever thread
    std::exception_ptr error{};    // waiting is in vain
    std::uint64_t number = 0;      // in the order of arrival
    std::uint64_t refused_at = 0;  // the news that were known when it last asked in vain
};

// The threads of this process that wait for one name, in the order of their arrival. The first, the representative,
// asks the server for all of them at once; who comes behind one that cannot be served waits, too, so that many who want
// little do not starve one who wants much. Plain data: the local state guards it and does the I/O.
//
// No wake-up is lost, because every piece of news counts the generation up, and whoever asks remembers the generation
// from before the question.
template <class Want>
class CallerLine {
public:
    using Member = Caller<Want>;

    // The server is asked again after this time, and up to as much again, even without news: a message may be lost, and
    // what ends a wait need not send one (a key that expires).
    static constexpr Milliseconds slow_poll{5000};

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
    // as the server knows.
    void refused(Member& member, std::uint64_t generation, Milliseconds hint, Instant now) {
        member.refused_at = generation;
        ask_again_ = now + std::min<Clock::duration>(std::min(hint, slow_poll * 2), poll_.next());
    }

    // What the representative does now.
    struct Step {
        bool ask;
        Instant sleep_until;
    };

    Step step(Instant now) const {
        if (front()->refused_at != generation_ || now >= ask_again_) return {true, now};
        return {false, ask_again_};
    }

private:
    std::vector<Member*> members_;
    std::uint64_t generation_ = 1;
    std::uint64_t last_number_ = 0;
    Instant ask_again_{};
    Backoff poll_{slow_poll * 2, slow_poll * 2};  // between half and all of it
};

}  // namespace redlatch
