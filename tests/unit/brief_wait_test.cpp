// SPDX-License-Identifier: MIT
// Waiting awake: where it pays, and where it must stop.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

using namespace redlatch;

namespace {

// How many of `replies` were waited for awake, when none of them ever comes.
int tries_in_vain(BriefWait& wait, int replies) {
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

}  // namespace

TEST_CASE("a reply that comes soon is waited for awake, every time") {
    BriefWait wait;
    for (int reply = 0; reply < 100; ++reply) {
        int looks = 0;
        CHECK(wait.reply_came(never, [&] { return ++looks == 3; }));
        CHECK(looks == 3);
    }
}

TEST_CASE("a server that is far away costs next to no waiting awake") {
    BriefWait wait;
    // 0, 0, 1, 2, 4, ... 64 are left out after each failure: nine tries in the first 136.
    CHECK(tries_in_vain(wait, 1000) < 25);
    CHECK_FALSE(wait.until(never, [] { return true; }));
}

TEST_CASE("a server that comes near again is waited for awake again") {
    BriefWait wait;
    tries_in_vain(wait, 1000);
    bool came = false;
    for (int reply = 0; reply < 65 && !came; ++reply) came = wait.reply_came(never, [] { return true; });
    CHECK(came);
    CHECK(wait.reply_came(never, [] { return true; }));
    CHECK(wait.until(never, [] { return true; }));
}

TEST_CASE("waiting awake ends at the caller's deadline, which says nothing about the server") {
    BriefWait wait;
    for (int reply = 0; reply < 100; ++reply) {
        bool asked = false;
        wait.reply_came(Clock::now(), [&] {
            asked = true;
            return false;
        });
        CHECK(asked);
    }
}

TEST_CASE("a thread that waits for the reader's word gives up after a moment") {
    const BriefWait wait;
    const Instant begun = Clock::now();
    CHECK_FALSE(wait.until(never, [] { return false; }));
    CHECK(Clock::now() - begun >= BriefWait::for_the_reader);
}
