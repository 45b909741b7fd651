// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace redlatch {
inline namespace v0_1 {

// Waits for a reply awake, for a moment, before the thread goes to sleep: waking a thread on an idle CPU takes longer
// than a near server's answer, and costs about as much CPU as yielding until then. Whether that pays is learned: a
// server that is too far away for it, or too busy, is soon given no more than one try in `most_skipped` replies.
//
// Any number of threads may use it; what one learns may overwrite what another does, which does no harm.
template <class Time = Clock>  // what tells the time
class AdaptiveSpin {
public:
    static constexpr auto for_the_server = std::chrono::microseconds(100);
    // Several servers may share the CPUs.
    static constexpr auto for_several = std::chrono::microseconds(300);
    // For a reply that another thread reads: it comes when those before it have come.
    static constexpr auto for_the_reader = std::chrono::microseconds(200);

    // The reader's: true as soon as `came()`, false when it is time to sleep.
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
            // Too far away; or others want this CPU, and a yield takes so long that a sleeper would be served better.
            skip_.store(penalty, std::memory_order_relaxed);
            penalty = std::clamp(penalty * 2, 1U, most_skipped);
        }
        penalty_.store(penalty, std::memory_order_relaxed);
        pays_.store(penalty <= 2, std::memory_order_relaxed);
        return in_time;
    }

    // Another thread's, which waits for the reader.
    template <class Came>
    bool until(Instant deadline, Came came) const {
        return pays_.load(std::memory_order_relaxed) &&
               yield_until(std::min(deadline, Time::now() + for_the_reader), came);
    }

private:
    // How long the other threads that are ready to run may take until a yielding one has its turn again.
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
    std::atomic<bool> pays_{true};
};

}  // namespace v0_1
}  // namespace redlatch
