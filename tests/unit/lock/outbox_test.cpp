// SPDX-License-Identifier: MIT
// Outbox: releases that are still to be delivered.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <memory>
#include <new>
#include <system_error>
#include <utility>

using namespace redlatch;
using namespace redlatch::detail;
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
    CHECK(pending.next_deadline() == never);
    pending.add({7}, settled, at(10s), at(0ms));
    CHECK(pending.has(7));
    CHECK_FALSE(pending.has(8));
    CHECK(pending.next_deadline() == at(0ms));
    const auto due = pending.take_due(at(0ms));
    REQUIRE(due.size() == 1);
    CHECK(due[0].unwanted.hold == 7);
    CHECK(due[0].unwanted.successor == 0);
    CHECK(pending.take_due(at(1s)).empty());
    CHECK(pending.has(7));
    CHECK(pending.next_deadline() == at(10s));
}

TEST_CASE("what waits for the answer is not copied when the release is taken: that could fail half-way") {
    struct Fragile {
        Fragile() = default;
        Fragile(Fragile&&) = default;
        Fragile(const Fragile& other) : is_armed(other.is_armed) {
            if (*is_armed) throw std::bad_alloc();
        }
        void operator()(const std::error_code&) const {}
        std::shared_ptr<bool> is_armed = std::make_shared<bool>(false);
    };
    Fragile answered;
    const std::shared_ptr<bool> is_armed = answered.is_armed;
    Outbox pending;
    pending.add({7}, settled, at(10s), at(0ms), std::move(answered));
    *is_armed = true;
    CHECK(pending.take_due(at(0ms)).size() == 1);
}

TEST_CASE("an answered release is removed") {
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

TEST_CASE("a release that is wanted again is sent again, also if its first sending is answered meanwhile") {
    Outbox pending;
    CHECK_FALSE(pending.send_again(7, at(0ms)));
    pending.add({7}, server_now + 3000, at(40s), at(0ms));
    REQUIRE(pending.take_due(at(0ms)).size() == 1);
    pending.answered(7, server_now, at(100ms));
    SUBCASE("between two sendings") {
        CHECK(pending.send_again(7, at(200ms)));
        CHECK(pending.take_due(at(200ms)).size() == 1);
    }
    SUBCASE("on the way") {
        REQUIRE(pending.take_due(at(4s)).size() == 1);
        CHECK(pending.send_again(7, at(4s)));
        CHECK(pending.take_due(at(5s)).empty());
        pending.answered(7, server_now + 4000, at(5s));
        CHECK(pending.take_due(at(5s)).size() == 1);
        pending.answered(7, server_now + 4100, at(5100ms));
        CHECK(pending.empty());
    }
}

// The acquire command was sent on a connection that failed, so its release may be executed first.
TEST_CASE("a number that a late copy may still acquire is released again once the server's clock is past that time") {
    Outbox pending;
    pending.add({7}, server_now + 3000, at(40s), at(0ms));
    REQUIRE(pending.take_due(at(0ms)).size() == 1);
    pending.answered(7, server_now, at(100ms));
    CHECK(pending.has(7));
    CHECK(pending.take_due(at(3100ms)).empty());
    CHECK(pending.next_deadline() > at(3100ms));
    CHECK(pending.next_deadline() < at(3200ms));
    REQUIRE(pending.take_due(pending.next_deadline()).size() == 1);

    SUBCASE("reply after that millisecond: no further release") { pending.answered(7, server_now + 3001, at(3200ms)); }
    SUBCASE("reply in that very millisecond: one more release") {
        pending.answered(7, server_now + 3000, at(3200ms));
        CHECK(pending.has(7));
        REQUIRE(pending.take_due(at(3300ms)).size() == 1);
        pending.answered(7, server_now + 3100, at(3300ms));
    }
    CHECK(pending.empty());
}

TEST_CASE("a failed release is resent after pauses that grow to half a second") {
    Outbox pending;
    pending.add({7}, settled, at(1h), at(0ms));
    Milliseconds now = 0ms;
    for (const auto most : {50ms, 100ms, 200ms, 400ms, 500ms, 500ms}) {
        REQUIRE(pending.take_due(at(now)).size() == 1);
        pending.failed(7, at(now));
        CHECK(pending.take_due(at(now)).empty());
        const Instant next = pending.next_deadline();
        CHECK(next >= at(now) + most / 2);
        CHECK(next <= at(now) + most);
        now += most;
    }
}

TEST_CASE("a failed release does not delay another one that is due") {
    Outbox pending;
    pending.add({7}, settled, at(1h), at(0ms));
    pending.add({8}, settled, at(1h), at(10ms));
    REQUIRE(pending.take_due(at(0ms)).size() == 1);
    pending.failed(7, at(0ms));
    const auto due = pending.take_due(at(10ms));
    REQUIRE(due.size() == 1);
    CHECK(due[0].unwanted.hold == 8);
}

TEST_CASE("a release whose lease is over is dropped, in flight or not") {
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
    // A reply that comes now belongs to no release.
    pending.answered(7, server_now, at(1s));
    CHECK(pending.has(9));
}
