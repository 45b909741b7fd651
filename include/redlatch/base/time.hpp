// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/error.hpp"

#include <chrono>
#include <cmath>
#include <compare>
#include <cstdint>
#include <limits>

// How durations of any kind become what the library works with: waits are rounded up and saturate, leases are
// rounded down and are refused when they make no sense.
namespace redlatch {
inline namespace v0_1 {

using Clock = std::chrono::steady_clock;
using Instant = Clock::time_point;
using Milliseconds = std::chrono::milliseconds;

// The deadline of a wait without end.
inline constexpr Instant never = Instant::max();

namespace detail {

// long double holds every 64-bit count exactly where it matters (x86), and elsewhere errs by less than a part in
// 2^52; it cannot overflow, which is the point.
template <class Rep, class Period>
long double exact_milliseconds(std::chrono::duration<Rep, Period> d) {
    return std::chrono::duration<long double, std::milli>(d).count();
}

}  // namespace detail

// A wait in whole milliseconds: rounded up, zero when negative or not a number, Milliseconds::max() when too long.
template <class Rep, class Period>
Milliseconds round_wait(std::chrono::duration<Rep, Period> wait) {
    const long double ms = std::ceil(detail::exact_milliseconds(wait));
    if (!(ms > 0)) return Milliseconds::zero();
    if (ms >= static_cast<long double>(Milliseconds::max().count())) return Milliseconds::max();
    return Milliseconds(static_cast<Milliseconds::rep>(ms));
}

// The instant that lies `wait` after `now`; `never` when that is beyond the clock.
template <class Rep, class Period>
Instant deadline_after(Instant now, std::chrono::duration<Rep, Period> wait) {
    const Milliseconds rounded = round_wait(wait);
    const auto room = std::chrono::duration_cast<Milliseconds>(never - now);
    return rounded >= room ? never : now + rounded;
}

// The steady-clock instant of a time point of any clock, taken once: later jumps of that clock do not count.
template <class AnyClock, class Duration>
Instant deadline_at(std::chrono::time_point<AnyClock, Duration> when) {
    using Wide = std::chrono::duration<long double, std::milli>;
    const Wide left = Wide(when.time_since_epoch()) - Wide(AnyClock::now().time_since_epoch());
    return deadline_after(Clock::now(), left);
}

// How long a hold lasts unless it is given back earlier. Rounded down to whole milliseconds.
// Throws Error(errc::invalid_argument) for what is no positive number of milliseconds, or more than 100 years.
class Lease {
public:
    template <class Rep, class Period>
    explicit Lease(std::chrono::duration<Rep, Period> length) {
        const long double ms = std::floor(detail::exact_milliseconds(length));
        if (!(ms >= 1)) throw Error(errc::invalid_argument, {}, "a lease must be at least one millisecond");
        if (ms > static_cast<long double>(longest.count()))
            throw Error(errc::invalid_argument, {}, "a lease must be at most 100 years");
        length_ = Milliseconds(static_cast<Milliseconds::rep>(ms));
    }

    // For permits that end only when they are released. A type of its own: no lock takes it, for a lock that outlives
    // its process blocks everybody.
    struct Forever {};
    static constexpr Forever forever() noexcept { return {}; }

    Milliseconds length() const noexcept { return length_; }

    friend auto operator<=>(const Lease&, const Lease&) = default;

private:
    // Far below where Redis, Lua's doubles and the nanoseconds of a steady clock overflow.
    static constexpr Milliseconds longest = std::chrono::hours(24) * 36'525;

    Milliseconds length_;
};

// The instant until which a hold is certain: counted from before the command was sent, less an allowance for a
// server clock that runs faster than ours (two parts in a thousand, twenty times what NTP slews).
inline Instant valid_until(Instant sent, Milliseconds lease) {
    return sent + lease - std::chrono::duration_cast<Clock::duration>(lease) / 500;
}

}  // namespace v0_1
}  // namespace redlatch
