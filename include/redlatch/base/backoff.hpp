// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <algorithm>
#include <cstdint>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The longest pause between retries of anything that needs a server. All clients must work again within a second after
// the server is back.
inline constexpr Milliseconds longest_pause{500};

// Provides exponential back-off with jitter: each delay is drawn between half and all of a bound that doubles from
// `first` to `most`. The jitter keeps clients that failed together from returning together; it needs no good
// randomness.
class Backoff {
public:
    constexpr Backoff(Milliseconds first, Milliseconds most) : first_(first), most_(most) {}

    // `random` is any number; it selects the delay.
    Clock::duration next(std::uint64_t random) {
        bound_ = bound_ == Milliseconds::zero() ? first_ : std::min(most_, bound_ * 2);
        const auto full = std::chrono::duration_cast<Clock::duration>(bound_);
        const auto half = full / 2;
        return half + Clock::duration(static_cast<Clock::rep>(random % static_cast<std::uint64_t>(half.count() + 1)));
    }

    Clock::duration next() {
        // The low bits of the clock differ between clients, which is enough. A multiplication spreads them (Knuth's, by
        // the golden ratio).
        const auto ticks = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
        return next((ticks * 0x9e37'79b9'7f4a'7c15ULL) >> 16);
    }

    void reset() { bound_ = Milliseconds::zero(); }

private:
    Milliseconds first_;
    Milliseconds most_;
    Milliseconds bound_{0};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
