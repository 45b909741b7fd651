// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <algorithm>
#include <chrono>

#include <time.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

#ifdef CLOCK_BOOTTIME

inline Clock::duration read_clock(clockid_t clock) noexcept {
    timespec now{};
    ::clock_gettime(clock, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

// Returns how long this machine has been suspended since boot. The steady clock stops during suspension, but leases do
// not. So an increase brings the end of a hold closer than its instant says. The result is never too large, and too
// small by less than the time between two readings of a clock. Makes no system call where the C library can avoid it.
// `begun`: set to an instant before that.
inline Clock::duration suspended(Instant& begun) noexcept {
    Clock::duration least = Clock::duration::max();
    Clock::duration found{};
    // A thread that was delayed or suspended between the readings reads again.
    for (int tries = 0; tries < 5 && least > std::chrono::microseconds(20); ++tries) {
        const Clock::duration before = detail::read_clock(CLOCK_MONOTONIC);
        const Clock::duration since_boot = detail::read_clock(CLOCK_BOOTTIME);
        const Clock::duration after = detail::read_clock(CLOCK_MONOTONIC);
        if (tries == 0) begun = Instant(before);
        if (after - before >= least) continue;
        least = after - before;
        found = std::max(since_boot - after, Clock::duration::zero());
    }
    return found;
}

// Returns true if the machine was certainly not suspended for a millisecond since suspended() returned `before`: in this
// order of the readings, their difference is never too small.
inline bool was_running_since(Clock::duration before) noexcept {
    const Clock::duration steady = detail::read_clock(CLOCK_MONOTONIC);
    return detail::read_clock(CLOCK_BOOTTIME) - steady - before < Milliseconds(1);
}

// How often a thread that sleeps until an instant has to look whether the machine was suspended: nothing wakes it then.
inline constexpr Clock::duration suspension_check = std::chrono::seconds(1);

#else

inline Clock::duration suspended(Instant& begun) noexcept {
    begun = Clock::now();
    return {};
}

inline bool was_running_since(Clock::duration) noexcept { return true; }

inline constexpr Clock::duration suspension_check = Clock::duration::max();

#endif

inline Clock::duration suspended() noexcept {
    Instant begun;
    return suspended(begun);
}

// Returns the increase since suspended() returned `before`. An increase below 1 ms counts as zero, because the readings
// cannot resolve it.
inline Clock::duration suspended_since(Clock::duration before) noexcept {
    if (was_running_since(before)) return Clock::duration::zero();
    const Clock::duration grown = suspended() - before;
    return grown < Milliseconds(1) ? Clock::duration::zero() : grown;
}

// Records when a command was sent, for what goes on while this machine is suspended: a lease, and the server's clock.
class SendTime {
public:
    SendTime() noexcept : suspended_(detail::suspended(at_)) {}
    // A command that was sent at an earlier instant. The machine was not suspended since.
    explicit SendTime(Instant at) noexcept : at_(at), suspended_(detail::suspended()) {}

    // Returns the send time on the steady clock as it was then.
    Instant at() const noexcept { return at_; }
    // Returns how long the machine had been suspended by then.
    Clock::duration suspended() const noexcept { return suspended_; }
    // Returns the send time on the steady clock as it is now: earlier by the time suspended since then.
    Instant as_of_now() const noexcept { return at_ - suspended_since(suspended_); }

private:
    Instant at_;
    Clock::duration suspended_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
