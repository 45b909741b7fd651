// SPDX-License-Identifier: MIT
// AdaptiveSpin: when it pays to spin for a reply, and when spinning must stop.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;

namespace {

// Advances by one step at each reading.
struct HandSetClock {
    static Instant now() { return time += step; }
    static inline Instant time{};
    static inline std::chrono::microseconds step{1};
};

struct Fixture {
    explicit Fixture(std::chrono::microseconds step = 1us) { HandSetClock::step = step; }

    // Returns for how many of `replies` it spins, if none of them ever comes.
    int tries_in_vain(int replies) {
        int tried = 0;
        for (int i = 0; i < replies; ++i) {
            bool asked = false;
            const bool came = wait.reply_came(never, [&] {
                asked = true;
                return false;
            });
            CHECK_FALSE(came);
            tried += asked ? 1 : 0;
        }
        return tried;
    }

    AdaptiveSpin<HandSetClock> wait;
};

constexpr auto at_once = [] { return true; };

}  // namespace

TEST_CASE("replies that come soon: each one is awaited by spinning") {
    Fixture fixture;
    for (int reply = 0; reply < 100; ++reply) {
        int looks = 0;
        CHECK(fixture.wait.reply_came(never, [&] { return ++looks == 3; }));
        CHECK(looks == 3);
    }
}

TEST_CASE("distant server: spinning almost stops") {
    Fixture fixture;
    // After the failures it skips 0, 1, 2, 4, ... 64 and again 64 replies.
    CHECK(fixture.tries_in_vain(1000) < 25);
}

TEST_CASE("distant server becomes fast again: spinning resumes") {
    Fixture fixture;
    fixture.tries_in_vain(1000);
    int replies = 0;
    while (!fixture.wait.reply_came(never, at_once)) REQUIRE(++replies <= 64);
    CHECK(fixture.wait.reply_came(never, at_once));
}

TEST_CASE("a yield that takes a whole time slice: spinning almost stops, the thread sleeps instead") {
    Fixture fixture{3ms};
    int awake = 0;
    for (int reply = 0; reply < 1000; ++reply) awake += fixture.wait.reply_came(never, at_once) ? 1 : 0;
    CHECK(awake < 25);
}

TEST_CASE("spinning ends at the caller's deadline, which does not count as a failure of the server") {
    Fixture fixture;
    for (int reply = 0; reply < 100; ++reply) {
        bool asked = false;
        CHECK_FALSE(fixture.wait.reply_came(HandSetClock::time + 10us, [&] {
            asked = true;
            return false;
        }));
        CHECK(asked);
    }
}
