// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <algorithm>
#include <atomic>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Measures how late one thread recently was to do its due work: the longest delay of the last one or two spans. A span
// is longer than the time between two wake-ups of an idle client. One thread measures; any thread may query.
class Lateness {
public:
    static constexpr Milliseconds span = std::chrono::minutes(1);
    static constexpr Milliseconds shortest_notice{5};
    static constexpr Milliseconds longest_notice{200};

    // Records that work due at `due` was done at `now`.
    void add(Instant due, Instant now) noexcept {
        if (now >= begun_ + span) {
            before_ = now >= begun_ + 2 * span ? Clock::duration::zero() : longest_.load();
            longest_ = Clock::duration::zero();
            begun_ = now;
        }
        longest_ = std::max(longest_.load(), now - due);
    }

    // Returns how much earlier to schedule work that must not be late: twice the lateness.
    Clock::duration notice() const noexcept {
        const Clock::duration late = std::max(longest_.load(), before_.load());
        return std::clamp<Clock::duration>(std::min<Clock::duration>(late, longest_notice) * 2, shortest_notice,
                                           longest_notice);
    }

private:
    std::atomic<Clock::duration> longest_{Clock::duration::zero()};  // in this span
    std::atomic<Clock::duration> before_{Clock::duration::zero()};   // in the previous span
    Instant begun_{};  // start of this span; used by the measuring thread only
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
