// SPDX-License-Identifier: MIT
// ctest: long
// The watchdog renews holds, stops after a release, and reports lost holds.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::errc;
using redlatch::Event;
using redlatch::Lease;
using redlatch::RLock;
using SteadyTime = std::chrono::steady_clock::time_point;

namespace {

constexpr auto third = short_lease / 3;

ClientOptions logged(EventLog& log, std::chrono::milliseconds timeout = short_lease) {
    ClientOptions options = with_watchdog(timeout);
    options.on_event = log.handler();
    return options;
}

/// A third of it, plus the delay of a busy machine, is still much less than the whole.
constexpr auto long_timeout = short_lease * 3;
constexpr auto next_renewal = long_timeout / 3 + 2500ms;

/// Returns true if the predicate holds all the time.
template <class Predicate>
bool holds_for(std::chrono::milliseconds time, Predicate&& predicate) {
    return !eventually([&] { return !predicate(); }, time, 5ms);
}

}  // namespace

TEST_CASE("a hold lasts for several watchdog timeouts") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    RLock orders{client, "orders"};
    orders.lock();
    const auto valid = orders.valid_until();
    CHECK(holds_for(short_lease * 5 / 2, [&] { return redis.exists("orders"); }));
    CHECK_FALSE(orders.lost().stop_requested());
    CHECK(orders.valid_until() > valid);
    CHECK(orders.valid_until() > std::chrono::steady_clock::now());
    CHECK(orders.hold_count() == 1);
    CHECK(client.stats().renewals >= 3);
    CHECK(client.stats().lost_holds == 0);
    orders.unlock();
    CHECK_FALSE(redis.exists("orders"));
}

TEST_CASE("a hold of several levels needs one renewal, and is renewed until the last level is released") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    RLock orders{client, "orders"};
    for (int i = 0; i < 3; ++i) orders.lock();
    CommandMonitor monitor{server};
    const Stopwatch watch;
    CHECK(holds_for(short_lease, [&] { return client.stats().lost_holds == 0; }));
    const auto periods = watch.elapsed_ms() / third;
    CHECK(monitor.take_total() <= periods + 2);
    orders.unlock();
    orders.unlock();
    CHECK(holds_for(short_lease * 2, [&] { return redis.exists("orders"); }));
    orders.unlock();
    CHECK_FALSE(redis.exists("orders"));
}

TEST_CASE("after unlock() there is no renewal") {
    RedisServer server;
    Client client{server.url(), with_watchdog(short_lease)};
    RLock orders{client, "orders"};
    orders.lock();
    REQUIRE(eventually([&] { return client.stats().renewals >= 1; }, 20s));
    orders.unlock();
    CommandMonitor monitor{server};
    CHECK(holds_for(short_lease, [&] { return client.stats().renewals >= 1; }));
    CHECK(monitor.take_total() == 0);
}

TEST_CASE("a lock that is acquired and released all the time is neither renewed nor lost") {
    RedisServer server;
    EventLog log;
    Client client{server.url(), logged(log)};
    RLock orders{client, "orders"};
    const Stopwatch watch;
    while (watch.elapsed() < short_lease) {
        orders.lock();
        orders.unlock();
    }
    CHECK(client.stats().renewals <= 2);
    CHECK(log.all().empty());
}

TEST_CASE(
    "fault: key of a hold deleted: lost() and an event within a third of the timeout, and unlock() does not throw") {
    RedisServer server;
    RawRedis redis{server};
    EventLog log;
    Client client{server.url(), logged(log, long_timeout)};
    RLock orders{client, "orders"};
    orders.lock();
    const std::stop_token lost = orders.lost();
    std::atomic<int> called = 0;
    const std::stop_callback callback{lost, [&] { ++called; }};
    redis.integer("DEL", "orders");
    const Stopwatch watch;
    REQUIRE(eventually([&] { return lost.stop_requested(); }, 20s));
    CHECK(watch.elapsed() <= next_renewal);
    CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 1 && called == 1; }));
    CHECK(log.all().at(0).name == "orders");
    CHECK_FALSE(log.all().at(0).detail.empty());
    CHECK(client.stats().lost_holds == 1);
    CHECK(orders.lost().stop_requested());
    CHECK(orders.valid_until() <= std::chrono::steady_clock::now());
    CHECK_NOTHROW(orders.unlock());
    CHECK_THROWS_AS(orders.unlock(), redlatch::Error);
    CHECK(log.all().size() == 1);
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("after a loss each lock() allows one unlock() without an exception, and unlock(ec) reports hold_lost") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    RLock orders{client, "orders"};
    for (int i = 0; i < 3; ++i) orders.lock();
    const std::stop_token lost = orders.lost();
    redis.integer("DEL", "orders");
    REQUIRE(eventually([&] { return lost.stop_requested(); }, 20s));
    std::error_code ec;
    orders.unlock();
    orders.unlock(ec);
    CHECK(ec == errc::hold_lost);
    orders.unlock();
    orders.unlock(ec);
    CHECK(ec == errc::not_owner);
}

TEST_CASE("a guard of a lost hold does not throw, whether the loss is known or not") {
    RedisServer server;
    RawRedis redis{server};
    EventLog log;
    Client client{server.url(), logged(log, 30s)};
    RLock orders{client, "orders"};
    {
        const std::lock_guard guard{orders};
        redis.integer("DEL", "orders");  // the next renewal is 10 s away
    }
    CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 1; }));
    {
        const std::lock_guard outer{orders};
        const std::lock_guard inner{orders};
        redis.integer("DEL", "orders");
        redis.integer("HSET", "orders", "somebody:1", 1);
    }
    CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 2; }));
    CHECK(redis.hgetall("orders") == Fields{{"somebody:1", "1"}});
}

TEST_CASE("fault: key of a hold deleted or foreign: no renewal creates a key or prolongs another hold") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    RLock gone{client, "gone"};
    RLock taken{client, "taken"};
    gone.lock();
    taken.lock();
    REQUIRE(eventually([&] { return client.stats().renewals >= 2; }, 20s));
    redis.integer("DEL", "gone", "taken");
    redis.integer("HSET", "taken", "somebody:1", 1);
    ScriptWrites writes{server};
    CHECK(eventually([&] { return client.stats().lost_holds == 2; }, 20s));
    CHECK(holds_for(third * 2, [&] { return !redis.exists("gone"); }));
    CHECK(writes.take().empty());
    CHECK(redis.pttl("taken") == -1);
    gone.unlock();
    taken.unlock();
    CHECK(redis.keys() == Words{"taken"});
    CHECK(redis.hgetall("taken") == Fields{{"somebody:1", "1"}});
}

// Redisson renewed only the thread that had registered first under a name, and dropped one of its levels per period. A
// thread that acquired the lock after another one had lost it three levels deep was not renewed for three periods, and
// lost it.
TEST_CASE("after the loss of a hold of three levels the next thread of the process is renewed") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    RLock orders{client, "orders"};
    for (int i = 0; i < 3; ++i) orders.lock();
    const std::stop_token lost = orders.lost();
    redis.integer("DEL", "orders");
    std::promise<void> end;
    std::string next;
    std::atomic<bool> holds = false;
    auto holder = start([&] {
        orders.lock();
        next = owner_of(client, orders);
        holds = true;
        end.get_future().wait();
        const bool still = orders.is_held() && !orders.lost().stop_requested();
        orders.unlock();
        return still;
    });
    CHECK(eventually([&] { return redis.exists("orders") && lost.stop_requested(); }, 20s));
    CHECK(holds_for(short_lease * 5 / 2, [&] { return redis.exists("orders"); }));
    for (int i = 0; i < 3; ++i) orders.unlock();
    CHECK(eventually([&] { return holds.load(); }));
    CHECK(redis.hgetall("orders") == Fields{{next, "1"}});
    CHECK(holds_for(short_lease, [&] { return redis.exists("orders"); }));
    end.set_value();
    CHECK(holder.get());
    CHECK(client.stats().lost_holds == 1);
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("a thread that lost its hold and acquired the lock again is renewed") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    RLock orders{client, "orders"};
    orders.lock();
    const std::stop_token lost = orders.lost();
    redis.integer("DEL", "orders");
    REQUIRE(eventually([&] { return lost.stop_requested(); }, 20s));
    orders.lock();
    CHECK(redis.hgetall("orders") == Fields{{owner_of(client, orders), "1"}});
    CHECK_FALSE(orders.lost().stop_requested());
    CHECK(holds_for(short_lease * 2, [&] { return redis.exists("orders"); }));
    orders.unlock();
    CHECK_FALSE(redis.exists("orders"));
    CHECK_NOTHROW(orders.unlock());  // for the first lock()
}

TEST_CASE("a reentry that finds the hold gone acquires the lock again") {
    RedisServer server;
    RawRedis redis{server};
    EventLog log;
    Client client{server.url(), logged(log, 30s)};
    RLock orders{client, "orders"};
    orders.lock();
    const std::stop_token lost = orders.lost();
    redis.integer("DEL", "orders");
    orders.lock();
    CHECK(eventually([&] { return lost.stop_requested(); }));
    CHECK(redis.hgetall("orders") == Fields{{owner_of(client, orders), "1"}});
    CHECK_FALSE(orders.lost().stop_requested());
    orders.unlock();
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
    CHECK_NOTHROW(orders.unlock());
    CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 1; }));
}

TEST_CASE("the end of a lease is reported before another client can enter") {
    RedisServer server;
    Client client{server.url()};
    Client other{server.url()};
    RLock orders{client, "orders"};
    RLock theirs{other, "orders"};
    constexpr int rounds = 30;
    int in_time = 0;
    for (int round = 0; round < rounds && in_time < 2; ++round) {
        orders.lock(Lease{300ms});
        const SteadyTime valid = orders.valid_until();
        std::promise<SteadyTime> told;
        const std::stop_callback callback{orders.lost(), [&] { told.set_value(std::chrono::steady_clock::now()); }};
        auto waiter = start([&] {
            theirs.lock();
            const auto entered = std::chrono::steady_clock::now();
            theirs.unlock();
            return entered;
        });
        REQUIRE(ready(waiter));
        auto telling = told.get_future();
        REQUIRE(ready(telling));
        const SteadyTime entered = waiter.get();
        CHECK(valid < entered);
        if (telling.get() < entered) ++in_time;
        orders.unlock();
    }
    // A thread makes the report, and may be late on a busy machine. valid_until() is never late.
    CHECK(in_time >= 2);
}

TEST_CASE("a hold is lost for its owner when the server does not reply for as long as the lease lasts") {
    RedisServer server;
    EventLog log;
    ClientOptions options = logged(log);
    options.command_timeout = short_lease * 10;
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    orders.lock();
    const std::stop_token lost = orders.lost();
    server.stop();
    const SteadyTime valid = orders.valid_until();
    CHECK(eventually([&] { return lost.stop_requested(); }, 30s));
    const auto told = std::chrono::steady_clock::now();
    CHECK(told <= std::max(valid, orders.valid_until()) + 5s);
    CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 1; }));
    server.cont();
    CHECK_NOTHROW(orders.unlock());
    // Renewals that waited in the server's socket must not leave a hold behind that has no owner.
    RawRedis redis{server};
    CHECK(eventually([&] { return !redis.exists("orders"); }, short_lease * 3));
    CHECK(orders.try_lock_for(20s));
    orders.unlock();
}

TEST_CASE("the next renewal detects a force_unlock() of another client") {
    RedisServer server;
    Client client{server.url(), with_watchdog(long_timeout)};
    Client other{server.url()};
    RLock orders{client, "orders"};
    RLock theirs{other, "orders"};
    orders.lock();
    const std::stop_token lost = orders.lost();
    CHECK(theirs.force_unlock());
    const Stopwatch watch;
    CHECK(eventually([&] { return lost.stop_requested(); }, 20s));
    CHECK(watch.elapsed() <= next_renewal);
    CHECK_NOTHROW(orders.unlock());
}

TEST_CASE("fault: event handler throws: renewals continue, and the handler may use the library") {
    RedisServer server;
    RawRedis redis{server};
    std::atomic<int> calls = 0;
    HiredisRLock* used = nullptr;
    ClientOptions options = with_watchdog(short_lease);
    options.on_event = [&](const Event&) {
        if (++calls == 1) throw std::runtime_error("from a handler");
        const std::lock_guard guard{*used};
        throw 42;
    };
    Client client{server.url(), options};
    RLock in_handler{client, "in handler"};
    used = &in_handler;
    RLock kept{client, "kept"};
    kept.lock();
    RLock orders{client, "orders"};
    for (int round = 1; round <= 2; ++round) {
        orders.lock();
        const std::stop_token lost = orders.lost();
        redis.integer("DEL", "orders");
        CHECK(eventually([&] { return lost.stop_requested() && calls == round; }, 20s));
        orders.unlock();
    }
    CHECK(eventually([&] { return !redis.exists("in handler"); }));
    CHECK(holds_for(short_lease * 3 / 2, [&] { return redis.exists("kept"); }));
    kept.unlock();
}

TEST_CASE("fault: event handler blocks: neither renewals nor wake-ups are delayed") {
    RedisServer server;
    RawRedis redis{server};
    std::promise<void> end;
    std::atomic<bool> inside = false;
    ClientOptions options = with_watchdog(short_lease);
    options.on_event = [&, may_end = end.get_future().share()](const Event&) {
        inside = true;
        may_end.wait();
    };
    Client client{server.url(), options};
    Client other{server.url()};
    RLock kept{client, "kept"};
    kept.lock();
    RLock orders{client, "orders"};
    orders.lock();
    redis.integer("DEL", "orders");
    CHECK(eventually([&] { return inside.load(); }, 20s));
    orders.unlock();
    CHECK(holds_for(short_lease * 3 / 2, [&] { return redis.exists("kept"); }));
    RLock theirs{other, "orders"};
    theirs.lock();
    const auto waits = client.stats().waits;
    auto waiter = start([&] {
        orders.lock();
        orders.unlock();
    });
    REQUIRE(has_waiters(client, waits + 1));
    theirs.unlock();
    CHECK(ready(waiter));
    end.set_value();
    kept.unlock();
}

TEST_CASE("a stop callback on lost() may use the lock") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    RLock orders{client, "orders"};
    orders.lock();
    std::promise<int> count;
    const std::stop_callback callback{orders.lost(), [&] { count.set_value(orders.hold_count()); }};
    redis.integer("DEL", "orders");
    auto counted = count.get_future();
    CHECK(ready(counted));
    orders.unlock();
}
