// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Polls for a reply for a moment before the thread goes to sleep. Waking a thread on an idle CPU takes longer than the
// reply of a near server, and costs about as much CPU as yielding until then. It learns whether polling pays: a server
// that is too far away, or too busy, soon gets no more than one attempt in `most_skipped` replies.
//
// Any number of threads may use it. They may overwrite each other's measurements, which does no harm.
template <class Time = Clock>  // the clock to use
class AdaptiveSpin {
public:
    static constexpr auto for_the_server = std::chrono::microseconds(100);
    // For several servers, which may share the CPUs.
    static constexpr auto for_several = std::chrono::microseconds(300);

    // Returns true as soon as `came()` is true, false when it is time to sleep.
    template <class Came>
    bool reply_came(Instant deadline, Came came, std::chrono::microseconds patience = for_the_server) {
        if (const unsigned skip = skip_.load(std::memory_order_relaxed); skip > 0) {
            skip_.store(skip - 1, std::memory_order_relaxed);
            return false;
        }
        const Instant limit = Time::now() + patience;
        const bool in_time = yield_until(std::min(deadline, limit), came);
        const Instant now = Time::now();
        unsigned penalty = penalty_.load(std::memory_order_relaxed);
        if (in_time && now <= limit + fair_turn) {
            penalty = 0;
        } else if (now > limit) {
            // The server is too far away, or other threads want this CPU and a yield takes so long that sleeping would
            // be faster.
            skip_.store(penalty, std::memory_order_relaxed);
            penalty = std::clamp(penalty * 2, 1U, most_skipped);
        }
        penalty_.store(penalty, std::memory_order_relaxed);
        return in_time;
    }

private:
    // The longest time that the other ready threads may take before a yielding thread runs again.
    static constexpr auto fair_turn = std::chrono::microseconds(500);
    static constexpr unsigned most_skipped = 64;

    template <class Came>
    static bool yield_until(Instant limit, Came& came) {
        do {
            std::this_thread::yield();
            if (came()) return true;
        } while (Time::now() < limit);
        return false;
    }

    std::atomic<unsigned> skip_{0};
    std::atomic<unsigned> penalty_{0};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
