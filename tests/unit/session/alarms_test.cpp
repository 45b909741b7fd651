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

struct Fixture {
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
    Fixture fixture;
    CHECK(fixture.alarms.next() == never);
    CHECK(fixture.ring(noon).empty());
    CHECK_FALSE(fixture.all[0].is_set());
}

TEST_CASE("alarms: they ring in the order of their times, not before") {
    Fixture fixture;
    fixture.alarms.set(fixture.all[0], noon + 2s);
    fixture.alarms.set(fixture.all[1], noon);
    fixture.alarms.set(fixture.all[2], noon + 1s);
    CHECK(fixture.alarms.next() == noon);
    CHECK(fixture.ring(noon - 1ns).empty());
    CHECK(fixture.ring(noon + 1s) == Numbers{1, 2});
    CHECK_FALSE(fixture.all[1].is_set());
    CHECK(fixture.all[0].is_set());
    CHECK(fixture.alarms.next() == noon + 2s);
    CHECK(fixture.ring(noon + 1h) == Numbers{0});
    CHECK(fixture.alarms.next() == never);
}

TEST_CASE("alarms: of those that are close together, only those ring whose time has come") {
    Fixture fixture;
    for (std::size_t i = 0; i < fixture.all.size(); ++i)
        fixture.alarms.set(fixture.all[i], noon + std::chrono::nanoseconds(100 - 10 * i));
    CHECK(fixture.alarms.next() == noon + 60ns);
    CHECK(fixture.ring(noon + 59ns).empty());
    CHECK(fixture.ring(noon + 70ns) == Numbers{3, 4});
    CHECK(fixture.alarms.next() == noon + 80ns);
    CHECK(fixture.ring(noon + 1s) == Numbers{0, 1, 2});
    CHECK(fixture.alarms.next() == never);
}

TEST_CASE("alarms: one that is stopped does not ring, whichever of its list it is") {
    for (std::size_t stopped = 0; stopped < 3; ++stopped) {
        CAPTURE(stopped);
        Fixture fixture;
        for (std::size_t i = 0; i < 3; ++i) fixture.alarms.set(fixture.all[i], noon + std::chrono::nanoseconds(i));
        fixture.alarms.stop(fixture.all[stopped]);
        CHECK_FALSE(fixture.all[stopped].is_set());
        fixture.alarms.set(fixture.all[3], noon + 3ns);
        Numbers expected{0, 1, 2, 3};
        std::erase(expected, stopped);
        CHECK(fixture.ring(noon + 1s) == expected);
        CHECK(fixture.alarms.next() == never);
    }
}

TEST_CASE("alarms: when the first one is stopped, the next is found by its own time at the latest after one look") {
    Fixture fixture;
    fixture.alarms.set(fixture.all[0], noon);
    fixture.alarms.set(fixture.all[1], noon + 100ns);
    fixture.alarms.stop(fixture.all[0]);
    CHECK(fixture.alarms.next() <= noon + 100ns);
    CHECK(fixture.ring(noon + 99ns).empty());
    CHECK(fixture.alarms.next() == noon + 100ns);
    CHECK(fixture.ring(noon + 100ns) == Numbers{1});
}

TEST_CASE("alarms: one that is stopped may be set again, and the last one leaves nothing behind") {
    Fixture fixture;
    fixture.alarms.set(fixture.all[0], noon);
    fixture.alarms.stop(fixture.all[0]);
    CHECK(fixture.alarms.next() == never);
    fixture.alarms.set(fixture.all[0], noon + 1s);
    CHECK(fixture.ring(noon).empty());
    CHECK(fixture.ring(noon + 1s) == Numbers{0});
}

TEST_CASE("alarms: instants at both ends of the clock have their places") {
    Fixture fixture;
    fixture.alarms.set(fixture.all[0], never - 1ns);
    fixture.alarms.set(fixture.all[1], Instant::min());
    CHECK(fixture.ring(noon) == Numbers{1});
    CHECK(fixture.alarms.next() == never - 1ns);
}
