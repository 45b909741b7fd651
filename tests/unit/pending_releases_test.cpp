// SPDX-License-Identifier: MIT
// Releases that are still to be delivered.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>

using namespace redlatch;
using namespace std::chrono_literals;

namespace {

Instant at(Milliseconds t) { return Instant(1h + t); }

}  // namespace

TEST_CASE("a release is due at once, and only once") {
    PendingReleases pending;
    CHECK(pending.empty());
    CHECK(pending.look_at() == never);
    pending.add(7, 1, at(10s), at(0ms));
    CHECK(pending.has(7));
    CHECK_FALSE(pending.has(8));
    CHECK(pending.look_at() == at(0ms));
    const auto due = pending.take_due(at(0ms));
    REQUIRE(due.size() == 1);
    CHECK(due[0].owner == 7);
    CHECK(due[0].request == 1);
    CHECK(pending.take_due(at(1s)).empty());
    CHECK(pending.has(7));
    CHECK(pending.look_at() == at(10s));
}

TEST_CASE("a delivered release is forgotten, and its owner free") {
    PendingReleases pending;
    pending.add(7, 1, at(10s), at(0ms));
    pending.add(7, 2, at(10s), at(0ms));
    pending.take_due(at(0ms));
    pending.delivered(1);
    CHECK(pending.has(7));
    pending.delivered(2);
    CHECK_FALSE(pending.has(7));
    CHECK(pending.empty());
    pending.delivered(2);
    CHECK(pending.empty());
}

TEST_CASE("a release that failed is sent again, after pauses that grow to a second") {
    PendingReleases pending;
    pending.add(7, 1, at(1h), at(0ms));
    Milliseconds now = 0ms;
    for (const auto most : {50ms, 100ms, 200ms, 400ms, 800ms, 1000ms, 1000ms}) {
        REQUIRE(pending.take_due(at(now)).size() == 1);
        pending.failed(1, at(now));
        CHECK(pending.take_due(at(now)).empty());
        const Instant next = pending.look_at();
        CHECK(next >= at(now) + most / 2);
        CHECK(next <= at(now) + most);
        now += most;
    }
}

TEST_CASE("after the lease is over nothing is sent any more, and it is told") {
    PendingReleases pending;
    pending.add(7, 1, at(10s), at(0ms));
    pending.add(8, 2, at(20s), at(0ms));
    CHECK(pending.take_expired(at(9999ms)) == 0);
    CHECK(pending.take_due(at(10s)).size() == 1);
    CHECK(pending.take_expired(at(10s)) == 1);
    CHECK_FALSE(pending.has(7));
    CHECK(pending.has(8));
    // An answer that comes later finds nothing.
    pending.failed(1, at(11s));
    pending.delivered(1);
    CHECK(pending.has(8));
}

TEST_CASE("what was sent holds up its owner beyond the end of the lease, until it is answered") {
    PendingReleases pending;
    pending.add(7, 1, at(10s), at(0ms));
    pending.add(8, 2, at(10s), at(20s));
    pending.add(9, 3, at(10s), at(20s), true);
    CHECK(pending.take_due(at(0ms)).size() == 1);
    CHECK(pending.end_leases(at(9999ms)) == 0);
    CHECK(pending.end_leases(at(10s)) == 3);
    CHECK(pending.end_leases(at(11s)) == 0);
    CHECK(pending.has(7));        // on its way
    CHECK_FALSE(pending.has(8));  // never sent
    CHECK(pending.has(9));        // a copy may be on its way
    CHECK(pending.look_at() == at(20s));
    pending.failed(1, at(12s));
    CHECK(pending.look_at() < at(13s));
    REQUIRE(pending.take_due(at(13s)).size() == 1);
    pending.delivered(1);
    CHECK_FALSE(pending.has(7));
    REQUIRE(pending.take_due(at(20s)).size() == 1);
    pending.delivered(3);
    CHECK(pending.empty());
}

TEST_CASE("a failed release is looked at when it is to be sent, but not after its lease is over") {
    PendingReleases pending;
    pending.add(7, 1, at(10ms), at(0ms));
    pending.take_due(at(0ms));
    pending.failed(1, at(0ms));
    CHECK(pending.look_at() <= at(10ms));
}

TEST_CASE("each release is looked at in its own time") {
    PendingReleases pending;
    pending.add(7, 1, at(10s), at(5s));
    pending.add(8, 2, at(10s), at(3s));
    CHECK(pending.look_at() == at(3s));
    const auto due = pending.take_due(at(4s));
    REQUIRE(due.size() == 1);
    CHECK(due[0].owner == 8);
    CHECK(pending.look_at() == at(5s));
}

TEST_CASE("a release says whether a copy of it may be on its way already") {
    PendingReleases pending;
    pending.add(7, 1, at(10s), at(0ms));
    pending.add(8, 2, at(10s), at(0ms), true);
    auto due = pending.take_due(at(0ms));
    REQUIRE(due.size() == 2);
    CHECK_FALSE(due[0].again);
    CHECK(due[1].again);
    pending.failed(1, at(0ms));
    due = pending.take_due(at(1s));
    REQUIRE(due.size() == 1);
    CHECK(due[0].again);
}
