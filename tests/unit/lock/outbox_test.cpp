// SPDX-License-Identifier: MIT
// Releases that are still to be delivered.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>

using namespace redlatch;
using namespace std::chrono_literals;

namespace {

Instant at(Milliseconds t) { return Instant(1h + t); }

// By the server's clock.
constexpr std::int64_t settled = 0;
constexpr std::int64_t server_now = 1'000'000;

}  // namespace

TEST_CASE("a release is due at once, and only once") {
    Outbox pending;
    CHECK(pending.empty());
    CHECK(pending.look_at() == never);
    pending.add({7}, settled, at(10s), at(0ms));
    CHECK(pending.has(7));
    CHECK_FALSE(pending.has(8));
    CHECK(pending.look_at() == at(0ms));
    const auto due = pending.take_due(at(0ms));
    REQUIRE(due.size() == 1);
    CHECK(due[0].unwanted.hold == 7);
    CHECK(due[0].unwanted.heir == 0);
    CHECK(pending.take_due(at(1s)).empty());
    CHECK(pending.has(7));
    CHECK(pending.look_at() == at(10s));
}

TEST_CASE("an answered release is forgotten") {
    Outbox pending;
    pending.add({7}, settled, at(10s), at(0ms));
    pending.add({8, 9}, settled, at(10s), at(0ms));
    pending.take_due(at(0ms));
    pending.answered(7, server_now, at(1ms));
    CHECK_FALSE(pending.has(7));
    CHECK(pending.has(8));
    pending.answered(8, server_now, at(1ms));
    CHECK(pending.empty());
    pending.answered(8, server_now, at(1ms));
    CHECK(pending.empty());
}

// The acquire was sent on a connection that failed: its release may be executed before it is.
TEST_CASE("a number that a late copy may still use is released once more when the server's clock is beyond that") {
    Outbox pending;
    pending.add({7}, server_now + 3000, at(40s), at(0ms));
    REQUIRE(pending.take_due(at(0ms)).size() == 1);
    pending.answered(7, server_now, at(100ms));
    CHECK(pending.has(7));
    CHECK(pending.take_due(at(3100ms)).empty());
    CHECK(pending.look_at() > at(3100ms));
    CHECK(pending.look_at() < at(3200ms));
    REQUIRE(pending.take_due(pending.look_at()).size() == 1);

    SUBCASE("then it is over") { pending.answered(7, server_now + 3001, at(3200ms)); }
    SUBCASE("the last millisecond of it is not beyond it") {
        pending.answered(7, server_now + 3000, at(3200ms));
        CHECK(pending.has(7));
        REQUIRE(pending.take_due(at(3300ms)).size() == 1);
        pending.answered(7, server_now + 3100, at(3300ms));
    }
    CHECK(pending.empty());
}

TEST_CASE("a release that failed is sent again, after pauses that grow to a second") {
    Outbox pending;
    pending.add({7}, settled, at(1h), at(0ms));
    Milliseconds now = 0ms;
    for (const auto most : {50ms, 100ms, 200ms, 400ms, 500ms, 500ms}) {
        REQUIRE(pending.take_due(at(now)).size() == 1);
        pending.failed(7, at(now));
        CHECK(pending.take_due(at(now)).empty());
        const Instant next = pending.look_at();
        CHECK(next >= at(now) + most / 2);
        CHECK(next <= at(now) + most);
        now += most;
    }
}

TEST_CASE("what failed does not hold up what is due") {
    Outbox pending;
    pending.add({7}, settled, at(1h), at(0ms));
    pending.add({8}, settled, at(1h), at(10ms));
    REQUIRE(pending.take_due(at(0ms)).size() == 1);
    pending.failed(7, at(0ms));
    const auto due = pending.take_due(at(10ms));
    REQUIRE(due.size() == 1);
    CHECK(due[0].unwanted.hold == 8);
}

TEST_CASE("a release whose lease is over is given up, wherever it is") {
    Outbox pending;
    pending.add({7}, settled, at(1s), at(0ms));
    pending.add({8}, settled, at(1s), at(0ms));
    pending.add({9}, settled, at(5s), at(0ms));
    REQUIRE(pending.take_due(at(0ms)).size() == 3);
    pending.failed(8, at(0ms));
    CHECK(pending.take_expired(at(999ms)) == 0);
    CHECK(pending.take_expired(at(1s)) == 2);
    CHECK(pending.take_expired(at(1s)) == 0);
    CHECK(pending.has(9));
    // An answer that comes now is to nobody.
    pending.answered(7, server_now, at(1s));
    CHECK(pending.has(9));
}
