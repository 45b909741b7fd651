// SPDX-License-Identifier: MIT
// Waiting awake: where it pays, and where it must stop.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>

using namespace redlatch;
using namespace std::chrono_literals;

namespace {

// Goes on by one step each time that somebody looks at it.
struct HandSetClock {
    static Instant now() { return time += step; }
    static inline Instant time{};
    static inline std::chrono::microseconds step{1};
};

struct Bench {
    explicit Bench(std::chrono::microseconds step = 1us) { HandSetClock::step = step; }

    // How many of `replies` are waited for awake, when none of them ever comes.
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
constexpr auto not_yet = [] { return false; };

}  // namespace

TEST_CASE("a reply that comes soon is waited for awake, every time") {
    Bench bench;
    for (int reply = 0; reply < 100; ++reply) {
        int looks = 0;
        CHECK(bench.wait.reply_came(never, [&] { return ++looks == 3; }));
        CHECK(looks == 3);
    }
}

TEST_CASE("a server that is far away costs next to no waiting awake") {
    Bench bench;
    CHECK(bench.wait.until(never, at_once));
    // After the failures 0, 1, 2, 4, ... 64 and again 64 replies are not tried.
    CHECK(bench.tries_in_vain(1000) < 25);
    CHECK_FALSE(bench.wait.until(never, at_once));
}

TEST_CASE("a server that comes near again is waited for awake again") {
    Bench bench;
    bench.tries_in_vain(1000);
    int replies = 0;
    while (!bench.wait.reply_came(never, at_once)) REQUIRE(++replies <= 64);
    CHECK(bench.wait.reply_came(never, at_once));
    CHECK(bench.wait.until(never, at_once));
}

TEST_CASE("where a yield takes as long as a time slice, sleeping serves better") {
    Bench bench{3ms};
    int awake = 0;
    for (int reply = 0; reply < 1000; ++reply) awake += bench.wait.reply_came(never, at_once) ? 1 : 0;
    CHECK(awake < 25);
}

TEST_CASE("waiting awake ends at the caller's deadline, which says nothing about the server") {
    Bench bench;
    for (int reply = 0; reply < 100; ++reply) {
        bool asked = false;
        CHECK_FALSE(bench.wait.reply_came(HandSetClock::time + 10us, [&] {
            asked = true;
            return false;
        }));
        CHECK(asked);
    }
    CHECK(bench.wait.until(never, at_once));
}

TEST_CASE("a thread that waits for the reader's word gives up after a moment") {
    Bench bench;
    const Instant begun = HandSetClock::time;
    CHECK_FALSE(bench.wait.until(never, not_yet));
    CHECK(HandSetClock::time - begun >= AdaptiveSpin<>::for_the_reader);
    CHECK(HandSetClock::time - begun < 2 * AdaptiveSpin<>::for_the_reader);
}
