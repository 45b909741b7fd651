// SPDX-License-Identifier: MIT
// How durations and time points of any type become waits, deadlines and leases.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdint>
#include <limits>
#include <ratio>

using namespace redlatch;
using namespace std::chrono_literals;

namespace {

using Seconds = std::chrono::duration<double>;
using Minutes8 = std::chrono::duration<std::int8_t, std::ratio<60>>;
using Millennia = std::chrono::duration<std::int64_t, std::ratio<31'556'952'000>>;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

template <class Duration>
bool is_refused(Duration length) {
    try {
        static_cast<void>(Lease(length));
        return false;
    } catch (const Error& e) {
        return e.code() == errc::invalid_argument;
    }
}

Instant at(Milliseconds since_epoch) { return Instant(since_epoch); }

}  // namespace

TEST_CASE("a wait is rounded up to the next millisecond") {
    CHECK(round_wait(0ms) == 0ms);
    CHECK(round_wait(1ns) == 1ms);
    CHECK(round_wait(999'999ns) == 1ms);
    CHECK(round_wait(1ms) == 1ms);
    CHECK(round_wait(1'000'001ns) == 2ms);
    CHECK(round_wait(1500us) == 2ms);
    CHECK(round_wait(2s) == 2000ms);
    CHECK(round_wait(Seconds(0.0101)) == 11ms);
    CHECK(round_wait(std::chrono::duration<float>(0.25F)) == 250ms);
    CHECK(round_wait(std::chrono::duration<int, std::ratio<1, 3>>(1)) == 334ms);
    CHECK(round_wait(Minutes8(127)) == 127min);
}

TEST_CASE("the rounding of a wait is exact at the limits of the representation") {
    CHECK(round_wait(std::chrono::nanoseconds::max()) == 9'223'372'036'855ms);
    CHECK(round_wait(std::chrono::nanoseconds(9'223'372'036'854'000'000)) == 9'223'372'036'854ms);
    CHECK(round_wait(std::chrono::nanoseconds(9'223'372'036'854'000'001)) == 9'223'372'036'855ms);
    CHECK(round_wait(std::chrono::microseconds::max()) == 9'223'372'036'854'776ms);
    CHECK(round_wait(Milliseconds(Milliseconds::max().count() - 1)).count() >= Milliseconds::max().count() - 1);
}

TEST_CASE("a wait of zero, of a negative time, or of NaN is one try") {
    CHECK(round_wait(-1ns) == 0ms);
    CHECK(round_wait(-1h) == 0ms);
    CHECK(round_wait(std::chrono::hours::min()) == 0ms);
    CHECK(round_wait(Milliseconds::min()) == 0ms);
    CHECK(round_wait(std::chrono::nanoseconds::min()) == 0ms);
    CHECK(round_wait(Seconds(not_a_number)) == 0ms);
    CHECK(round_wait(Seconds(-infinity)) == 0ms);
    CHECK(round_wait(Seconds(-0.0)) == 0ms);
}

TEST_CASE("a wait beyond the range of the clock saturates") {
    CHECK(round_wait(Milliseconds::max()) == Milliseconds::max());
    CHECK(round_wait(std::chrono::seconds::max()) == Milliseconds::max());
    CHECK(round_wait(std::chrono::hours::max()) == Milliseconds::max());
    CHECK(round_wait(Millennia::max()) == Milliseconds::max());
    CHECK(round_wait(Seconds(infinity)) == Milliseconds::max());
    CHECK(round_wait(Seconds(1e300)) == Milliseconds::max());
}

TEST_CASE("a deadline is `now` plus the wait, and `never` beyond the range of the clock") {
    const Instant now = Clock::now();
    CHECK(deadline_after(now, 0ms) == now);
    CHECK(deadline_after(now, -5s) == now);
    CHECK(deadline_after(now, Seconds(not_a_number)) == now);
    CHECK(deadline_after(now, 5s) == now + 5s);
    CHECK(deadline_after(now, 1ns) == now + 1ms);
    CHECK(deadline_after(now, Milliseconds::max()) == never);
    CHECK(deadline_after(now, std::chrono::hours::max()) == never);
    CHECK(deadline_after(now, std::chrono::nanoseconds::max()) == never);
    CHECK(deadline_after(now, Seconds(infinity)) == never);
    CHECK(deadline_after(now, 24h * 365 * 200) == now + 24h * 365 * 200);
    CHECK(deadline_after(never, 1ms) == never);
    CHECK(deadline_after(never, 0ms) == never);
    CHECK(deadline_after(Instant{}, std::chrono::nanoseconds::max()) == never);
    CHECK(deadline_after(Instant{}, std::chrono::nanoseconds::max() - 2ms) < never);
}

TEST_CASE("a time point of any clock becomes an instant of the steady clock") {
    const Instant before = Clock::now();
    const Instant in_a_minute = deadline_at(std::chrono::system_clock::now() + 1min);
    const Instant after = Clock::now();
    // Allow a millisecond for the rounding, and some seconds for a busy machine between the readings.
    CHECK(in_a_minute >= before + 1min - 10s);
    CHECK(in_a_minute <= after + 1min + 10s);

    const Instant own = Clock::now() + 1h;
    CHECK(deadline_at(own) >= own - 1ms);
    CHECK(deadline_at(own) <= own + 1s);
}

TEST_CASE("a time point in the past is one try, and the last time point is never") {
    const auto is_over = [](auto when) {
        const Instant deadline = deadline_at(when);
        return deadline <= Clock::now();
    };
    using System = std::chrono::system_clock;
    CHECK(is_over(System::now() - 1h));
    CHECK(is_over(System::time_point::min()));
    CHECK(is_over(System::time_point{}));
    CHECK(is_over(std::chrono::time_point<System, std::chrono::hours>::min()));
    CHECK(is_over(Clock::time_point::min()));
    CHECK(is_over(Clock::time_point{}));

    CHECK(deadline_at(Clock::time_point::max()) == never);
    CHECK(deadline_at(std::chrono::time_point<System, std::chrono::hours>::max()) == never);
    CHECK(deadline_at(std::chrono::time_point<System, Seconds>(Seconds(infinity))) == never);
    // The epoch of system_clock is long ago, so its last time point is some centuries away, not never.
    CHECK(deadline_at(System::time_point::max()) > Clock::now() + 24h * 365 * 100);
}

TEST_CASE("a lease is rounded down to whole milliseconds") {
    CHECK(Lease(1ms).length() == 1ms);
    CHECK(Lease(1'999'999ns).length() == 1ms);
    CHECK(Lease(30s).length() == 30'000ms);
    CHECK(Lease(Seconds(0.5009)).length() == 500ms);
    CHECK(Lease(24h * 36'525).length() == 24h * 36'525);
    CHECK(Lease(1ms) == Lease(1'500us));
    CHECK(Lease(1ms) < Lease(2ms));
}

TEST_CASE("a lease below one millisecond, or one that is NaN, is refused") {
    CHECK(is_refused(0ms));
    CHECK(is_refused(-1ms));
    CHECK(is_refused(1us));
    CHECK(is_refused(999'999ns));
    CHECK(is_refused(std::chrono::nanoseconds::min()));
    CHECK(is_refused(std::chrono::hours::min()));
    CHECK(is_refused(Seconds(not_a_number)));
    CHECK(is_refused(Seconds(-infinity)));
    CHECK(is_refused(Seconds(0.0009)));
}

TEST_CASE("a lease above a century is refused, so that nothing overflows") {
    CHECK(is_refused(24h * 36'525 + 1ms));
    CHECK(is_refused(std::chrono::hours::max()));
    CHECK(is_refused(std::chrono::nanoseconds::max()));
    CHECK(is_refused(std::chrono::microseconds::max()));
    CHECK(is_refused(Milliseconds::max()));
    CHECK(is_refused(Millennia::max()));
    CHECK(is_refused(Seconds(infinity)));
    CHECK(is_refused(Seconds(1e18)));
}

TEST_CASE("a hold is valid a little shorter than its lease, counted from before the command was sent") {
    CHECK(valid_until(at(1000ms), 1000ms) == at(1998ms));
    CHECK(valid_until(at(0ms), 30s) == at(29'940ms));
    CHECK(valid_until(at(5ms), 1ms) == at(5ms) + 998us);
    CHECK(valid_until(at(0ms), 24h * 36'525) < at(24h * 36'525));
    CHECK(valid_until(Clock::now(), 24h * 36'525) > Clock::now() + 24h * 36'000);
}

TEST_CASE("bounds of a hold: a minimum is rounded up, a maximum down, and both must make sense") {
    CHECK(Lease::at_least(1ms).least() == 1ms);
    CHECK(Lease::at_least(1'000'001ns).least() == 2ms);
    CHECK(Lease::at_least(30s).most() == Milliseconds::max());
    CHECK_FALSE(Lease::at_least(30s).lease());
    CHECK(Lease::at_least(30s, Lease{1min}).lease() == Milliseconds(60'000));
    CHECK(Lease::at_most(1'999'999ns).most() == 1ms);
    CHECK(Lease::at_most(1h).least() == 0ms);
    const Lease::Bounds both = Lease::at_least(30s, Lease::at_most(30s));
    CHECK(both.least() == both.most());
    for (const auto wrong : {0ms, -1ms}) {
        CHECK_THROWS_AS(Lease::at_least(wrong), const Error&);
        CHECK_THROWS_AS(Lease::at_most(wrong), const Error&);
    }
    CHECK_THROWS_AS(Lease::at_most(999us), const Error&);
    CHECK_THROWS_AS(Lease::at_least(24h * 40'000), const Error&);
    CHECK_THROWS_AS(Lease::at_least(31s, Lease{30s}), const Error&);
    CHECK_THROWS_AS(Lease::at_least(31s, Lease::at_most(30s)), const Error&);
    CHECK_THROWS_AS(Lease::at_least(std::chrono::duration<double>(std::nan(""))), const Error&);
}
