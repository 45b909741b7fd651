// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/error.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <compare>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>

// Converts durations of any kind to those of the library. Waits are rounded up and saturate. Leases are rounded down
// and rejected if they make no sense.
namespace redlatch {
inline namespace REDLATCH_ABI {

using Clock = std::chrono::steady_clock;         // the clock of deadlines and leases
using Instant = Clock::time_point;               // a deadline
using Milliseconds = std::chrono::milliseconds;  // the unit of leases and time-outs

// Milliseconds since 1970 by the clock of a server.
using ServerMilliseconds = std::int64_t;

namespace detail {

// Returns true if this may be a time or a lease in ms that somebody else reports: at least 0, and below 278 years. Both
// such a time and an instant of this process plus such a lease are within the range of the clock.
constexpr bool is_plausible(std::int64_t ms) noexcept { return ms >= 0 && ms < std::int64_t{1} << 43; }

}  // namespace detail

// The deadline of an indefinite wait.
inline constexpr Instant never = Instant::max();

namespace detail {

// A time of at most 49 days, in half the room: a waiting coroutine has several.
using ShortTime = std::chrono::duration<std::uint32_t, std::milli>;

// Returns the time, or the longest one that fits.
constexpr ShortTime shortened(Milliseconds time) noexcept {
    return ShortTime(static_cast<std::uint32_t>(std::min(time, Milliseconds(ShortTime::max())).count()));
}

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
    explicit Lease(std::chrono::duration<Rep, Period> length)
        : length_(checked(std::floor(detail::exact_milliseconds(length)), "lease")) {}

    // For permits that end only when they are released. It is a separate type that no lock accepts, because a lock that
    // outlives its process would block all others.
    struct Forever {};

    // Returns what stands for a lease without an end: acquire(Lease::forever()) of a PermitExpirableSemaphore.
    static constexpr Forever forever() noexcept { return {}; }

    // How long a hold lasts at least and at most: made by at_least() and at_most(). It stands where a Lease may stand. It
    // is a separate type, which only locks accept.
    class Bounds {
    public:
        // Returns the lease of the hold; nothing if the watchdog renews it.
        std::optional<Milliseconds> lease() const noexcept { return lease_; }
        // Returns how long the hold lasts at least; zero if there is no minimum.
        Milliseconds least() const noexcept { return least_; }
        // Returns how long the hold lasts at most; Milliseconds::max() if there is no maximum.
        Milliseconds most() const noexcept { return most_; }

    private:
        friend class Lease;
        std::optional<Milliseconds> lease_{};
        Milliseconds least_{0};
        Milliseconds most_ = Milliseconds::max();
    };

    // The lock is given back no earlier than `time` after the acquire, by the server's clock, for work that must not run
    // again too soon. Until then the watchdog renews the hold, or it has the lease of `otherwise`. An unlock() before that
    // ends the hold of its owner, which is no longer renewed; on the server the lock stays taken for the rest of the
    // time, under an owner number that nobody has. A process that dies leaves it no shorter. force_unlock() ends it
    // at once. A level of a hold that exists counts from its own acquire.
    //
    // Rounded up to whole milliseconds. Throws Error(errc::invalid_argument) if it is below one millisecond, not a
    // number, above 49 days, or longer than the lease or the maximum of `otherwise`. A MultiLock or a RedLock throws
    // Error(errc::unsupported).
    //   orders.lock(Lease::at_least(30s));              // renewed by the watchdog
    //   orders.lock(Lease::at_least(30s, Lease{60s}));  // ends by itself after 60 s
    template <class Rep, class Period>
    static Bounds at_least(std::chrono::duration<Rep, Period> time) {
        return at_least(time, Bounds());
    }
    template <class Rep, class Period>
    static Bounds at_least(std::chrono::duration<Rep, Period> time, Lease otherwise) {
        Bounds bounds;
        bounds.lease_ = otherwise.length();
        return at_least(time, bounds);
    }
    template <class Rep, class Period>
    static Bounds at_least(std::chrono::duration<Rep, Period> time, Bounds otherwise) {
        otherwise.least_ =
            checked(std::ceil(detail::exact_milliseconds(time)), "minimum hold", longest_bound, "49 days");
        if (otherwise.least_ > otherwise.most_ || (otherwise.lease_ && otherwise.least_ > *otherwise.lease_))
            throw Error(errc::invalid_argument, {}, "the minimum hold must not exceed the lease or the maximum hold");
        return otherwise;
    }

    // The hold ends `time` after the acquire at the latest, for work that must not go on for ever. The watchdog stops
    // renewing it in time, and lost() is requested before the end. If the hold is not unlocked by then, it is lost, and the
    // event hold_lost reports it. A level of a hold that exists can only bring the end of the whole hold nearer, even after
    // that level was released.
    //
    // Rounded down to whole milliseconds. Throws Error(errc::invalid_argument) if it is below one millisecond, not a
    // number, or above 49 days. A MultiLock or a RedLock throws Error(errc::unsupported).
    template <class Rep, class Period>
    static Bounds at_most(std::chrono::duration<Rep, Period> time) {
        Bounds bounds;
        bounds.most_ = checked(std::floor(detail::exact_milliseconds(time)), "maximum hold", longest_bound, "49 days");
        return bounds;
    }

    // Returns the length in whole milliseconds.
    Milliseconds length() const noexcept { return length_; }

    // Compares the lengths.
    friend auto operator<=>(const Lease&, const Lease&) = default;

private:
    // Far below the range of Redis, Lua's doubles and the nanoseconds of a steady clock.
    static constexpr Milliseconds longest = std::chrono::hours(24) * 36'525;

    // What fits into 32 bits.
    static constexpr Milliseconds longest_bound = std::chrono::hours(24) * 49;

    static Milliseconds checked(long double ms, const char* what, Milliseconds most = longest,
                                const char* most_text = "100 years") {
        using namespace std::string_literals;
        if (!(ms >= 1)) throw Error(errc::invalid_argument, {}, "the "s + what + " must be at least 1 ms");
        if (ms > static_cast<long double>(most.count()))
            throw Error(errc::invalid_argument, {}, "the "s + what + " must be at most " + most_text);
        return Milliseconds(static_cast<Milliseconds::rep>(ms));
    }

    Milliseconds length_;
};

// Returns the instant until which a hold is certain. It counts from before the command was sent and subtracts an
// allowance for a server clock that runs faster than ours (two parts in a thousand, twenty times what NTP slews).
inline Instant valid_until(Instant sent, Milliseconds lease) {
    return sent + lease - std::chrono::duration_cast<Clock::duration>(lease) / 500;
}

namespace detail {

// Returns how long to wait before a renewal without a reply is sent again: a lost message costs only a fraction of the lease,
// and at most a quarter of what is left of it. The lease of a grant is short at first.
inline Milliseconds renewal_pause(Milliseconds lease, Clock::duration left = Clock::duration::max()) {
    return std::max(Milliseconds(10), std::min(lease / 60, std::chrono::floor<Milliseconds>(left) / 4));
}

}  // namespace detail

}  // namespace REDLATCH_ABI
}  // namespace redlatch
