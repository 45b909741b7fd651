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

// Returns the next delay of an exponential back-off with jitter: drawn between half and all of a bound that doubles from
// `first` to `most`. `bound` is that of the last delay, zero before the first. The jitter keeps clients that failed
// together from returning together; it needs no good randomness. `random` is any number; it selects the delay.
inline Clock::duration next_delay(ShortTime& bound, ShortTime first, ShortTime most, std::uint64_t random) {
    bound = bound == ShortTime::zero() ? first : shortened(std::min(Milliseconds(most), Milliseconds(bound) * 2));
    const auto full = std::chrono::duration_cast<Clock::duration>(bound);
    const auto half = full / 2;
    return half + Clock::duration(static_cast<Clock::rep>(random % static_cast<std::uint64_t>(half.count() + 1)));
}

inline Clock::duration next_delay(ShortTime& bound, ShortTime first, ShortTime most) {
    // The low bits of the clock differ between clients, which is enough. A multiplication spreads them (Knuth's, by the
    // golden ratio).
    const auto ticks = static_cast<std::uint64_t>(Clock::now().time_since_epoch().count());
    return next_delay(bound, first, most, (ticks * 0x9e37'79b9'7f4a'7c15ULL) >> 16);
}

// The same, for one who keeps the bounds.
class Backoff {
public:
    constexpr Backoff(Milliseconds first, Milliseconds most) : first_(shortened(first)), most_(shortened(most)) {}

    Clock::duration next(std::uint64_t random) { return next_delay(bound_, first_, most_, random); }
    Clock::duration next() { return next_delay(bound_, first_, most_); }
    void reset() { bound_ = ShortTime::zero(); }

private:
    ShortTime first_;
    ShortTime most_;
    ShortTime bound_{0};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
