// SPDX-License-Identifier: MIT
// exists(), remove(), expire() and a number of permits with an expiry: the keys of semaphores and latches.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <system_error>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using namespace redlatch;

namespace {

/// Returns what is left of a semaphore or latch on the server, apart from the marks and rounds, which expire.
std::vector<std::string> keys(RawRedis& redis) {
    std::vector<std::string> all = redis.keys();
    std::erase_if(all, [](const std::string& key) { return key.starts_with("redlatch_"); });
    return all;
}

bool is_about(long long ttl, std::chrono::milliseconds whole) {
    return ttl <= whole.count() && ttl > (whole - 10s).count();
}

template <class Primitive>
void refuses_bad_durations(Primitive& primitive) {
    for (const auto duration : {0ms, -1ms, std::chrono::milliseconds(std::chrono::hours(24) * 40'000)})
        CHECK(code_of([&] { primitive.expire(duration); }) == errc::invalid_argument);
    std::error_code ec;
    CHECK_FALSE(primitive.expire(500us, ec));
    CHECK(ec == errc::invalid_argument);
}

template <class Primitive>
void refuses_other_types(Client& client, RawRedis& redis) {
    redis.integer("RPUSH", "list", "x");
    redis.text("SET", "text", "many");
    for (const std::string key : {"list", "text"}) {
        CAPTURE(key);
        Primitive primitive{client, key};
        std::error_code ec;
        CHECK_FALSE(primitive.exists(ec));
        CHECK(ec == errc::wrong_type);
        CHECK_FALSE(primitive.expire(60s, ec));
        CHECK(ec == errc::wrong_type);
        CHECK_FALSE(primitive.remove(ec));
        CHECK(ec == errc::wrong_type);
        CHECK(redis.pttl(key) == -1);
    }
    redis.integer("DEL", "list", "text");
}

}  // namespace

TEST_CASE("a Semaphore is removed with its permits; waiting callers go on waiting for the next") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Semaphore seats{client, "seats"};
    CHECK_FALSE(seats.exists());
    CHECK_FALSE(seats.remove());
    CHECK(seats.try_set_permits(0));
    CHECK(seats.exists());
    Messages messages{server, "redisson_sc:{seats}"};
    auto waiter = start_waiting(client, [&] { return seats.try_acquire_for(20s); });
    CHECK(seats.remove());
    CHECK(messages.take().empty());
    CHECK_FALSE(seats.exists());
    CHECK(keys(redis).empty());
    CHECK_FALSE(ready(waiter, 50ms));
    CHECK_FALSE(seats.release_if_exists());
    CHECK(seats.try_set_permits(1));
    CHECK(waiter.get());
    CHECK(seats.exists());
}

TEST_CASE("a Semaphore expires as late as it is told last, with the permits that others hold") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Semaphore seats{client, "seats"};
    CHECK_FALSE(seats.expire(60s));
    CHECK(seats.try_set_permits(3, 120s));
    CHECK(is_about(redis.pttl("seats"), 120s));
    CHECK_FALSE(seats.try_set_permits(3, 10s));
    CHECK(is_about(redis.pttl("seats"), 120s));
    CHECK(seats.try_acquire());
    CHECK(seats.expire(60s));
    CHECK(is_about(redis.pttl("seats"), 60s));
    CHECK(redis.integer("GET", "seats") == 2);
    CHECK(seats.expire(1ms));
    CHECK(eventually([&] { return !seats.exists(); }));
    CHECK(seats.try_set_permits(3));
    CHECK(redis.pttl("seats") == -1);
    refuses_bad_durations(seats);
    CHECK(code_of([&] { seats.try_set_permits(1, 0s); }) == errc::invalid_argument);
    std::error_code ec;
    CHECK_FALSE(seats.try_set_permits(-1, 1s, ec));
    CHECK(ec == errc::invalid_argument);
}

TEST_CASE("the permits of a PermitExpirableSemaphore are removed and expire with it") {
    RedisServer server;
    RawRedis redis{server};
    EventLog events;
    ClientOptions options = with_watchdog(short_lease);
    options.on_event = events.handler();
    Client client{server.url(), options};
    PermitExpirableSemaphore slots{client, "slots"};
    CHECK_FALSE(slots.exists());
    CHECK_FALSE(slots.remove());
    CHECK_FALSE(slots.expire(60s));
    CHECK(slots.try_set_permits(3, 120s));
    const PermitId limited = slots.acquire(Lease{60s});
    CHECK(is_about(redis.pttl("slots"), 120s));
    CHECK(is_about(redis.pttl("{slots}:timeout"), 120s));
    CHECK(slots.expire(60s));
    CHECK(is_about(redis.pttl("slots"), 60s));
    CHECK(is_about(redis.pttl("{slots}:timeout"), 60s));
    CHECK(slots.exists());

    const PermitId watched = slots.acquire();
    Messages messages{server, "redisson_sc:{slots}"};
    CHECK(slots.remove());
    CHECK(messages.take().empty());
    CHECK(keys(redis).empty());
    CHECK_FALSE(slots.exists());
    CHECK_FALSE(slots.try_release(limited));
    CHECK(eventually([&] { return events.count(Event::Kind::hold_lost) == 1; }, 20s));
    CHECK_FALSE(slots.try_release(watched));
    CHECK(keys(redis).empty());

    // Permits that have outlived their semaphore.
    redis.integer("ZADD", "{slots}:timeout", "922337203685477", "0123456789abcdef");
    CHECK(slots.remove());
    CHECK(keys(redis).empty());
    refuses_bad_durations(slots);
}

TEST_CASE("a CountDownLatch that is removed, or expires, frees its waiters") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    CountDownLatch gate{client, "gate"};
    CHECK_FALSE(gate.exists());
    CHECK_FALSE(gate.remove());
    CHECK_FALSE(gate.expire(60s));
    CHECK(gate.try_set_count(2));
    CHECK(gate.exists());
    auto waiter = start_waiting(client, [&] { return gate.wait_for(20s); });
    Messages messages{server, "redisson_countdownlatch__channel__{gate}"};
    CHECK(gate.remove());
    CHECK(waiter.get());
    CHECK(messages.take() == std::vector<std::string>{"0"});
    CHECK_FALSE(gate.exists());
    CHECK(keys(redis).empty());

    CHECK(gate.try_set_count(2));
    CHECK(gate.expire(60s));
    CHECK(is_about(redis.pttl("gate"), 60s));
    CHECK(redis.integer("GET", "gate") == 2);
    waiter = start_waiting(client, [&] { return gate.wait_for(30s); });
    CHECK(gate.expire(10ms));
    CHECK(waiter.get());
    refuses_bad_durations(gate);
}

TEST_CASE("keys of other types are refused and stay as they are") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    refuses_other_types<Semaphore>(client, redis);
    refuses_other_types<PermitExpirableSemaphore>(client, redis);
    refuses_other_types<CountDownLatch>(client, redis);
}

TEST_CASE("each of these calls is one command") {
    RedisServer server;
    Client client{server.url()};
    Semaphore seats{client, "seats"};
    const auto use = [&] {
        seats.try_set_permits(1, 60s);
        seats.exists();
        seats.expire(30s);
        seats.remove();
    };
    use();
    CommandMonitor monitor{server};
    use();
    CHECK(monitor.take() == std::map<std::string, long long>{{"evalsha", 3}, {"get", 1}});
}
