// SPDX-License-Identifier: MIT
// Alarms: which ring, and when.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <vector>

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;

namespace {

const Instant noon = Instant{} + 12h;

struct Bench {
    // Returns the numbers of those that ring.
    std::vector<std::size_t> ring(Instant now) {
        std::vector<std::size_t> rung;
        alarms.ring_due(now, [&](Alarm& alarm) { rung.push_back(static_cast<std::size_t>(&alarm - all.data())); });
        return rung;
    }

    std::array<Alarm, 5> all;
    Alarms alarms;
};

using Numbers = std::vector<std::size_t>;

}  // namespace

TEST_CASE("alarms: none is set at first") {
    Bench bench;
    CHECK(bench.alarms.next() == never);
    CHECK(bench.ring(noon).empty());
    CHECK_FALSE(bench.all[0].is_set());
}

TEST_CASE("alarms: they ring in the order of their times, not before") {
    Bench bench;
    bench.alarms.set(bench.all[0], noon + 2s);
    bench.alarms.set(bench.all[1], noon);
    bench.alarms.set(bench.all[2], noon + 1s);
    CHECK(bench.alarms.next() == noon);
    CHECK(bench.ring(noon - 1ns).empty());
    CHECK(bench.ring(noon + 1s) == Numbers{1, 2});
    CHECK_FALSE(bench.all[1].is_set());
    CHECK(bench.all[0].is_set());
    CHECK(bench.alarms.next() == noon + 2s);
    CHECK(bench.ring(noon + 1h) == Numbers{0});
    CHECK(bench.alarms.next() == never);
}

TEST_CASE("alarms: of those that are close together, only those ring whose time has come") {
    Bench bench;
    for (std::size_t i = 0; i < bench.all.size(); ++i)
        bench.alarms.set(bench.all[i], noon + std::chrono::nanoseconds(100 - 10 * i));
    CHECK(bench.alarms.next() == noon + 60ns);
    CHECK(bench.ring(noon + 59ns).empty());
    CHECK(bench.ring(noon + 70ns) == Numbers{3, 4});
    CHECK(bench.alarms.next() == noon + 80ns);
    CHECK(bench.ring(noon + 1s) == Numbers{0, 1, 2});
    CHECK(bench.alarms.next() == never);
}

TEST_CASE("alarms: one that is stopped does not ring, whichever of its list it is") {
    for (std::size_t stopped = 0; stopped < 3; ++stopped) {
        CAPTURE(stopped);
        Bench bench;
        for (std::size_t i = 0; i < 3; ++i) bench.alarms.set(bench.all[i], noon + std::chrono::nanoseconds(i));
        bench.alarms.stop(bench.all[stopped]);
        CHECK_FALSE(bench.all[stopped].is_set());
        bench.alarms.set(bench.all[3], noon + 3ns);
        Numbers expected{0, 1, 2, 3};
        std::erase(expected, stopped);
        CHECK(bench.ring(noon + 1s) == expected);
        CHECK(bench.alarms.next() == never);
    }
}

TEST_CASE("alarms: when the first one is stopped, the next is found by its own time at the latest after one look") {
    Bench bench;
    bench.alarms.set(bench.all[0], noon);
    bench.alarms.set(bench.all[1], noon + 100ns);
    bench.alarms.stop(bench.all[0]);
    CHECK(bench.alarms.next() <= noon + 100ns);
    CHECK(bench.ring(noon + 99ns).empty());
    CHECK(bench.alarms.next() == noon + 100ns);
    CHECK(bench.ring(noon + 100ns) == Numbers{1});
}

TEST_CASE("alarms: one that is stopped may be set again, and the last one leaves nothing behind") {
    Bench bench;
    bench.alarms.set(bench.all[0], noon);
    bench.alarms.stop(bench.all[0]);
    CHECK(bench.alarms.next() == never);
    bench.alarms.set(bench.all[0], noon + 1s);
    CHECK(bench.ring(noon).empty());
    CHECK(bench.ring(noon + 1s) == Numbers{0});
}

TEST_CASE("alarms: instants at both ends of the clock have their places") {
    Bench bench;
    bench.alarms.set(bench.all[0], never - 1ns);
    bench.alarms.set(bench.all[1], Instant::min());
    CHECK(bench.ring(noon) == Numbers{1});
    CHECK(bench.alarms.next() == never - 1ns);
}
