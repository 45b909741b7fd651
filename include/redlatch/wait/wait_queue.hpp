// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/wait/wait_slot.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <optional>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// A thread that waits for a lock.
struct Waiter {
    OwnerNumber owner;
    std::optional<Milliseconds> lease;
    WaitSlot sleeper{};
    bool granted = false;            // a thread of this process handed its hold over: it is recorded under `owner`
    bool trying = false;             // it is asking the server at this moment
    std::optional<Backoff> pause{};  // it asks again after pauses, and listens to no messages
    Instant ask_again = never;       // the end of this pause, whatever others were told meanwhile
    std::exception_ptr error{};      // waiting is in vain
};

// The threads of this process that wait for one lock, in the order of their arrival, and what they know. Only the
// first, the representative, asks the server; the others send nothing. Plain data: the local state of the lock
// guards it and does the I/O.
//
// No wake-up is lost, because every piece of news (a release was published, the subscription was confirmed, a hold of
// this process ended) counts the generation up, and whoever asks remembers the generation from before the question.
class WaitQueue {
public:
    // The pause after which the representative asks again when it was told no time: a holder without a TTL.
    static constexpr Milliseconds slow_poll{5000};
    // And at most so long, whatever it was told: the server's clock may have been wrong when it said so.
    static constexpr Milliseconds longest_sleep{30'000};

    bool empty() const { return waiters_.empty(); }
    Waiter* front() const { return waiters_.empty() ? nullptr : waiters_.front(); }
    bool is_front(const Waiter& waiter) const { return front() == &waiter; }

    void join(Waiter& waiter) { waiters_.push_back(&waiter); }
    void join_first(Waiter& waiter) { waiters_.insert(waiters_.begin(), &waiter); }
    void leave(const Waiter& waiter) { std::erase(waiters_, &waiter); }

    // Who gets a hold that is handed over: the first who is not asking the server for it already.
    Waiter* heir() const {
        const auto found = std::find_if(waiters_.begin(), waiters_.end(), [](const Waiter* w) { return !w->trying; });
        return found == waiters_.end() ? nullptr : *found;
    }

    // The first who waits for messages.
    Waiter* first_listener() const {
        const auto found = std::find_if(waiters_.begin(), waiters_.end(), [](const Waiter* w) { return !w->pause; });
        return found == waiters_.end() ? nullptr : *found;
    }

    void news() { ++generation_; }
    std::uint64_t generation() const { return generation_; }

    // The question asked at `generation` was answered: blocked, by a holder with `holder_lease` left.
    void blocked(std::uint64_t generation, Milliseconds holder_lease, Instant now) {
        asked_ = generation;
        if (holder_lease < Milliseconds::zero()) holder_lease = slow_poll;
        // One more than told: the key is gone only in the millisecond after its last.
        ask_again_ = now + std::min(holder_lease, longest_sleep) + Milliseconds(1);
    }

    // A thread of this process holds the lock from now on: older news means nothing any more.
    void held_here() {
        asked_ = generation_;
        ask_again_ = never;
    }

    // A thread of this process gave the lock back, and others were told by a message that will come here too: the same
    // chance for all. Should it not come, the question is asked after a while anyway.
    void expect_message(Instant now) { ask_again_ = now + slow_poll; }

    // What the representative does now.
    struct Step {
        bool ask;
        Instant sleep_until;
    };

    // `held_until`: until when a thread of this process holds the lock; the past if none does. `ask_again`: when the
    // representative asks of its own accord.
    Step step(Instant now, Instant held_until, Instant ask_again = never) const {
        if (generation_ != asked_) return {true, now};
        // Its unlock() or its loss will be news.
        if (held_until > now) return {false, held_until};
        if (now >= ask_again_ || ask_again_ == never || now >= ask_again) return {true, now};
        return {false, std::min(ask_again_, ask_again)};
    }

private:
    std::vector<Waiter*> waiters_;
    std::uint64_t generation_ = 1;
    std::uint64_t asked_ = 0;
    Instant ask_again_{};
};

}  // namespace v0_1
}  // namespace redlatch
