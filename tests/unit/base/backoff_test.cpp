// SPDX-License-Identifier: MIT
// Backoff: pauses between tries grow within bounds and are random.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdint>
#include <limits>
#include <set>

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;

TEST_CASE("the bound of a back-off doubles from the first to the last value") {
    Backoff least(10ms, 1000ms);
    Backoff most(10ms, 1000ms);
    for (const auto bound : {10ms, 20ms, 40ms, 80ms, 160ms, 320ms, 640ms, 1000ms, 1000ms, 1000ms}) {
        const auto half = std::chrono::duration_cast<Clock::duration>(bound) / 2;
        CHECK(least.next(0) == half);
        CHECK(most.next(static_cast<std::uint64_t>(half.count())) == bound);
    }
}

TEST_CASE("every random number gives a delay between half and all of the bound") {
    for (const std::uint64_t random : {0ULL, 1ULL, 4'999'999ULL, 5'000'000ULL, 5'000'001ULL, 123'456'789'012'345ULL,
                                       static_cast<unsigned long long>(std::numeric_limits<std::uint64_t>::max())}) {
        Backoff backoff(10ms, 1000ms);
        CAPTURE(random);
        const auto delay = backoff.next(random);
        CHECK(delay >= 5ms);
        CHECK(delay <= 10ms);
    }
}

TEST_CASE("after a reset the back-off starts again at its first bound") {
    Backoff backoff(10ms, 1000ms);
    for (int i = 0; i < 5; ++i) backoff.next();
    CHECK(backoff.next() > 100ms);
    backoff.reset();
    CHECK(backoff.next() <= 10ms);
}

TEST_CASE("clients that failed together retry at different times") {
    std::set<Clock::duration> delays;
    for (int i = 0; i < 50; ++i) delays.insert(Backoff(1000ms, 1000ms).next());
    CHECK(delays.size() > 40);
}

TEST_CASE("many failures do not overflow the bound") {
    Backoff backoff(1ms, 1h);
    for (int i = 0; i < 200; ++i) {
        const auto delay = backoff.next();
        REQUIRE(delay > 0ms);
        REQUIRE(delay <= 1h);
    }
}
