// SPDX-License-Identifier: MIT
// Permits: valid_until() and lost(), the token that is requested when an object loses a permit.
// ctest: in_memory
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"

#include "support/any_server.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

const std::string leases = "{seats}:timeout";

// A lease that no machine lets run out by standing still for a moment.
constexpr std::chrono::milliseconds long_lease{60s};

struct Fixture {
    explicit Fixture(std::ptrdiff_t permits, ClientOptions options = {})
        : client(server.url(), in(std::move(options))) {
        seats.try_set_permits(permits);
    }

    ClientOptions in(ClientOptions options) {
        options.on_event = log.handler();
        return options;
    }

    // Another program, which may be Redisson, removes the permit.
    void remove(const PermitId& id) { CHECK(redis.integer("ZREM", leases, id.bytes()) == 1); }

    // Another client releases the permit.
    void release_elsewhere(const PermitId& id) {
        Client other{server.url()};
        PermitExpirableSemaphore theirs{other, "seats"};
        theirs.release(id);
    }

    bool all_are_back(std::ptrdiff_t permits) {
        return eventually([&] { return seats.available_permits() == permits; }, 20s);
    }

    RedisServer server{};
    RawRedis redis{server};
    EventLog log;
    Client client;
    PermitExpirableSemaphore seats{client, "seats"};
};

bool is_requested(const std::stop_token& token) {
    return eventually([&] { return token.stop_requested(); }, 20s);
}

// Returns true if none of the tokens is requested for a while.
bool stay_quiet(const std::vector<std::stop_token>& tokens) {
    return !eventually(
        [&] {
            return std::any_of(tokens.begin(), tokens.end(), [](const auto& token) { return token.stop_requested(); });
        },
        300ms);
}

}  // namespace

TEST_CASE("permits: lost() is requested when the server no longer has one, other objects notice nothing") {
    Fixture fixture(5, with_watchdog(steady_lease));
    Permits held = fixture.seats.hold(3);
    const Permits other = fixture.seats.hold(1);
    const std::stop_token lost = held.lost();
    const std::stop_token other_lost = other.lost();
    CHECK(held.valid_until() > Clock::now());
    CHECK_FALSE(lost.stop_requested());
    SUBCASE("another client has released it") { fixture.release_elsewhere(held.ids().at(1)); }
    SUBCASE("another program has removed it") {
        fixture.remove(held.ids().at(1));
        fixture.redis.call("INCRBY", "seats", 1);
    }
    CHECK(is_requested(lost));
    CHECK(held.lost().stop_requested());
    CHECK(held.valid_until() == Instant::min());
    CHECK(held);
    CHECK_FALSE(other_lost.stop_requested());
    CHECK(other.valid_until() > Clock::now());
    CHECK(eventually([&] { return fixture.log.count(Event::Kind::hold_lost) == 1; }));
    CHECK(fixture.log.all().at(0).detail.find(held.ids().at(1).text()) != std::string::npos);
    CHECK(fixture.client.stats().lost_holds == 1);
    CHECK(fixture.seats.available_permits() == 2);
    CHECK(held.release() == errc::unknown_permit);
    CHECK(fixture.all_are_back(4));
}

TEST_CASE("permits: those that are left of an object come back at once, by release() and by the destructor") {
    Fixture fixture(3);
    for (const bool by_release : {true, false}) {
        CAPTURE(by_release);
        Permits held = fixture.seats.hold(3, Lease::forever());
        fixture.release_elsewhere(held.ids().at(0));
        // A release of all three is refused.
        if (by_release) CHECK(held.release() == errc::unknown_permit);
        held = Permits();
        CHECK(fixture.all_are_back(3));
    }
}

TEST_CASE("permits: while the watchdog renews them, valid_until() moves on and lost() stays quiet") {
    Fixture fixture(2, with_watchdog(steady_lease));
    const Permits held = fixture.seats.hold(2);
    const std::stop_token lost = held.lost();
    const auto first = held.valid_until();
    CHECK(first <= Clock::now() + steady_lease);
    CHECK(eventually([&] { return held.valid_until() > first + steady_lease; }, 60s));
    CHECK_FALSE(lost.stop_requested());
    CHECK(lost.stop_possible());
}

TEST_CASE("permits: the end of a lease requests lost() by valid_until(), before another client gets the permits") {
    // The best of some rounds, because a thread may run late on a busy machine.
    CHECK(succeeds_once([&] {
        Fixture fixture(2);
        Client other{fixture.server.url()};
        PermitExpirableSemaphore theirs{other, "seats"};
        Permits held = fixture.seats.async_acquire(2, Lease{500ms}).future().get();
        const auto until = held.valid_until();
        CHECK(until <= Clock::now() + 500ms);
        std::promise<Instant> told;
        std::future<Instant> when = told.get_future();
        const std::stop_callback on_lost{held.lost(), [&] { told.set_value(Clock::now()); }};
        const auto next = theirs.acquire(2, Lease{long_lease});
        const bool before_the_next = held.lost().stop_requested();
        REQUIRE(ready(when));
        const Instant at = when.get();
        CHECK(held.valid_until() == Instant::min());
        CHECK(held.release() == errc::unknown_permit);
        CHECK(theirs.try_release(next));
        return before_the_next && at <= until && at >= until - 100ms;
    }));
}

TEST_CASE("permits: a split object reports its own losses only") {
    Fixture fixture(4, with_watchdog(steady_lease));
    Permits held = fixture.seats.hold(4);
    const std::stop_token before = held.lost();
    const Permits two = held.split(2);
    const Permits one = held.split(1);
    const std::stop_token lost_two = two.lost();
    const std::stop_token lost_one = one.lost();
    CHECK(two.valid_until() > Clock::now());
    fixture.remove(two.ids().at(1));
    CHECK(is_requested(lost_two));
    CHECK(stay_quiet({before, lost_one, held.lost()}));
    CHECK(two.valid_until() == Instant::min());
    CHECK(one.valid_until() > Clock::now());
    fixture.remove(held.ids().at(0));
    CHECK(is_requested(before));
    CHECK(held.lost().stop_requested());
    CHECK(stay_quiet({lost_one}));
}

TEST_CASE("permits: a merged object reports the losses of all its permits, to the tokens of both") {
    for (const bool of_the_second : {false, true}) {
        CAPTURE(of_the_second);
        Fixture fixture(3, with_watchdog(steady_lease));
        Permits first = fixture.seats.hold(1);
        Permits second = fixture.seats.hold(1);
        Permits third = fixture.seats.hold(1);
        const std::stop_token lost_first = first.lost();
        const std::stop_token lost_second = second.lost();
        const std::stop_token lost_third = third.lost();
        const PermitId id = (of_the_second ? second : first).ids().at(0);
        first.merge(std::move(second));
        CHECK(second.lost().stop_requested());          // NOLINT(bugprone-use-after-move)
        CHECK(second.valid_until() == Instant::min());  // NOLINT(bugprone-use-after-move)
        CHECK_FALSE(first.lost().stop_requested());
        fixture.remove(id);
        CHECK(is_requested(lost_first));
        CHECK(is_requested(lost_second));
        CHECK(first.lost().stop_requested());
        CHECK_FALSE(lost_third.stop_requested());
        // What is lost already is known to the tokens of the object that takes it over.
        third.merge(std::move(first));
        CHECK(is_requested(lost_third));
        CHECK(third.valid_until() == Instant::min());
        // The part without the lost permit starts anew.
        Permits sound = third.split(third.ids().back() == id ? 0 : 1);
        if (sound) CHECK_FALSE(sound.lost().stop_requested());
    }
}

TEST_CASE("permits: moved permits keep their token, by a move and by a split of all of them") {
    Fixture fixture(2, with_watchdog(steady_lease));
    Permits held = fixture.seats.hold(2);
    const std::stop_token lost = held.lost();
    Permits moved = std::move(held);
    CHECK(moved.lost() == lost);
    Permits all = moved.split(2);
    CHECK(all.lost() == lost);
    CHECK(moved.lost().stop_requested());  // it holds nothing
    CHECK(moved.valid_until() == Instant::min());
    fixture.remove(all.ids().at(0));
    CHECK(is_requested(lost));
}

TEST_CASE("permits: an object that holds nothing has a requested token, the token of released permits stays quiet") {
    Fixture fixture(3);
    Permits none;
    CHECK(none.lost().stop_requested());
    CHECK(none.valid_until() == Instant::min());
    Permits released = fixture.seats.hold(1, Lease{200ms});
    auto dropped = std::make_optional(fixture.seats.hold(1, Lease{200ms}));
    Permits closed = fixture.seats.hold(1);
    const std::vector<std::stop_token> tokens{released.lost(), dropped->lost(), closed.lost()};
    const Instant until = dropped->valid_until();
    if (released.release() != std::error_code()) return;  // The machine stood still.
    dropped.reset();
    if (Clock::now() + 50ms >= until) return;  // The same.
    CHECK(closed.release() == std::error_code());
    CHECK(released.lost().stop_requested());
    CHECK(released.valid_until() == Instant::min());
    CHECK(stay_quiet(tokens));
    CHECK(fixture.client.release_all() == 0);
}

TEST_CASE("permits: without a lease they are valid for ever") {
    Fixture fixture(1);
    const Permits held = fixture.seats.hold(1, Lease::forever());
    CHECK(held.valid_until() == Instant::max());
    CHECK_FALSE(held.lost().stop_requested());
    Semaphore plain{fixture.client, "plain"};
    plain.try_set_permits(3);
    Permits two = plain.hold(2);
    Permits one = two.split(1);
    CHECK(one.valid_until() == Instant::max());
    CHECK_FALSE(one.lost().stop_possible());
    two.merge(std::move(one));
    CHECK(two.valid_until() == Instant::max());
    CHECK(two.release() == std::error_code());
    CHECK(two.lost().stop_requested());
    CHECK(two.valid_until() == Instant::min());
    CHECK(plain.available_permits() == 3);
}

TEST_CASE("permits: lost() and valid_until() go on after the end of the semaphore and the client") {
    Fixture fixture(2);
    Permits held;
    {
        Client client{fixture.server.url(), with_watchdog(steady_lease)};
        PermitExpirableSemaphore mine{client, "seats"};
        held = mine.hold(2);
    }
    const auto first = held.valid_until();
    const std::stop_token lost = held.lost();
    CHECK(eventually([&] { return held.valid_until() > first; }, 20s));
    CHECK_FALSE(lost.stop_requested());
    fixture.remove(held.ids().at(0));
    CHECK(is_requested(lost));
    held = Permits();
}

TEST_CASE("permits: a callback of lost() may use its object and others, and wait for the server") {
    Fixture fixture(3, with_watchdog(steady_lease));
    Permits held = fixture.seats.hold(2);
    const Permits other = fixture.seats.hold(1);
    std::promise<std::error_code> released;
    const std::stop_callback on_lost{held.lost(), [&] {
                                         Permits part = held.split(1);
                                         part.merge(std::move(held));
                                         static_cast<void>(other.lost());
                                         released.set_value(part.release());
                                     }};
    fixture.remove(held.ids().at(0));
    auto release = released.get_future();
    REQUIRE(ready(release));
    CHECK(release.get() == errc::unknown_permit);
    CHECK(other.valid_until() > Clock::now());
}

TEST_CASE("permits: a permit that is released by its id is lost to its object") {
    Fixture fixture(2);
    const Permits held = fixture.seats.hold(2, Lease{long_lease});
    const std::stop_token lost = held.lost();
    CHECK_FALSE(fixture.seats.try_release(std::vector{held.ids().at(0), PermitId::random()}));
    CHECK_FALSE(lost.stop_requested());
    CHECK(held.valid_until() > Clock::now());
    fixture.seats.release(held.ids().at(0));
    CHECK(is_requested(lost));
    CHECK(held.valid_until() == Instant::min());
}

TEST_CASE("permits: a refused release by id leaves the permits of an object under the watchdog") {
    Fixture fixture(2, with_watchdog(steady_lease));
    const Permits held = fixture.seats.hold(2);
    const auto first = held.valid_until();
    CHECK_FALSE(fixture.seats.try_release(std::vector{held.ids().at(0), PermitId::random()}));
    CHECK(eventually([&] { return held.valid_until() > first; }, 20s));
    CHECK_FALSE(held.lost().stop_requested());
}

TEST_CASE("permits: update_lease() of a permit is known to its object") {
    Fixture fixture(2);
    const Permits held = fixture.seats.hold(2);
    const std::stop_token lost = held.lost();
    fixture.seats.update_lease(held.ids().at(0), Lease{long_lease});
    CHECK(held.valid_until() <= Clock::now() + 30s);  // that of the other
    fixture.seats.update_lease(held.ids().at(1), Lease::forever());
    CHECK(held.valid_until() > Clock::now() + 30s);
    CHECK(held.valid_until() <= Clock::now() + long_lease);
    CHECK_FALSE(lost.stop_requested());
    fixture.seats.update_lease(held.ids().at(1), Lease{300ms});
    CHECK(held.valid_until() <= Clock::now() + 300ms);
    CHECK(is_requested(lost));
    CHECK(held.valid_until() == Instant::min());
    const Permits gone = fixture.seats.hold(1, Lease{long_lease});
    const std::stop_token lost_too = gone.lost();
    fixture.remove(gone.ids().at(0));
    std::error_code ec;
    fixture.seats.update_lease(gone.ids().at(0), Lease{long_lease}, ec);
    CHECK(ec == errc::unknown_permit);
    CHECK(is_requested(lost_too));
}

TEST_CASE("permits: release_all() takes those under the watchdog from their objects") {
    Fixture fixture(3);
    Permits held = fixture.seats.hold(2);
    Permits leased = fixture.seats.hold(1, Lease{long_lease});
    const std::stop_token lost = held.lost();
    CHECK(fixture.client.release_all() == 2);
    CHECK(is_requested(lost));
    CHECK(held.valid_until() == Instant::min());
    CHECK(fixture.seats.available_permits() == 2);
    CHECK(fixture.client.release_all() == 0);
    CHECK(held.release() == errc::unknown_permit);
    CHECK_FALSE(leased.lost().stop_requested());
    CHECK(leased.release() == std::error_code());
    CHECK(fixture.seats.available_permits() == 3);
}

#ifdef REDLATCH_TEST_IN_MEMORY
TEST_CASE("permits: after a failover all of them are verified, whatever their lease, and no lease is prolonged") {
    Fixture fixture(6);
    const Permits watched = fixture.seats.hold(1);
    const Permits brief = fixture.seats.hold(1, Lease{10s});
    const Permits leased = fixture.seats.hold(1, Lease{1h});
    const Permits kept = fixture.seats.hold(1, Lease{3h});
    const Permits endless = fixture.seats.hold(1, Lease::forever());
    const Permits removed = fixture.seats.hold(1, Lease::forever());
    const auto until = kept.valid_until();
    fixture.remove(removed.ids().at(0));
    CHECK_FALSE(removed.lost().stop_requested());
    fixture.server.server().fail_over();
    CHECK(is_requested(removed.lost()));
    CHECK(fixture.seats.remaining_lease(brief.ids().at(0)) <= 10s);
    CHECK(brief.valid_until() > Clock::now());
    const std::vector<std::stop_token> gone{watched.lost(), leased.lost()};
    const std::vector<std::stop_token> quiet{kept.lost(), endless.lost()};
    fixture.server.server().advance(2h);
    fixture.server.server().fail_over();
    for (const std::stop_token& lost : gone) CHECK(is_requested(lost));
    CHECK(stay_quiet(quiet));
    CHECK(kept.valid_until() == until);
    CHECK(endless.valid_until() == Instant::max());
}
#endif
