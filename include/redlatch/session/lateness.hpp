// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <algorithm>
#include <atomic>

namespace redlatch {
inline namespace v0_1 {

// How late one thread was of late to do what was due: the longest of the last one or two spans, a span being longer than
// the time between two looks at a quiet client. One thread measures; any may ask.
class Lateness {
public:
    static constexpr Milliseconds span = std::chrono::minutes(1);
    static constexpr Milliseconds shortest_notice{5};
    static constexpr Milliseconds longest_notice{200};

    // What was due then is done now.
    void add(Instant due, Instant now) noexcept {
        if (now >= begun_ + span) {
            before_ = now >= begun_ + 2 * span ? Clock::duration::zero() : longest_.load();
            longest_ = Clock::duration::zero();
            begun_ = now;
        }
        longest_ = std::max(longest_.load(), now - due);
    }

    // By how much sooner a thing is to be due that must not be late: twice the lateness.
    Clock::duration notice() const noexcept {
        const Clock::duration late = std::max(longest_.load(), before_.load());
        return std::clamp<Clock::duration>(std::min<Clock::duration>(late, longest_notice) * 2, shortest_notice,
                                           longest_notice);
    }

private:
    std::atomic<Clock::duration> longest_{Clock::duration::zero()};  // of this span
    std::atomic<Clock::duration> before_{Clock::duration::zero()};   // of the one before
    Instant begun_{};                                                // of this span; the measuring thread's own
};

}  // namespace v0_1
}  // namespace redlatch
