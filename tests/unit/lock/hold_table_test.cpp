// SPDX-License-Identifier: MIT
// The holds of one owner: levels, leases, renewal times, and loss.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;

namespace {

constexpr Milliseconds timeout = 30s;
constexpr std::optional<Milliseconds> under_watchdog = std::nullopt;

Instant at(Milliseconds t) { return Instant(1h + t); }
Instant sure_until(Milliseconds sent, Milliseconds lease) { return valid_until(at(sent), lease); }

HoldRecord& taken(HoldTable& holds, OwnerNumber owner, Milliseconds sent, std::optional<Milliseconds> lease) {
    static std::uint64_t last_id = 0;
    HoldRecord& hold = holds.start(owner, ++last_id);
    hold.enter(at(sent), lease, timeout);
    return hold;
}

}  // namespace

TEST_CASE("a hold without a lease is under the watchdog and renewed at a third of its timeout") {
    HoldTable holds;
    const HoldRecord& hold = taken(holds, 1, 0ms, under_watchdog);
    CHECK(hold.live());
    CHECK(hold.count == 1);
    CHECK(hold.watched());
    CHECK(hold.valid_until == sure_until(0ms, timeout));
    CHECK(hold.renew_at == at(10s));
    CHECK(hold.next_deadline() == at(10s));
}

TEST_CASE("a hold with a lease is never renewed, and is lost when the lease ends") {
    HoldTable holds;
    const HoldRecord& hold = taken(holds, 1, 0ms, 5s);
    CHECK_FALSE(hold.watched());
    CHECK(hold.valid_until == sure_until(0ms, 5s));
    CHECK(hold.next_deadline() == never);
    CHECK(hold.lost_at() < hold.valid_until);
    CHECK(hold.lost_at() > at(4900ms));
}

TEST_CASE("levels count up and down") {
    HoldTable holds;
    HoldRecord& hold = taken(holds, 1, 0ms, under_watchdog);
    hold.enter(at(1ms), under_watchdog, timeout);
    hold.enter(at(2ms), under_watchdog, timeout);
    CHECK(hold.count == 3);
    hold.leave();
    hold.leave();
    CHECK(hold.count == 1);
    CHECK(hold.watched());
}

TEST_CASE("a short lease inside a watched hold neither shortens it nor stops its renewal") {
    // Redisson sets the key's TTL to the inner lease and may renew too late. Its inner unlock ends the renewal.
    HoldTable holds;
    HoldRecord& hold = taken(holds, 1, 0ms, under_watchdog);
    hold.enter(at(1s), 1s, timeout);
    CHECK(hold.valid_until == sure_until(0ms, timeout));
    CHECK(hold.watched());
    hold.leave();
    CHECK(hold.watched());
    CHECK(hold.renew_at == at(10s));
}

TEST_CASE("a lease longer than the watchdog's timeout keeps the hold for the whole lease") {
    HoldTable holds;
    HoldRecord& hold = taken(holds, 1, 0ms, under_watchdog);
    hold.enter(at(1s), 1h, timeout);
    CHECK(hold.valid_until == sure_until(1s, 1h));
    hold.renewed(at(10s), timeout);
    CHECK(hold.valid_until == sure_until(1s, 1h));
}

TEST_CASE("a watched level inside a lease keeps the hold watched until it is released") {
    HoldTable holds;
    HoldRecord& hold = taken(holds, 1, 0ms, 5s);
    hold.enter(at(1s), under_watchdog, timeout);
    hold.enter(at(2s), under_watchdog, timeout);
    CHECK(hold.watched());
    CHECK(hold.renew_at == at(1s) + timeout / 3);
    hold.leave();
    CHECK(hold.watched());
    hold.leave();
    CHECK(hold.count == 1);
    CHECK_FALSE(hold.watched());
    CHECK(hold.valid_until == sure_until(2s, timeout));
    CHECK(hold.next_deadline() == never);
}

TEST_CASE("the leases of two owners are independent") {
    HoldTable holds;
    taken(holds, 1, 0ms, 5s);
    taken(holds, 2, 0ms, under_watchdog);
    CHECK_FALSE(holds.find(1)->watched());
    CHECK(holds.find(1)->valid_until == sure_until(0ms, 5s));
    CHECK(holds.find(2)->watched());
    CHECK(holds.find(3) == nullptr);
}

TEST_CASE("the validity of a renewed hold counts from when the renewal was sent") {
    HoldTable holds;
    HoldRecord& hold = taken(holds, 1, 0ms, under_watchdog);
    hold.renewing = true;
    CHECK(hold.next_deadline() == never);
    hold.renewed(at(10s), timeout);
    CHECK_FALSE(hold.renewing);
    CHECK(hold.valid_until == sure_until(10s, timeout));
    CHECK(hold.renew_at == at(20s));
}

TEST_CASE("a late reply to an old renewal shortens nothing") {
    HoldTable holds;
    HoldRecord& hold = taken(holds, 1, 10s, under_watchdog);
    hold.renewed(at(5s), timeout);
    CHECK(hold.valid_until == sure_until(10s, timeout));
}

TEST_CASE("a renewal without a reply is resent soon") {
    HoldTable holds;
    HoldRecord& hold = taken(holds, 1, 0ms, under_watchdog);
    hold.renewing = true;
    hold.renewal_failed(at(13s), timeout);
    CHECK_FALSE(hold.renewing);
    CHECK(hold.renew_at == at(13s) + timeout / 60);
    CHECK(hold.valid_until == sure_until(0ms, timeout));
    // But not in a tight loop, however short the timeout is.
    hold.renewal_failed(at(13s), 30ms);
    CHECK(hold.renew_at == at(13s) + 10ms);
}

TEST_CASE("a renewal without a reply is resent within a quarter of what is left, as of a grant's short lease") {
    HoldTable holds;
    HoldRecord& hold = taken(holds, 1, 0ms, under_watchdog);
    hold.valid_until = at(14s);
    hold.renewal_failed(at(13s), timeout);
    CHECK(hold.renew_at == at(13s) + 250ms);
    hold.renewal_failed(at(14s), timeout);
    CHECK(hold.renew_at == at(14s) + 10ms);
}

TEST_CASE("a loss is reported before the lease ends: by the notice time, but by little of a short lease") {
    HoldTable holds;
    HoldRecord& hold = taken(holds, 1, 0ms, under_watchdog);
    hold.set_notice(5ms, timeout);
    CHECK(hold.lost_at() == hold.valid_until - 5ms);
    hold.set_notice(200ms, timeout);
    CHECK(hold.lost_at() == hold.valid_until - 200ms);
    hold.set_notice(200ms, 160ms);
    CHECK(hold.lost_at() == hold.valid_until - 10ms);
}

TEST_CASE("the levels of a lost hold await their unlock") {
    HoldTable holds;
    HoldRecord& hold = taken(holds, 1, 0ms, under_watchdog);
    hold.enter(at(0ms), under_watchdog, timeout);
    hold.lose();
    CHECK_FALSE(hold.live());
    CHECK_FALSE(hold.watched());
    CHECK(hold.dead == 2);
    CHECK(holds.find(1) == &hold);
    CHECK_FALSE(holds.any_live());
}

TEST_CASE("a lock acquired again after a loss is a new hold above the lost levels") {
    HoldTable holds;
    const auto first = taken(holds, 1, 0ms, under_watchdog).id;
    holds.find(1)->lose();
    HoldRecord& again = taken(holds, 1, 5s, 2s);
    CHECK(again.id != first);
    CHECK(again.count == 1);
    CHECK(again.dead == 1);
    CHECK_FALSE(again.watched());
    CHECK(again.valid_until == sure_until(5s, 2s));
    holds.finish(again);
    REQUIRE(holds.find(1) != nullptr);
    CHECK(holds.find(1)->dead == 1);
    CHECK_FALSE(holds.any_live());
}

TEST_CASE("a released hold is removed") {
    HoldTable holds;
    taken(holds, 1, 0ms, under_watchdog);
    holds.finish(*holds.find(1));
    CHECK(holds.find(1) == nullptr);
    taken(holds, 1, 0ms, under_watchdog);
    holds.erase(1);
    CHECK(holds.find(1) == nullptr);
}

TEST_CASE("each hold has its own lost() token") {
    HoldTable holds;
    HoldRecord& first = taken(holds, 1, 0ms, under_watchdog);
    first.lost.emplace();
    const std::stop_token token = first.lost->get_token();
    first.lose();
    HoldRecord& second = taken(holds, 1, 0ms, under_watchdog);
    CHECK_FALSE(second.lost.has_value());
    CHECK_FALSE(token.stop_requested());
}

TEST_CASE("the lock is held by this process until its last live hold ends") {
    HoldTable holds;
    CHECK(holds.held_until() == Instant{});
    taken(holds, 1, 0ms, 5s);
    taken(holds, 2, 0ms, 9s);
    CHECK(holds.held_until() == sure_until(0ms, 9s));
    holds.find(2)->lose();
    CHECK(holds.held_until() == sure_until(0ms, 5s));
    holds.find(1)->lose();
    CHECK(holds.held_until() == Instant{});
}

TEST_CASE("ids of holds never repeat") {
    HoldTable holds;
    const auto a = taken(holds, 1, 0ms, 5s).id;
    const auto b = taken(holds, 2, 0ms, 5s).id;
    holds.erase(1);
    const auto c = taken(holds, 1, 0ms, 5s).id;
    CHECK(a != b);
    CHECK(b != c);
    CHECK(a != c);
}

// --- a minimum and a maximum --------------------------------------------------------------------------------------

TEST_CASE("a limited hold is renewed until it lasts to its end, and then no more") {
    HoldTable holds;
    HoldRecord& hold = holds.start(1, 1);
    hold.settings.watchdog_timeout = timeout;
    hold.enter(at(0ms), under_watchdog, timeout, {.most = 45s}, at(1ms));
    CHECK(hold.renew_at == at(10s));
    CHECK(hold.renewal_lease(at(10s)) == timeout);
    hold.renewed(at(10s), timeout);
    CHECK(hold.renew_at == at(20s));
    CHECK(hold.renewal_lease(at(20s)) == 25s);
    hold.renewed(at(20s), 25s);
    CHECK(hold.renew_at == never);
    CHECK(hold.lasts_to_its_end());
    CHECK(hold.valid_until == sure_until(20s, 25s));
    CHECK(hold.valid_until <= at(45s));
    CHECK(hold.renewal_lease(at(50s)) == 1ms);
}

TEST_CASE("a maximum below the watchdog's lease is the lease, and a minimum above it, too") {
    CHECK(HoldBounds{.most = 5s}.lease_of(std::nullopt, timeout) == 5s);
    CHECK(HoldBounds{.least = 60s}.lease_of(std::nullopt, timeout) == 60s);
    CHECK(HoldBounds{.least = 2s}.lease_of(std::nullopt, timeout) == timeout);
    CHECK(HoldBounds{.least = 2s}.lease_of(4000ms, timeout) == 4s);
    CHECK(HoldBounds{.most = 2s}.lease_of(4000ms, timeout) == 2s);
    HoldTable holds;
    HoldRecord& hold = holds.start(1, 1);
    hold.enter(at(0ms), under_watchdog, timeout, {.most = 5s}, at(1ms));
    CHECK(hold.renew_at == never);
    CHECK(hold.valid_until == sure_until(0ms, 5s));
}

TEST_CASE("a minimum counts from the reply, with an allowance for a slower clock of the server") {
    HoldTable holds;
    HoldRecord& hold = holds.start(1, 1);
    hold.enter(at(0ms), under_watchdog, timeout, {.least = 10s}, at(70ms));
    CHECK(hold.stays(at(10s + 70ms)));
    CHECK_FALSE(hold.stays(at(10s + 70ms + 20ms)));
    hold.enter(at(100ms), under_watchdog, timeout, {}, at(110ms));
    CHECK(hold.stays(at(10s + 70ms)));
    hold.enter(at(1s), under_watchdog, timeout, {.least = 10s}, at(1s));
    CHECK(hold.stays(at(11s)));
    CHECK_FALSE(holds.start(1, 2).stays(at(0ms)));
}

TEST_CASE("a nested level with a maximum brings the end of a hold nearer") {
    HoldTable holds;
    HoldRecord& hold = taken(holds, 1, 0ms, 60s);
    hold.enter(at(1s), under_watchdog, timeout, {.most = 5s}, at(1s));
    CHECK(hold.valid_until == at(6s));
    hold.leave();
    CHECK(hold.valid_until == at(6s));
    CHECK_FALSE(holds.start(1, 2).limited());
}
