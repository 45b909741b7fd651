// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <algorithm>
#include <chrono>

#include <time.h>

namespace redlatch {
inline namespace v0_1 {

#ifdef CLOCK_BOOTTIME

namespace detail {

inline Clock::duration read_clock(clockid_t clock) noexcept {
    timespec now{};
    ::clock_gettime(clock, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

}  // namespace detail

// For how long this machine has been suspended since it was started. The steady clock stands still meanwhile, but leases
// do not: by what this grows, a hold's end is nearer than its instant says. Never too much, and too little by less than
// the time between two readings of a clock. No system call where the C library can do without.
inline Clock::duration suspended() noexcept {
    Clock::duration least = Clock::duration::max();
    Clock::duration found{};
    // Whoever is held up between the readings, or suspended, reads again.
    for (int tries = 0; tries < 5 && least > std::chrono::microseconds(20); ++tries) {
        const Clock::duration before = detail::read_clock(CLOCK_MONOTONIC);
        const Clock::duration since_boot = detail::read_clock(CLOCK_BOOTTIME);
        const Clock::duration after = detail::read_clock(CLOCK_MONOTONIC);
        if (after - before >= least) continue;
        least = after - before;
        found = std::max(since_boot - after, Clock::duration::zero());
    }
    return found;
}

#else

inline Clock::duration suspended() noexcept { return {}; }

#endif

// By how much that has grown since it was `before`; what cannot be told from the time that reading takes is nothing.
inline Clock::duration suspended_since(Clock::duration before) noexcept {
    const Clock::duration grown = suspended() - before;
    return grown < Milliseconds(1) ? Clock::duration::zero() : grown;
}

// When a command was sent whose lease goes on while this machine is suspended.
class SendTime {
public:
    // As an instant of the steady clock as it is now: earlier by what the machine was suspended since.
    Instant as_of_now() const noexcept { return at_ - suspended_since(suspended_); }

private:
    Instant at_ = Clock::now();
    Clock::duration suspended_ = suspended();
};

}  // namespace v0_1
}  // namespace redlatch
