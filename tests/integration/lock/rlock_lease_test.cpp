// SPDX-License-Identifier: MIT
// Holds with a lease of their own, alone and mixed with those under the watchdog.
// ctest: in_memory
#include <doctest/doctest.h>

#include <chrono>
#include <future>
#include <stop_token>
#include <string>
#include <vector>

#include "integration/rlock_helpers.hpp"

#include "support/any_server.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::errc;
using redlatch::Lease;
using redlatch::RLock;

namespace {

bool outlives(RawRedis& redis, const std::string& key, std::chrono::milliseconds time) {
    return !eventually([&] { return !redis.exists(key); }, time, 5ms);
}

}  // namespace

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("a hold with a lease expires by itself and is never renewed") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease / 3)};
    RLock orders{client, "orders"};
    const Stopwatch watch;
    orders.lock(Lease{short_lease});
    const std::stop_token lost = orders.lost();
    ScriptWrites writes{server};
    long long before = short_lease.count();
    CHECK(eventually(
        [&] {
            const long long now = redis.pttl("orders");
            CHECK(now <= before);
            before = now;
            return now < 0;
        },
        20s));
    CHECK(watch.elapsed() >= short_lease - 1ms);
    CHECK(writes.take().empty());
    CHECK(client.stats().renewals == 0);
    CHECK(eventually([&] { return lost.stop_requested(); }));
    CHECK_FALSE(orders.is_held());
    CHECK(elsewhere([&] { return orders.try_lock(Lease{60s}); }));
    std::error_code ec;
    orders.unlock(ec);
    CHECK(ec == errc::hold_lost);
    CHECK(redis.exists("orders"));  // the key belongs to the other thread now
}

TEST_CASE("leases are rounded down to milliseconds") {
    RedisServer server;
    ScriptWrites writes{server};
    Client client{server.url()};
    const auto lease_of = [&](Lease lease) {
        RLock orders{client, "orders"};
        std::error_code ec;
        orders.lock(lease);
        orders.unlock(ec);
        return writes.take().at(1).at(2);
    };
    CHECK(lease_of(Lease{5999900us}) == "5999");
    CHECK(lease_of(Lease{std::chrono::duration<double>{7.0009}}) == "7000");
    CHECK(lease_of(Lease{2h}) == "7200000");
    CHECK(lease_of(Lease{std::chrono::duration<int, std::ratio<86400>>{36500}}) == "3153600000000");
}
#endif

TEST_CASE("reentry with a shorter lease never shortens the hold, nor does releasing that level") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    orders.lock(Lease{600s});
    const auto valid = orders.valid_until();
    orders.lock(Lease{1s});
    CHECK(redis.pttl("orders") > 500'000);
    CHECK(orders.valid_until() == valid);
    CHECK(orders.try_lock_for(20s, Lease{2s}));
    CHECK(redis.pttl("orders") > 500'000);
    orders.lock();
    CHECK(redis.pttl("orders") > 500'000);
    orders.unlock();
    CHECK(redis.pttl("orders") > 500'000);
    orders.unlock();
    CHECK(redis.pttl("orders") > 500'000);
    orders.unlock();
    CHECK(redis.pttl("orders") > 500'000);
    CHECK(orders.valid_until() >= valid);
    orders.unlock();
    CHECK_FALSE(redis.exists("orders"));
}

TEST_CASE("reentry with a longer lease prolongs the hold") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    orders.lock(Lease{10s});
    const auto valid = orders.valid_until();
    orders.lock(Lease{600s});
    CHECK(redis.pttl("orders") > 500'000);
    CHECK(orders.valid_until() > valid + 500s);
    orders.unlock();
    orders.unlock();
}

TEST_CASE("lock(), lock(lease), unlock(): the watchdog keeps the remaining hold") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    RLock orders{client, "orders"};
    orders.lock();
    orders.lock(Lease{short_lease / 10});
    CHECK(redis.pttl("orders") > short_lease.count() / 4);
    orders.unlock();
    CHECK(outlives(redis, "orders", short_lease * 2));
    CHECK_FALSE(orders.lost().stop_requested());
    CHECK(orders.hold_count() == 1);
    orders.unlock();
    CHECK_FALSE(redis.exists("orders"));
    CHECK(client.stats().lost_holds == 0);
}

TEST_CASE("a hold with a lease that is re-entered without one is renewed until that level is released") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    RLock orders{client, "orders"};
    orders.lock(Lease{short_lease});
    orders.lock();
    CHECK(outlives(redis, "orders", short_lease * 2));
    CHECK_FALSE(orders.lost().stop_requested());
    orders.unlock();
    CHECK(orders.hold_count() == 1);
    const std::stop_token lost = orders.lost();
    const auto renewals = client.stats().renewals;
    CHECK(eventually([&] { return !redis.exists("orders"); }, short_lease + 10s));
    CHECK(client.stats().renewals <= renewals + 1);  // one may have been in flight
    CHECK(eventually([&] { return lost.stop_requested(); }));
    orders.unlock();
}

TEST_CASE("lock(), lock(longer lease): renewals never shorten it") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    RLock orders{client, "orders"};
    orders.lock();
    orders.lock(Lease{600s});
    REQUIRE(eventually([&] { return client.stats().renewals >= 2; }, 20s));
    CHECK(redis.pttl("orders") > 500'000);
    orders.unlock();
    REQUIRE(eventually([&] { return client.stats().renewals >= 4; }, 20s));
    CHECK(redis.pttl("orders") > 500'000);
    orders.unlock();
    CHECK_FALSE(redis.exists("orders"));
}

TEST_CASE("threads with different leases on one object do not influence each other") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(20s)};
    RLock orders{client, "orders"};
    orders.lock(Lease{600s});
    orders.lock(Lease{600s});
    // Failed tries leave nothing of their lease behind.
    elsewhere([&] {
        CHECK_FALSE(orders.try_lock(Lease{1s}));
        CHECK_FALSE(orders.try_lock());
        CHECK_FALSE(orders.try_lock_for(10ms, Lease{2s}));
    });
    orders.unlock();
    CHECK(redis.pttl("orders") > 500'000);
    orders.unlock();
    const auto lease_elsewhere = [&](auto... lease) {
        return elsewhere([&] {
            orders.lock(lease...);
            const long long pttl = redis.pttl("orders");
            orders.unlock();
            return pttl;
        });
    };
    CHECK(lease_elsewhere() <= 20'000);
    CHECK(lease_elsewhere() > 5'000);
    CHECK(lease_elsewhere(Lease{5s}) <= 5'000);
    CHECK(lease_elsewhere(Lease{100s}) > 50'000);
    CHECK(lease_elsewhere() <= 20'000);
}

TEST_CASE("a hold handed over within the process has the lease of its new owner") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    RLock orders{client, "orders"};
    const auto ttls = [&](auto... lease) {
        return handed_over(client, orders, [&] {
            orders.lock(lease...);
            const long long first = redis.pttl("orders");
            const auto renewals = client.stats().renewals;
            // A hold of another name shows when renewals have happened.
            RLock clock{client, "clock"};
            clock.lock();
            eventually([&] { return client.stats().renewals >= renewals + 3; }, 20s);
            const long long later = redis.pttl("orders");
            clock.unlock();
            orders.unlock();
            return std::pair{first, later};
        });
    };
    const auto [leased, leased_later] = ttls(Lease{600s});
    CHECK(leased > 500'000);
    CHECK(leased_later < leased);
    CHECK(leased_later > 500'000);
    const auto [watched, watched_later] = ttls();
    CHECK(watched <= short_lease.count());
    CHECK(watched_later <= short_lease.count());
    CHECK(watched_later > 0);
}

// A waiter in another process knew the lease of the first holder, and would have slept until its end.
TEST_CASE("a hold handed over with a shorter lease delays others no longer than that") {
    RedisServer server;
    const auto waits_out = [&](auto& lock, Client& client, auto& others, Client& other_client) {
        for (int round = 0; round < 100; ++round) {
            const auto handoffs = client.stats().handoffs;
            lock.lock(Lease{600s});
            auto successor = start_waiting(client, [&] {
                lock.lock(Lease{100ms});
                // Its lease expires, without a message.
                eventually([&] { return lock.lost().stop_requested(); }, 20s);
                lock.unlock();
            });
            auto other = start_waiting(other_client, [&] {
                const bool held = others.try_lock_for(20s);
                if (held) others.unlock();
                return held;
            });
            lock.unlock();
            const bool in_time = other.get();
            successor.get();
            if (!in_time || client.stats().handoffs > handoffs) return in_time;
        }
        return false;
    };
    Client one{server.url()}, two{server.url()};
    RLock mine{one, "orders"}, yours{two, "orders"};
    CHECK(waits_out(mine, one, yours, two));
    redlatch::FencedLock my_fenced{one, "fenced"}, your_fenced{two, "fenced"};
    CHECK(waits_out(my_fenced, one, your_fenced, two));
}

TEST_CASE("an expired lease lets the next client in, and a late unlock() does not harm it") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    RLock orders{client, "orders"};
    RLock theirs{other, "orders"};
    orders.lock(Lease{200ms});
    const Stopwatch watch;
    theirs.lock();  // the server knows when the lease ends; no message comes
    CHECK(watch.elapsed() < patient(5s));
    std::error_code ec;
    orders.unlock(ec);
    CHECK(ec == errc::hold_lost);
    CHECK(redis.hgetall("orders") == Fields{{owner_of(other, theirs), "1"}});
    theirs.unlock();
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("a thread whose lease expired acquires the lock again, and each unlock() belongs to its lock()") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    orders.lock(Lease{60ms});
    REQUIRE(eventually([&] { return orders.lost().stop_requested() && !redis.exists("orders"); }));
    orders.lock(Lease{600s});
    CHECK(redis.hgetall("orders") == Fields{{owner_of(client, orders), "1"}});
    CHECK(redis.pttl("orders") > 500'000);
    orders.unlock();
    CHECK_FALSE(redis.exists("orders"));
    std::error_code ec;
    orders.unlock(ec);
    CHECK(ec == errc::hold_lost);  // that of the first lock()
    orders.unlock(ec);
    CHECK(ec == errc::not_owner);
}
