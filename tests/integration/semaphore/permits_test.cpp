// SPDX-License-Identifier: MIT
// Permits: permits that belong to an object, of both semaphores, by waiting threads and by operations; and operations
// that wait for a latch.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stop_token>
#include <system_error>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/coroutine.hpp"
#include "support/proxy.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

template <class Kind>
struct Fixture {
    RedisServer server{};
    RawRedis redis{server};
    Client client{server.url()};
    Kind seats{client, "seats"};

    explicit Fixture(std::ptrdiff_t permits) { seats.try_set_permits(permits); }

    bool all_are_back(std::ptrdiff_t permits) {
        return eventually([&] { return seats.available_permits() == permits; });
    }
};

}  // namespace

TEST_CASE_TEMPLATE("permits: come back by the destructor, by release() and by assignment", Kind, Semaphore,
                   PermitExpirableSemaphore) {
    Fixture<Kind> fixture(5);
    {
        const Permits held = fixture.seats.hold(2);
        CHECK(held);
        CHECK(held.count() == 2);
        CHECK(held.ids().size() == (std::is_same_v<Kind, Semaphore> ? 0 : 2));
        CHECK(fixture.seats.available_permits() == 3);
        CHECK_FALSE(fixture.seats.try_hold(4));
    }
    CHECK(fixture.all_are_back(5));
    Permits held = fixture.seats.try_hold_for(20s, 5);
    CHECK(held.release() == std::error_code());
    CHECK(fixture.seats.available_permits() == 5);
    CHECK(held.release() == errc::not_owner);
    held = fixture.seats.try_hold(5);
    REQUIRE(held);
    held = Permits();
    CHECK(fixture.all_are_back(5));
}

TEST_CASE_TEMPLATE("permits: can be split, merged and moved to other threads", Kind, Semaphore,
                   PermitExpirableSemaphore) {
    Fixture<Kind> fixture(5);
    Permits held = fixture.seats.hold(5);
    Permits two = held.split(2);
    CHECK(held.count() == 3);
    CHECK(two.count() == 2);
    CHECK_THROWS_AS(static_cast<void>(held.split(4)), Error);
    CHECK_FALSE(held.split(0));
    start([two = std::move(two)]() mutable { two = Permits(); }).get();
    CHECK(fixture.all_are_back(2));
    Permits again = fixture.seats.hold(1);
    held.merge(std::move(again));
    CHECK_FALSE(again);  // NOLINT(bugprone-use-after-move)
    CHECK(held.count() == 4);
    Kind others{fixture.client, "others"};
    others.try_set_permits(1);
    CHECK_THROWS_AS(held.merge(others.hold(1)), Error);
    Permits none;
    none.merge(std::move(held));
    CHECK(none.count() == 4);
    CHECK(none.release() == std::error_code());
    CHECK(fixture.seats.available_permits() == 5);
}

TEST_CASE_TEMPLATE("permits: operations wait for a release, a timeout and a stop request end them", Kind, Semaphore,
                   PermitExpirableSemaphore) {
    Fixture<Kind> fixture(3);
    std::optional<Permits> all = fixture.seats.hold(3);
    auto waiting = fixture.seats.async_acquire(2).future();
    CHECK_FALSE(fixture.seats.async_try_acquire(1).future().get());
    CHECK_FALSE(fixture.seats.async_try_acquire_for(20ms, 1).future().get());
    std::stop_source stop;
    std::promise<std::error_code> stopped;
    fixture.seats.async_acquire(1, stop.get_token()).start([&](std::error_code ec, const Permits& permits) {
        CHECK_FALSE(permits);
        stopped.set_value(ec);
    });
    stop.request_stop();
    CHECK(stopped.get_future().get() == errc::cancelled);
    CHECK_FALSE(ready(waiting, 20ms));
    all.reset();
    REQUIRE(ready(waiting));
    Permits two = waiting.get();
    CHECK(two.count() == 2);
    two = Permits();
    CHECK(fixture.all_are_back(3));
}

TEST_CASE("permits: the lease of permits of an object ends, and release() reports it") {
    Fixture<PermitExpirableSemaphore> fixture(2);
    Permits held = fixture.seats.async_acquire(2, Lease{50ms}).future().get();
    REQUIRE(held);
    CHECK(fixture.all_are_back(2));
    CHECK(held.release() == errc::unknown_permit);
}

TEST_CASE_TEMPLATE("permits: grants and cancellations at the same time: never too many, and all come back", Kind,
                   Semaphore, PermitExpirableSemaphore) {
    constexpr std::ptrdiff_t limit = 3;
    Fixture<Kind> fixture(limit);
    const int operations = 300 / slow_build_factor;
    std::mutex mutex;  // guards inside and most
    std::ptrdiff_t inside = 0, most = 0;
    std::atomic<int> completed{0}, held{0};
    std::deque<std::stop_source> stops(static_cast<std::size_t>(operations));
    std::mt19937 random{7};
    for (int i = 0; i < operations; ++i) {
        const std::ptrdiff_t n = 1 + static_cast<std::ptrdiff_t>(random() % 3);
        fixture.seats.async_acquire(n, stops[static_cast<std::size_t>(i)].get_token())
            .start([&](std::error_code, Permits permits) {
                if (permits) {
                    ++held;
                    {
                        const std::lock_guard lock(mutex);
                        inside += permits.count();
                        most = std::max(most, inside);
                        inside -= permits.count();
                    }
                }
                permits = Permits();
                ++completed;
            });
        if (random() % 2 == 0) stops[random() % static_cast<std::size_t>(i + 1)].request_stop();
    }
    REQUIRE(eventually([&] { return completed == operations; }, patient(60s)));
    CHECK(most <= limit);
    CHECK(held > 0);
    CHECK(fixture.all_are_back(limit));
}

TEST_CASE_TEMPLATE("permits: outlive the semaphore and the client that they came from", Kind, Semaphore,
                   PermitExpirableSemaphore) {
    RedisServer server;
    Client other{server.url()};
    Kind seats{other, "seats"};
    seats.try_set_permits(2);
    Permits held;
    {
        Client client{server.url()};
        Kind mine{client, "seats"};
        held = mine.async_acquire(2).future().get();
    }
    CHECK(seats.available_permits() == 0);
    held = Permits();
    CHECK(eventually([&] { return seats.available_permits() == 2; }));
}

TEST_CASE_TEMPLATE("permits: of one name merge, whichever objects they came from", Kind, Semaphore,
                   PermitExpirableSemaphore) {
    Fixture<Kind> fixture(3);
    const auto take = [&] {
        Kind seats{fixture.client, "other seats"};
        static_cast<void>(seats.try_set_permits(3));
        return seats.hold(1);
    };
    Permits held = take();
    held.merge(take());
    CHECK(held.count() == 2);
    Kind seats{fixture.client, "other seats"};
    held.merge(seats.hold(1));
    CHECK(seats.available_permits() == 0);
    CHECK(held.release() == std::error_code());
    CHECK(seats.available_permits() == 3);
}

TEST_CASE_TEMPLATE("permits: that outlive the semaphore come back, although the connection breaks meanwhile", Kind,
                   Semaphore, PermitExpirableSemaphore) {
    Fixture<Kind> fixture(2);
    Proxy proxy{fixture.server.url()};
    Client client{proxy.url()};
    Permits held;
    {
        Kind mine{client, "seats"};
        held = mine.hold(2);
    }
    CHECK(fixture.seats.available_permits() == 0);
    proxy.drop_next_requests(1);
    held = Permits();
    REQUIRE(eventually([&] { return proxy.counts().dropped > 0; }));
    proxy.kill_all();
    CHECK(fixture.all_are_back(2));
}

TEST_CASE("latch: operations wait for the end of the count") {
    RedisServer server;
    Client client{server.url()};
    CountDownLatch gate{client, "gate"};
    gate.try_set_count(2);
    auto waiting = gate.async_wait().future();
    CHECK_FALSE(gate.async_wait_for(20ms).future().get());
    std::stop_source stop;
    std::promise<std::error_code> stopped;
    gate.async_wait(stop.get_token()).start([&](std::error_code ec, bool) { stopped.set_value(ec); });
    std::promise<bool> awaited;
    const auto fiber = [&]() -> Fiber { awaited.set_value(co_await gate.async_wait()); };
    const Fiber one = fiber();
    stop.request_stop();
    CHECK(stopped.get_future().get() == errc::cancelled);
    gate.count_down();
    CHECK_FALSE(ready(waiting, 20ms));
    gate.count_down();
    REQUIRE(ready(waiting));
    CHECK(waiting.get());
    CHECK(awaited.get_future().get());
    CHECK(gate.async_wait().get());
}
