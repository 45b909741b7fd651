// SPDX-License-Identifier: MIT
// Histogram and DurationCounter: into which range a duration falls, and what the ranges tell.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstddef>
#include <limits>

#include "support/internals.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;

namespace {

std::size_t range_of(Clock::duration duration) {
    DurationCounter counter;
    counter.add(duration);
    const Histogram histogram = counter.value();
    REQUIRE(histogram.total() == 1);
    std::size_t range = 0;
    while (histogram.counts[range] == 0) ++range;
    return range;
}

}  // namespace

TEST_CASE("a duration falls into the range that ends after it and begins at it or before") {
    CHECK(range_of(0us) == 0);
    CHECK(range_of(999ns) == 0);
    CHECK(range_of(-1s) == 0);
    CHECK(range_of(1us) == 1);
    CHECK(range_of(2us) == 2);
    CHECK(range_of(3us) == 2);
    CHECK(range_of(4us) == 3);
    for (const Clock::duration duration : {Clock::duration(7us), Clock::duration(1ms), Clock::duration(30s)}) {
        const std::size_t range = range_of(duration);
        CHECK(duration < Histogram::end_of(range));
        CHECK(duration >= Histogram::end_of(range - 1));
    }
    CHECK(range_of(std::chrono::hours(5)) == Histogram::size - 1);
    CHECK(range_of(Clock::duration::max()) == Histogram::size - 1);
    CHECK(Histogram::end_of(Histogram::size - 1) == std::chrono::microseconds::max());
}

TEST_CASE("a quantile is the end of the range that it falls into") {
    Histogram histogram;
    CHECK(histogram.quantile(0.5) == 0us);
    histogram.counts[3] = 90;
    histogram.counts[10] = 9;
    histogram.counts[20] = 1;
    CHECK(histogram.total() == 100);
    CHECK(histogram.quantile(0) == 8us);
    CHECK(histogram.quantile(0.5) == 8us);
    CHECK(histogram.quantile(0.9) == 8us);
    CHECK(histogram.quantile(0.95) == 1024us);
    CHECK(histogram.quantile(1) == std::chrono::microseconds(1 << 20));
}

TEST_CASE("the gauges are what has begun and not ended, and never negative") {
    Counters counters;
    CHECK(counters.stats(0).waiting == 0);
    {
        const CountedWait one(counters);
        const CountedWait two(counters);
        CHECK(counters.stats(0).waiting == 2);
        CHECK(counters.stats(0).waits == 2);
    }
    CHECK(counters.stats(0).waiting == 0);
    CHECK(counters.stats(0).wait_times.total() == 2);
    counters.hold_times.add(1s);
    CHECK(counters.stats(0).held == 0);
    counters.holds.add(3);
    CHECK(counters.stats(0).held == 2);
}
