// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/error.hpp"

#include <chrono>
#include <cmath>
#include <compare>
#include <cstdint>
#include <limits>

// Converts durations of any kind to those of the library. Waits are rounded up and saturate. Leases are rounded down
// and rejected if they make no sense.
namespace redlatch {
inline namespace REDLATCH_ABI {

using Clock = std::chrono::steady_clock;         // the clock of deadlines and leases
using Instant = Clock::time_point;               // a deadline
using Milliseconds = std::chrono::milliseconds;  // the unit of leases and time-outs

// Milliseconds since 1970 by the clock of a server.
using ServerMilliseconds = std::int64_t;

// The deadline of an indefinite wait.
inline constexpr Instant never = Instant::max();

namespace detail {

// long double holds every 64-bit count exactly where it matters (x86). Elsewhere it errs by less than one part in 2^52.
// It cannot overflow.
template <class Rep, class Period>
long double exact_milliseconds(std::chrono::duration<Rep, Period> d) {
    return std::chrono::duration<long double, std::milli>(d).count();
}

}  // namespace detail

// Returns a wait in whole milliseconds: rounded up, zero if negative or not a number, Milliseconds::max() if too long.
template <class Rep, class Period>
Milliseconds round_wait(std::chrono::duration<Rep, Period> wait) {
    const long double ms = std::ceil(detail::exact_milliseconds(wait));
    if (!(ms > 0)) return Milliseconds::zero();
    if (ms >= static_cast<long double>(Milliseconds::max().count())) return Milliseconds::max();
    return Milliseconds(static_cast<Milliseconds::rep>(ms));
}

// Returns the instant `wait` after `now`, or `never` if that is beyond the range of the clock.
template <class Rep, class Period>
Instant deadline_after(Instant now, std::chrono::duration<Rep, Period> wait) {
    const Milliseconds rounded = round_wait(wait);
    const auto room = std::chrono::duration_cast<Milliseconds>(never - now);
    return rounded >= room ? never : now + rounded;
}

// Returns the steady-clock instant of a time point of any clock. The clock is read once: its later jumps do not count.
template <class AnyClock, class Duration>
Instant deadline_at(std::chrono::time_point<AnyClock, Duration> when) {
    using Wide = std::chrono::duration<long double, std::milli>;
    const Wide left = Wide(when.time_since_epoch()) - Wide(AnyClock::now().time_since_epoch());
    return deadline_after(Clock::now(), left);
}

// The time for which a hold lasts unless it is released earlier. Rounded down to whole milliseconds. Throws
// Error(errc::invalid_argument) if it is below one millisecond, not a number, or above 100 years.
class Lease {
public:
    // Makes a lease of this length.
    template <class Rep, class Period>
    explicit Lease(std::chrono::duration<Rep, Period> length) {
        const long double ms = std::floor(detail::exact_milliseconds(length));
        if (!(ms >= 1)) throw Error(errc::invalid_argument, {}, "the lease must be at least 1 ms");
        if (ms > static_cast<long double>(longest.count()))
            throw Error(errc::invalid_argument, {}, "the lease must be at most 100 years");
        length_ = Milliseconds(static_cast<Milliseconds::rep>(ms));
    }

    // For permits that end only when they are released. It is a separate type that no lock accepts, because a lock that
    // outlives its process would block all others.
    struct Forever {};

    // Returns what stands for a lease without an end: acquire(Lease::forever()) of a PermitExpirableSemaphore.
    static constexpr Forever forever() noexcept { return {}; }

    // Returns the length in whole milliseconds.
    Milliseconds length() const noexcept { return length_; }

    // Compares the lengths.
    friend auto operator<=>(const Lease&, const Lease&) = default;

private:
    // Far below the range of Redis, Lua's doubles and the nanoseconds of a steady clock.
    static constexpr Milliseconds longest = std::chrono::hours(24) * 36'525;

    Milliseconds length_;
};

// Returns the instant until which a hold is certain. It counts from before the command was sent and subtracts an
// allowance for a server clock that runs faster than ours (two parts in a thousand, twenty times what NTP slews).
inline Instant valid_until(Instant sent, Milliseconds lease) {
    return sent + lease - std::chrono::duration_cast<Clock::duration>(lease) / 500;
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
