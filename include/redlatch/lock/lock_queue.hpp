// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/wait/lock_request.hpp"
#include "redlatch/wait/wait_queue.hpp"
#include "redlatch/wait/waiter.hpp"

#include <algorithm>
#include <cstdint>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// One caller that waits for a lock.
struct LockWaiter : Waiter {
    explicit LockWaiter(const LockRequest& wanted) : Waiter(wanted.by), request(wanted) { listens = !request.polling; }

    const LockRequest& request;
    std::uint64_t hold = 0;     // once it is served: the hold that it got
    std::uint64_t writer = 0;   // for a reader: the hold as the writer with which its owner has asked
    Instant ask_again = never;  // if it retries after pauses: the end of this one, whatever others learn meanwhile
};

// The queue of the threads of this process that wait for one lock.
class LockQueue : public WaitQueue<LockWaiter> {
public:
    // The pause before the representative retries if the reply named no time: the holder has no TTL.
    static constexpr Milliseconds slow_poll{5000};
    // The longest pause before a retry, whatever the reply named: the server's clock may have been wrong.
    static constexpr Milliseconds longest_sleep{30'000};

    // Returns the waiter that receives a handed-off hold: the first that is not querying the server already.
    LockWaiter* successor() const {
        return first_that([](const LockWaiter& w) { return w.phase != Waiter::Phase::asking; });
    }

    // Records the reply to a query made at `generation`: blocked by a holder with `holder_lease` left.
    void blocked(std::uint64_t generation, Milliseconds holder_lease, Instant now) {
        if (holder_lease < Milliseconds::zero()) holder_lease = slow_poll;
        // Add one: the key is gone only in the millisecond after its last.
        asked(generation, now + std::min(holder_lease, longest_sleep) + Milliseconds(1));
    }

    // Records that a thread of this process holds the lock from now on. Older notifications no longer matter.
    void acquired_locally() { asked(generation(), never); }

    // Records that a thread of this process released the lock, and that the message to the others will arrive here,
    // too: all get the same chance. If the message does not arrive, the representative queries anyway after slow_poll.
    void expect_message(Instant now) { set_ask_again(now + slow_poll); }

    // Returns the next step of the representative. `held_until` is the time until which a thread of this process holds
    // the lock, in the past if none does. `retry_at` is the time at which the representative retries by itself.
    QueueStep step(Instant now, Instant held_until, Instant retry_at = never) const {
        if (is_notified()) return {true, now};
        // The unlock() or the loss of that hold will notify.
        if (held_until > now) return {false, held_until};
        if (now >= ask_again() || ask_again() == never || now >= retry_at) return {true, now};
        return {false, std::min(ask_again(), retry_at)};
    }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
