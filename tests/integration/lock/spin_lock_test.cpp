// SPDX-License-Identifier: MIT
// SpinLock: an RLock whose waiters retry after pauses.
// ctest: in_memory
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/plain_counter.hpp"

#include "support/any_server.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::errc;
using redlatch::Lease;
using redlatch::RLock;
using redlatch::SpinLock;

namespace {

// Returns the URL of a user to whom the server does not tell of changes of a key, so that the client has to poll. The
// in-memory server cannot tell anyone.
auto polling_url(RedisServer& server) {
#ifdef REDLATCH_TEST_IN_MEMORY
    return server.url();
#else
    RawRedis{server}.text("ACL", "SETUSER", "poller", "on", ">secret", "~*", "&*", "+@all", "-client|tracking");
    return "unix://poller:secret@" + server.socket_path();
#endif
}

}  // namespace

TEST_CASE("a spin lock waits without a subscription to a channel of the lock") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    SpinLock orders{client, "orders"};
    SpinLock theirs{other, "orders"};
    orders.lock();
    auto waiting = start_waiting(other, [&] {
        theirs.lock();
        const bool held = theirs.is_held();
        theirs.unlock();
        return held;
    });
    CHECK_FALSE(ready(waiting, 100ms));
    // The server tells of changed keys there.
    for (const auto& channel : redis.command({"PUBSUB", "CHANNELS"}).elements)
        CHECK(channel.string == "__redis__:invalidate");
    orders.unlock();
    CHECK(waiting.get());
}

TEST_CASE("the pauses between tries double, up to the longest, if the server does not tell of changes") {
    RedisServer server;
    Client client{server.url()};
    Client other{polling_url(server)};
    SpinLock orders{client, "orders"};
    orders.lock();
    for (const auto longest : {10ms, 200ms}) {
        SpinLock theirs{other, "orders", {.initial_delay = 1ms, .max_delay = longest}};
        // The bounds: pauses of full length, and of half. A busy machine tries less often, so the best of some rounds
        // counts.
        std::uint64_t most = 0;
        for (int round = 0; round < 5 && most < 4; ++round) {
            const auto before = other.stats().commands;
            CHECK_FALSE(theirs.try_lock_for(1s));
            const auto asked = other.stats().commands - before;
            CHECK(asked <= static_cast<std::uint64_t>(10 + 2 * (1s / longest)));
            most = std::max(most, asked);
        }
        CHECK(most >= 4);
    }
    orders.unlock();
}

TEST_CASE("a spin lock keeps retrying while other threads of its process try and learn the holder's lease") {
    // That reply counted as a promise of a message, which a spin lock does not get, so the waiter slept for that lease.
    RedisServer server;
    Client client{server.url()};
    Client other{server.url()};
    RLock held{other, "orders"};
    held.lock();
    SpinLock orders{client, "orders"};
    auto waiting = start_waiting(client, [&] { return orders.try_lock_for(20s); });
    for (int i = 0; i < 10; ++i) CHECK_FALSE(orders.try_lock());
    held.unlock();
    CHECK(ready(waiting, 15s));
    CHECK(waiting.get());
    orders.force_unlock();
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("a spin lock waits where an RLock of its process fails for lack of the right to subscribe") {
    RedisServer server;
    RawRedis redis{server};
    redis.call("ACL", "SETUSER", "deaf", "on", "nopass", "~*", "resetchannels", "+@all");
    redis.call("HSET", "orders", "somebody", 1);
    redis.call("PEXPIRE", "orders", 600'000);
    Client client{"unix://deaf:x@" + server.socket_path()};
    RLock listening{client, "orders"};
    SpinLock spinning{client, "orders"};
    std::error_code ec;
    auto waiting = start_waiting(client, [&] { return spinning.try_lock_for(20s); });
    CHECK_FALSE(elsewhere([&] { return listening.try_lock_for(20s, ec); }));
    CHECK(ec == errc::rejected);
    CHECK_FALSE(ready(waiting, 30ms));
    redis.call("DEL", "orders");
    CHECK(ready(waiting, 15s));
    CHECK(waiting.get());
    redis.call("DEL", "orders");
}
#endif

TEST_CASE("a spin lock and an RLock with one name are one lock, and a release wakes both kinds") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    SpinLock spin{client, "orders"};
    RLock plain{other, "orders"};
    spin.lock();
    CHECK(redis.hgetall("orders") == Fields{{owner_of(client, spin), "1"}});
    CHECK_FALSE(elsewhere([&] { return plain.try_lock(); }));
    auto waiting = start_waiting(other, [&] {
        plain.lock();
        plain.unlock();
        return true;
    });
    REQUIRE(is_listened_to(redis, "orders"));
    spin.unlock();
    CHECK(ready(waiting));

    // In one process, too: a level of one is a level of the other.
    RLock same{client, "orders"};
    const std::scoped_lock both{spin, same};
    CHECK(spin.hold_count() == 2);
}

TEST_CASE("threads of two clients count under a spin lock without a lost update") {
    RedisServer server;
    PlainCounter counter;
    std::array<HiredisClient, 2> clients{HiredisClient{server.url()}, HiredisClient{server.url()}};
    std::vector<std::future<bool>> threads;
    for (int thread = 0; thread < 4; ++thread)
        threads.push_back(start([&, thread] {
            SpinLock lock{
                clients[static_cast<std::size_t>(thread % 2)], "orders", {.initial_delay = 1ms, .max_delay = 4ms}};
            for (int i = 0; i < 25; ++i) {
                const std::lock_guard guard{lock};
                counter.add_one();
            }
            return true;
        }));
    for (auto& thread : threads) CHECK(ready(thread, 60s));
    CHECK(counter.value() == 100);
}

TEST_CASE("a spin lock's wait ends at the deadline, by a stop request, and with the holder's lease") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    SpinLock orders{client, "orders"};
    SpinLock theirs{other, "orders"};
    orders.lock();
    const auto begin = std::chrono::steady_clock::now();
    CHECK_FALSE(theirs.try_lock_for(50ms));
    CHECK(std::chrono::steady_clock::now() - begin >= 50ms);
    std::stop_source stop;
    auto waiting = start_waiting(other, [&] { return theirs.lock(stop.get_token()); });
    stop.request_stop();
    CHECK_FALSE(waiting.get());
    CHECK(redis.hgetall("orders") == Fields{{owner_of(client, orders), "1"}});
    orders.unlock();
    orders.lock(Lease{100ms});
    CHECK(theirs.try_lock_for(20s));
    theirs.unlock();
    orders.unlock();
}

TEST_CASE("invalid delays of a spin lock are refused") {
    RedisServer server;
    Client client{server.url()};
    for (const redlatch::SpinOptions options :
         {redlatch::SpinOptions{0ms, 1ms}, redlatch::SpinOptions{2ms, 1ms}, redlatch::SpinOptions{1ms, 2h}})
        CHECK(code_of([&] { SpinLock lock(client, "orders", options); }) == errc::invalid_argument);
}
