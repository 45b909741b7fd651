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

// One thread that waits for a lock.
struct Waiter {
    OwnerNumber owner;
    std::optional<Milliseconds> lease;
    WaitSlot sleeper{};
    bool granted = false;  // true if a thread of this process handed off its hold, which is recorded under `owner`
    bool trying = false;   // true while it queries the server
    std::optional<Backoff> pause{};  // set if it retries after pauses and receives no messages
    Instant ask_again = never;       // the end of this pause, whatever other threads learn meanwhile
    std::exception_ptr error{};      // waiting cannot succeed
};

// Queues the threads of this process that wait for one lock, in order of arrival, with what they know. Only the first,
// the representative, queries the server; the others send nothing. Plain data: the local state of the lock guards it
// and does the I/O.
//
// No wake-up is lost: each notification increments the generation, and a query remembers the generation from before it.
// A notification is a published release, a confirmed subscription, or the end of a hold of this process.
class WaitQueue {
public:
    // The pause before the representative retries if the reply named no time: the holder has no TTL.
    static constexpr Milliseconds slow_poll{5000};
    // The longest pause before a retry, whatever the reply named: the server's clock may have been wrong.
    static constexpr Milliseconds longest_sleep{30'000};

    bool empty() const { return waiters_.empty(); }
    Waiter* front() const { return waiters_.empty() ? nullptr : waiters_.front(); }
    bool is_front(const Waiter& waiter) const { return front() == &waiter; }

    void join(Waiter& waiter) { waiters_.push_back(&waiter); }
    void join_first(Waiter& waiter) { waiters_.insert(waiters_.begin(), &waiter); }
    void leave(const Waiter& waiter) { std::erase(waiters_, &waiter); }

    // Returns the waiter that receives a handed-off hold: the first that is not querying the server already.
    Waiter* successor() const {
        const auto found = std::find_if(waiters_.begin(), waiters_.end(), [](const Waiter* w) { return !w->trying; });
        return found == waiters_.end() ? nullptr : *found;
    }

    // Returns the first waiter that waits for messages.
    Waiter* first_listener() const {
        const auto found = std::find_if(waiters_.begin(), waiters_.end(), [](const Waiter* w) { return !w->pause; });
        return found == waiters_.end() ? nullptr : *found;
    }

    void notify() { ++generation_; }
    std::uint64_t generation() const { return generation_; }

    // Records the reply to a query made at `generation`: blocked by a holder with `holder_lease` left.
    void blocked(std::uint64_t generation, Milliseconds holder_lease, Instant now) {
        asked_ = generation;
        if (holder_lease < Milliseconds::zero()) holder_lease = slow_poll;
        // Add one: the key is gone only in the millisecond after its last.
        ask_again_ = now + std::min(holder_lease, longest_sleep) + Milliseconds(1);
    }

    // Records that a thread of this process holds the lock from now on. Older notifications no longer matter.
    void acquired_locally() {
        asked_ = generation_;
        ask_again_ = never;
    }

    // Records that a thread of this process released the lock, and that the message to the others will arrive here,
    // too: all get the same chance. If the message does not arrive, the representative queries anyway after slow_poll.
    void expect_message(Instant now) { ask_again_ = now + slow_poll; }

    // The next step of the representative.
    struct Step {
        bool ask;
        Instant sleep_until;
    };

    // `held_until` is the time until which a thread of this process holds the lock, in the past if none does.
    // `ask_again` is the time at which the representative retries by itself.
    Step step(Instant now, Instant held_until, Instant ask_again = never) const {
        if (generation_ != asked_) return {true, now};
        // The unlock() or the loss of that hold will notify.
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
