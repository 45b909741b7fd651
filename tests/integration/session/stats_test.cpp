// SPDX-License-Identifier: MIT
// Client::stats(): what is held and waited for now, and for how long.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <system_error>

#include "integration/rlock_helpers.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using namespace redlatch;

TEST_CASE("stats() shows the holds of threads and objects, each once, from the first level to the last") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock a{client, "a"}, b{client, "b"};
    ReadWriteLock shared{client, "shared"};
    Mutex mutex{client, "mutex"};
    MultiLock both{a, b};
    const auto held = [&] { return client.stats().held; };
    CHECK(held() == 0);
    a.lock();
    a.lock();
    CHECK(held() == 1);
    Hold reader = shared.hold_shared();
    Hold second = shared.hold_shared();
    Hold again = second.again();
    CHECK(held() == 3);
    CHECK(mutex.try_lock());
    CHECK(held() == 4);
    a.unlock();
    CHECK(held() == 4);
    a.unlock();
    CHECK(held() == 3);
    both.lock();
    CHECK(held() == 5);
    both.unlock();
    again = Hold();
    second = Hold();
    CHECK_FALSE(reader.unlock());
    mutex.unlock();
    CHECK(eventually([&] { return held() == 0; }));
    CHECK(client.stats().hold_times.total() == 6);
}

TEST_CASE("a hold that ends in any other way is held no longer") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    RLock expires{client, "expires"}, deleted{client, "deleted"}, forced{client, "forced"}, given{client, "given"};
    deleted.lock();
    forced.lock();
    CHECK(client.stats().held == 2);
    CHECK(forced.force_unlock());
    CHECK(client.stats().held == 1);
    expires.lock(Lease{50ms});
    redis.integer("DEL", "deleted");
    CHECK(eventually([&] { return client.stats().held == 0; }, 20s));
    given.lock();
    CHECK(client.release_all() == 1);
    CHECK(client.stats().held == 0);
    CHECK(client.stats().hold_times.total() == 4);
    std::error_code ec;
    for (RLock* lock : {&expires, &deleted, &forced, &given}) lock->unlock(ec);
    CHECK(client.stats().hold_times.total() == 4);
}

TEST_CASE("a hand-over inside the process ends one hold and begins another") {
    RedisServer server;
    Client client{server.url()};
    RLock orders{client, "orders"};
    handed_over(client, orders, [&] { return orders.try_lock_for(20s) ? (orders.unlock(), true) : false; });
    CHECK(client.stats().held == 0);
    CHECK(client.stats().hold_times.total() == client.stats().acquisitions);
}

TEST_CASE("stats() shows who waits, and afterwards for how long, whether served or not") {
    RedisServer server;
    Client client{server.url()};
    RLock lock{client, "lock"};
    FairLock fair{client, "fair"};
    Semaphore seats{client, "seats"};
    CountDownLatch gate{client, "gate"};
    CHECK(seats.try_set_permits(0));
    CHECK(gate.try_set_count(1));
    lock.lock();
    fair.lock();
    auto one = start_waiting(client, [&] { return lock.try_lock_for(20s) ? (lock.unlock(), true) : false; });
    auto two = start_waiting(client, [&] { return fair.try_lock_for(20s) ? (fair.unlock(), true) : false; });
    auto three = start_waiting(client, [&] { return seats.try_acquire_for(20s); });
    auto four = start_waiting(client, [&] { return gate.wait_for(20s); });
    CHECK(client.stats().waiting == 4);
    CHECK(client.stats().wait_times.total() == 0);
    std::this_thread::sleep_for(100ms);
    lock.unlock();
    fair.unlock();
    seats.release();
    gate.count_down();
    CHECK((one.get() && two.get() && three.get() && four.get()));
    CHECK(client.stats().waiting == 0);
    CHECK(client.stats().wait_times.total() == 4);
    CHECK(client.stats().wait_times.quantile(0) > 100ms);

    lock.lock();
    CHECK_FALSE(elsewhere([&] { return lock.try_lock_for(30ms); }));
    CHECK(client.stats().waiting == 0);
    CHECK(client.stats().wait_times.total() == 5);
    std::this_thread::sleep_for(50ms);
    lock.unlock();
    CHECK(client.stats().hold_times.quantile(1) > 80ms);
}
