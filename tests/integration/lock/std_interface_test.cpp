// SPDX-License-Identifier: MIT
// Every kind of lock with the standard library: guards, algorithms, condition variables, and code written for
// std::mutex.
// ctest: in_memory
#include <doctest/doctest.h>
#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <concepts>
#include <condition_variable>
#include <cstdint>
#include <future>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/lockable.hpp"
#include "support/plain_counter.hpp"

#include "support/any_server.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::FairLock;
using redlatch::FencedLock;
using redlatch::MultiLock;
using redlatch::NonReentrantFairLock;
using redlatch::NonReentrantLock;
using redlatch::ReadWriteLock;
using redlatch::RedLock;
using redlatch::RLock;
using redlatch::SpinLock;

namespace {

using ReadSide = ReadWriteLock::ReadLock;
using WriteSide = ReadWriteLock::WriteLock;

// Any duration and any clock, and no other guarantee than a mutex gives.
template <class L>
constexpr bool like_a_timed_mutex = TimedLockable<L> && !std::copy_constructible<L> && !std::move_constructible<L> &&
                                    !std::is_copy_assignable_v<L> && !std::is_move_assignable_v<L>;
static_assert(like_a_timed_mutex<std::recursive_timed_mutex>);
static_assert(like_a_timed_mutex<RLock>);
static_assert(like_a_timed_mutex<FairLock>);
static_assert(like_a_timed_mutex<FencedLock>);
static_assert(like_a_timed_mutex<SpinLock>);
static_assert(like_a_timed_mutex<NonReentrantLock> && like_a_timed_mutex<NonReentrantFairLock>);
static_assert(like_a_timed_mutex<ReadWriteLock>);
static_assert(like_a_timed_mutex<ReadSide> && like_a_timed_mutex<WriteSide>);
static_assert(like_a_timed_mutex<MultiLock> && like_a_timed_mutex<RedLock>);

static_assert(SharedTimedLockable<std::shared_timed_mutex>);
static_assert(SharedTimedLockable<ReadWriteLock>);
static_assert(!SharedTimedLockable<RLock>);

template <class L>
constexpr bool is_reentrant = !std::same_as<L, NonReentrantLock> && !std::same_as<L, NonReentrantFairLock>;

// A lock of some kind, constructed as users construct it.
template <class L>
struct Made {
    explicit Made(HiredisClient& client) : lock(client, "orders") {}
    L& operator*() { return lock; }
    L lock;
};

template <>
struct Made<WriteSide> {
    explicit Made(HiredisClient& client) : whole(client, "orders") {}
    WriteSide& operator*() { return whole.write_lock(); }
    ReadWriteLock whole;
};

// Code that is unaware of redlatch: threads that share a stock under a mutex.
template <class Mutex>
int sell(Mutex& mutex, int stock) {
    PlainCounter sold;
    const auto seller = [&] {
        for (;;) {
            std::unique_lock guard{mutex, std::try_to_lock};
            if (!guard) guard.lock();
            if (stock == 0) return;
            --stock;
            sold.add_one();
        }
    };
    std::vector<std::jthread> sellers;
    for (int i = 0; i < 4; ++i) sellers.emplace_back(seller);
    sellers.clear();
    return static_cast<int>(sold.value());
}

// Readers together and a writer alone: two readers meet, and no reader sees half of a pair.
template <class Mutex>
bool shares(Mutex& mutex) {
    volatile int left = 0, right = 0;
    std::atomic<int> readers = 0;
    std::atomic<bool> whole = true;
    const auto read = [&] {
        {
            const std::shared_lock guard{mutex};
            ++readers;
            if (!eventually([&] { return readers == 2; }, 20s)) whole = false;
        }
        for (int i = 0; i < 20; ++i) {
            const std::shared_lock guard{mutex};
            if (left != right) whole = false;
        }
    };
    const auto write = [&] {
        for (int i = 1; i <= 20; ++i) {
            const std::scoped_lock guard{mutex};
            left = i;
            std::this_thread::yield();
            right = i;
        }
    };
    std::jthread one(read), two(read);
    std::jthread writer(write);
    one.join();
    two.join();
    writer.join();
    return whole;
}

}  // namespace

TEST_CASE_TEMPLATE("guards of the standard library hold each kind of lock and release it", L, RLock, FairLock,
                   FencedLock, SpinLock, ReadWriteLock, WriteSide, NonReentrantLock, NonReentrantFairLock) {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    Made<L> ours{client};
    Made<L> theirs{other};
    L& lock = *ours;
    using Guard = std::unique_lock<L>;
    {
        const std::lock_guard guard{lock};
        if constexpr (is_reentrant<L>) {
            const std::lock_guard inner{lock};
            CHECK(lock.hold_count() == 2);
        }
        CHECK_FALSE(elsewhere([&] { return Guard(*theirs, std::try_to_lock).owns_lock(); }));
        CHECK_FALSE(elsewhere([&] { return Guard(*theirs, 20ms).owns_lock(); }));
        CHECK_FALSE(elsewhere([&] { return Guard(*theirs, std::chrono::system_clock::now() + 20ms).owns_lock(); }));
    }
    // The other client may have been granted the lock in the instant in which it left.
    CHECK(eventually([&] { return !lock.is_locked(); }, 20s));
    CHECK_THROWS_AS(
        [&] {
            const std::scoped_lock guard{lock};
            throw std::runtime_error("inside");
        }(),
        std::runtime_error);
    CHECK_FALSE(lock.is_locked());
    {
        Guard guard{lock};
        CHECK(lock.is_held());
        guard.unlock();
        CHECK_FALSE(lock.is_locked());
        CHECK(guard.try_lock());
        guard.unlock();
        CHECK(guard.try_lock_for(20s));
        guard.unlock();
        CHECK(guard.try_lock_until(std::chrono::system_clock::now() + 20s));
        const Guard moved = std::move(guard);
        CHECK(lock.is_held());
    }
    lock.lock();
    { const Guard adopted{lock, std::adopt_lock}; }
    const Words left = std::same_as<L, FencedLock> ? Words{"redisson_lock_token:{orders}"} : Words{};
    CHECK(eventually([&] { return redis.keys() == left; }, 20s));
}

TEST_CASE("std::shared_lock works in all its forms") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    ReadWriteLock orders{client, "orders"};
    ReadWriteLock theirs{other, "orders"};
    using Reading = std::shared_lock<ReadWriteLock>;
    {
        Reading reading{orders};
        CHECK(elsewhere([&] { return Reading(theirs, std::try_to_lock).owns_lock(); }));
        CHECK_FALSE(elsewhere([&] { return std::unique_lock(theirs, std::try_to_lock).owns_lock(); }));
        reading.unlock();
        CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
        CHECK(reading.try_lock());
        Reading moved = std::move(reading);
        CHECK(orders.read_lock().is_held());
    }
    {
        const std::unique_lock writing{theirs};
        CHECK_FALSE(Reading(orders, std::try_to_lock).owns_lock());
        CHECK_FALSE(Reading(orders, 20ms).owns_lock());
        CHECK_FALSE(Reading(orders, std::chrono::system_clock::now() + 20ms).owns_lock());
    }
    CHECK(Reading(orders, 20s).owns_lock());
    CHECK(Reading(orders, std::chrono::system_clock::now() + 20s).owns_lock());
    orders.lock_shared();
    { const Reading adopted{orders, std::adopt_lock}; }
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
    // The read side alone is a lock like any other.
    { const std::lock_guard reading{orders.read_lock()}; }
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE_TEMPLATE("std::condition_variable_any waits on each kind of lock", L, RLock, FairLock, FencedLock, SpinLock,
                   ReadWriteLock, WriteSide, NonReentrantLock, NonReentrantFairLock) {
    RedisServer server;
    Client client{server.url()};
    Made<L> orders{client};
    std::condition_variable_any changed;
    int stock = 0;
    constexpr int times = 10;
    auto buyer = start([&] {
        std::unique_lock guard{*orders};
        for (int bought = 0; bought < times; ++bought) {
            if (!changed.wait_for(guard, 20s, [&] { return stock > 0; })) return false;
            --stock;
            changed.notify_all();
        }
        return (*orders).hold_count() == 1;
    });
    bool sold = true;
    for (int i = 0; i < times && sold; ++i) {
        std::unique_lock guard{*orders};
        sold = changed.wait_for(guard, 20s, [&] { return stock == 0; });
        ++stock;
        changed.notify_all();
    }
    CHECK(sold);
    REQUIRE(ready(buyer, 30s));
    CHECK(buyer.get());
    std::unique_lock guard{*orders};
    CHECK_FALSE(changed.wait_for(guard, 20ms, [&] { return stock > 0; }));
    CHECK((*orders).is_held());
}

TEST_CASE("condition_variable_any lets several readers wait for a writer's change") {
    RedisServer server;
    Client client{server.url()};
    ReadWriteLock orders{client, "orders"};
    std::condition_variable_any changed;
    bool open = false;
    const auto reader = [&] {
        std::shared_lock guard{orders};
        return changed.wait_for(guard, 20s, [&] { return open; }) && orders.read_lock().is_held();
    };
    auto one = start(reader);
    auto two = start(reader);
    {
        const std::unique_lock guard{orders};
        open = true;
    }
    changed.notify_all();
    CHECK(one.get());
    CHECK(two.get());
    CHECK(eventually([&] { return RawRedis{server}.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("scoped_lock acquires locks of every kind, in any order, without a deadlock") {
    RedisServer server;
    struct Locks {
        explicit Locks(RedisServer& server) : client(server.url(), with_watchdog(240s)) {}
        HiredisClient client;
        RLock plain{client, "plain"};
        FairLock fair{client, "fair"};
        FencedLock fenced{client, "fenced"};
        // Much shorter pauses than usual, because the other locks are soon free.
        SpinLock spin{client, "spin", {.initial_delay = 1ms, .max_delay = 2ms}};
        ReadWriteLock book{client, "book"};
        ReadWriteLock prices{client, "prices"};
        RLock left{client, "left"};
        RLock right{client, "right"};
        MultiLock both{left, right};
    };
    Locks near{server};
    Locks far{server};
    PlainCounter counter;
    constexpr std::uint64_t times = 10;
    const auto repeatedly = [&](auto&... locks) {
        return start([&] {
            for (std::uint64_t i = 0; i < times; ++i) {
                const std::scoped_lock all{locks...};
                counter.add_one_unseen();
            }
        });
    };
    auto& n = near;
    auto& f = far;
    std::vector<std::future<void>> threads;
    threads.push_back(repeatedly(n.plain, n.fair, n.fenced, n.spin, n.book, n.prices.read_lock(), n.both));
    threads.push_back(repeatedly(f.right, f.left, f.prices.read_lock(), f.book, f.spin, f.fenced, f.fair, f.plain));
    threads.push_back(repeatedly(n.book.write_lock(), n.both, n.prices, n.fenced, n.plain, n.spin, n.fair));
    threads.push_back(repeatedly(f.fair, f.spin, f.prices.read_lock(), f.plain, f.book, f.both, f.fenced));
    // Much less than a lease, so no thread waited for the end of one.
    for (auto& thread : threads) REQUIRE(ready(thread, 60s));
    CHECK(counter.value() == times * threads.size());
    CHECK(eventually([&] { return RawRedis{server}.keys() == Words{"redisson_lock_token:{fenced}"}; }, 20s));
}

TEST_CASE("std::try_lock returns the index of the lock that failed, and keeps none of the others") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    RLock plain{client, "plain"};
    FairLock fair{client, "fair"};
    ReadWriteLock book{client, "book"};
    CHECK(std::try_lock(plain, fair, book) == -1);
    CHECK(redis.keys().size() == 3);
    plain.unlock();
    fair.unlock();
    book.unlock();
    {
        FairLock same_fair{other, "fair"};
        const std::lock_guard held{same_fair};
        CHECK(std::try_lock(plain, fair, book) == 1);
        CHECK(redis.keys() == Words{"fair"});
    }
    ReadWriteLock same_book{other, "book"};
    const std::shared_lock reading{same_book};
    CHECK(std::try_lock(plain, fair, book) == 2);
    CHECK(std::try_lock(book, plain, fair) == 0);
    CHECK(std::try_lock(plain, book.read_lock(), fair) == -1);
    plain.unlock();
    book.unlock_shared();
    fair.unlock();
    CHECK_FALSE(plain.is_locked());
    CHECK_FALSE(fair.is_locked());
}

TEST_CASE("code written for std::mutex and std::shared_mutex works with each kind") {
    std::mutex local;
    CHECK(sell(local, 40) == 40);
    std::shared_mutex local_shared;
    CHECK(shares(local_shared));
    RedisServer server;
    Client client{server.url()};
    RLock plain{client, "plain"};
    CHECK(sell(plain, 40) == 40);
    FairLock fair{client, "fair"};
    CHECK(sell(fair, 40) == 40);
    FencedLock fenced{client, "fenced"};
    CHECK(sell(fenced, 40) == 40);
    SpinLock spin{client, "spin"};
    CHECK(sell(spin, 40) == 40);
    NonReentrantLock strict{client, "strict"};
    CHECK(sell(strict, 40) == 40);
    NonReentrantFairLock strict_and_fair{client, "strict and fair"};
    CHECK(sell(strict_and_fair, 40) == 40);
    ReadWriteLock book{client, "book"};
    CHECK(sell(book, 40) == 40);
    CHECK(shares(book));
}
