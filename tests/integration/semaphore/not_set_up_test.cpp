// SPDX-License-Identifier: MIT
// A semaphore that nobody has set up: an event tells who waits for it.
// ctest: in_memory
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"
#include "support/wait.hpp"

#include "support/any_server.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

template <class Kind>
struct Fixture {
    ClientOptions options() {
        return {.key_prefix = "shop:", .on_event = [this](const Event& event) {
                    const std::lock_guard guard(mutex);
                    events.push_back(event);
                }};
    }

    std::size_t told() {
        const std::lock_guard guard(mutex);
        return static_cast<std::size_t>(std::count_if(
            events.begin(), events.end(), [](const Event& e) { return e.kind == Event::Kind::not_set_up; }));
    }

    // Events come on another thread, in order. The end of a lease is one, so those before it have come.
    bool told_only(std::size_t times) {
        RLock last{client, "last"};
        last.lock(Lease{1ms});
        ++ends;
        const bool has_ended = eventually([&] {
            const std::lock_guard guard(mutex);
            return std::count_if(events.begin(), events.end(), [](const Event& e) {
                       return e.kind == Event::Kind::hold_lost && e.name == "shop:last";
                   }) == ends;
        });
        std::error_code ec;
        last.unlock(ec);
        return has_ended && told() == times;
    }

    bool is_listened_to() {
        return eventually([&] { return redis.subscribers("redisson_sc:{shop:seats}") == 1; });
    }

    std::mutex mutex;  // guards events
    std::vector<Event> events;
    std::ptrdiff_t ends = 0;  // how often told_only() was called
    RedisServer server{};
    RawRedis redis{server};
    Client client{server.url(), options()};
    Kind seats{client, "seats"};
};

// Waits for a permit, and gives it back. Returns whether it had one.
bool has_a_turn(Semaphore& seats, std::stop_token stop = {}) {
    if (!seats.acquire(stop)) return false;
    seats.release();
    return true;
}
bool has_a_turn(PermitExpirableSemaphore& seats, std::stop_token stop = {}) {
    const auto id = seats.acquire(stop);
    if (!id) return false;
    seats.release(*id);
    return true;
}

}  // namespace

TEST_CASE_TEMPLATE("a wait for a semaphore that nobody has set up raises one event, and goes on", Kind, Semaphore,
                   PermitExpirableSemaphore) {
    Fixture<Kind> fixture;
    const Stopwatch watch;
    auto waiter = start_waiting(fixture.client, [&] { return has_a_turn(fixture.seats); });
    CHECK(eventually([&] { return fixture.told() == 1; }));
    CHECK(watch.within(ClientOptions().command_timeout));
    {
        const std::lock_guard guard(fixture.mutex);
        CHECK(fixture.events.back().name == "shop:seats");
        CHECK(fixture.events.back().detail ==
              "a caller waits for its permits, but nobody has set it up; call try_set_permits()");
    }
    CHECK_FALSE(ready(waiter, 50ms));
    CHECK(fixture.seats.try_set_permits(1));
    REQUIRE(ready(waiter));
    CHECK(waiter.get());
    CHECK(fixture.told_only(1));
}

TEST_CASE_TEMPLATE("each wait tells it once, however often it asks again", Kind, Semaphore, PermitExpirableSemaphore) {
    Fixture<Kind> fixture;
    for (std::size_t wait = 1; wait <= 2; ++wait) {
        std::stop_source stop;
        auto waiter = start_waiting(fixture.client, [&] { return has_a_turn(fixture.seats, stop.get_token()); });
        REQUIRE(fixture.is_listened_to());
        for (int message = 0; message < 3; ++message) {
            const std::uint64_t before = fixture.client.stats().commands;
            fixture.redis.command({"PUBLISH", "redisson_sc:{shop:seats}", "1"});
            CHECK(eventually([&] { return fixture.client.stats().commands > before; }));
        }
        stop.request_stop();
        REQUIRE(ready(waiter));
        CHECK_FALSE(waiter.get());
        CHECK(fixture.told_only(wait));
    }
}

TEST_CASE_TEMPLATE("a semaphore that is removed while callers wait for it raises the event, too", Kind, Semaphore,
                   PermitExpirableSemaphore) {
    Fixture<Kind> fixture;
    fixture.seats.try_set_permits(0);
    auto waiter = start_waiting(fixture.client, [&] { return has_a_turn(fixture.seats); });
    REQUIRE(fixture.is_listened_to());
    CHECK(fixture.told_only(0));
    CHECK(fixture.seats.remove());
    fixture.redis.command({"PUBLISH", "redisson_sc:{shop:seats}", "1"});
    CHECK(eventually([&] { return fixture.told() == 1; }));
    CHECK(fixture.seats.try_set_permits(1));
    REQUIRE(ready(waiter));
    CHECK(waiter.get());
}

TEST_CASE_TEMPLATE("operations and objects that hold permits tell it, too", Kind, Semaphore, PermitExpirableSemaphore) {
    Fixture<Kind> fixture;
    // A call whose query gets no reply in its time has nothing to tell.
    const auto is_told = [&](std::size_t times, auto call) {
        return succeeds_once(
            [&] {
                CHECK_FALSE(call());
                return fixture.told_only(times);
            },
            3);
    };
    CHECK(is_told(1, [&] { return fixture.seats.try_hold_for(20ms, 1); }));
    CHECK(is_told(2, [&] { return fixture.seats.try_acquire_for(20ms); }));
    CHECK(is_told(3, [&] { return fixture.seats.async_try_acquire_for(20ms, 1).future().get(); }));
    auto operation = fixture.seats.async_acquire(1).future();
    CHECK(eventually([&] { return fixture.told() == 4; }));
    CHECK(fixture.seats.try_set_permits(1));
    CHECK(operation.get().valid_until() > Clock::now());
    CHECK(fixture.told_only(4));
}

TEST_CASE_TEMPLATE("there is no event about a semaphore without permits, nor from a call that does not wait", Kind,
                   Semaphore, PermitExpirableSemaphore) {
    Fixture<Kind> fixture;
    CHECK_FALSE(fixture.seats.try_acquire());
    CHECK_FALSE(fixture.seats.try_acquire_for(0s));
    CHECK_FALSE(fixture.seats.try_hold(1));
    CHECK_FALSE(fixture.seats.async_try_acquire(1).future().get());
    CHECK(fixture.told_only(0));
    CHECK(fixture.seats.try_set_permits(0));
    CHECK_FALSE(fixture.seats.try_acquire_for(20ms));
    CHECK(fixture.told_only(0));
    // Taken, not missing.
    fixture.seats.add_permits(1);
    const auto taken = fixture.seats.hold(1);
    CHECK_FALSE(fixture.seats.try_acquire_for(20ms));
    CHECK(fixture.told_only(0));
}

TEST_CASE_TEMPLATE("the event costs no command", Kind, Semaphore, PermitExpirableSemaphore) {
    Fixture<Kind> fixture;
    // Some waits find a subscription, and others have to make one.
    const auto commands = [&] {
        std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
        for (int wait = 0; wait < 6; ++wait) {
            const std::uint64_t before = fixture.client.stats().commands;
            CHECK_FALSE(fixture.seats.try_acquire_for(200ms));
            least = std::min(least, fixture.client.stats().commands - before);
        }
        return least;
    };
    const std::uint64_t missing = commands();
    CHECK(fixture.told_only(6));
    CHECK(fixture.seats.try_set_permits(0));
    // The question, and that it leaves its place in the queue.
    CHECK(missing == 2);
    CHECK(commands() == missing);
}

TEST_CASE("a permit whose lease ends after the semaphore was removed brings it back: no event") {
    Fixture<PermitExpirableSemaphore> fixture;
    fixture.seats.try_set_permits(1);
    const PermitId id = fixture.seats.acquire(Lease{1ms});
    fixture.redis.integer("DEL", "shop:seats");
    CHECK(eventually([&] { return !fixture.seats.remaining_lease(id); }));
    CHECK(fixture.seats.try_acquire_for(50ms, 2).empty());
    CHECK(fixture.told_only(0));
}

TEST_CASE("a latch without a count is open: nobody waits, and there is no event") {
    Fixture<CountDownLatch> fixture;
    fixture.seats.wait();
    CHECK(fixture.seats.wait_for(1s));
    CHECK(fixture.told_only(0));
}
