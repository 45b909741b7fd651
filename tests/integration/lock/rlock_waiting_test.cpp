// SPDX-License-Identifier: MIT
// Waiting for another holder: the order of service, timing, and waiters that give up.
// ctest: in_memory
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <future>
#include <mutex>
#include <random>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"
#include "support/plain_counter.hpp"
#include "support/process.hpp"
#include "support/proxy.hpp"
#include "support/shared_memory.hpp"

#include "support/any_server.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::FairLock;
using redlatch::Lease;
using redlatch::RLock;

namespace {

/// Shared by this process and a child that holds or wants the lock.
struct Shared {
    std::atomic<bool> entered = false;
    std::atomic<bool> may_leave = false;
    std::atomic<int> turns = 0;
    std::atomic<long long> here = 0;   // acquisitions of this process
    std::atomic<long long> usual = 0;  // acquisitions here during one wait of the child, at the median
    std::atomic<bool> done = false;
    PlainCounter counter;
};

const Role holder{"hold a lock", [](std::span<const std::string> args) {
                      auto shared = SharedMemory<Shared>::open(args[1]);
                      Client client{args[0]};
                      RLock lock{client, "orders"};
                      lock.lock();
                      shared->entered = true;
                      const bool told = eventually([&] { return shared->may_leave.load(); }, 60s);
                      lock.unlock();
                      return told ? 0 : 1;
                  }};

const Role visitor{"take a lock now and then", [](std::span<const std::string> args) {
                       auto shared = SharedMemory<Shared>::open(args[1]);
                       Client client{args[0]};
                       RLock lock{client, "orders"};
                       std::vector<long long> meanwhile;
                       for (int turn = 0; turn < 20; ++turn) {
                           const long long before = shared->here;
                           lock.lock();
                           meanwhile.push_back(shared->here - before);
                           shared->counter.add_one_unseen();
                           lock.unlock();
                           ++shared->turns;
                       }
                       std::sort(meanwhile.begin(), meanwhile.end());
                       shared->usual = meanwhile[10];
                       shared->done = true;
                       return 0;
                   }};

[[maybe_unused]] constexpr int rounds = 5;

/// Returns true if there is another round. The best of some rounds must be in time, because a busy machine may delay
/// the others: all of the first ones at times.
[[maybe_unused]] bool goes_on(int round, bool in_time, const Stopwatch& since) {
    return round < rounds || (!in_time && since.within(30s));
}

}  // namespace

TEST_CASE("a second thread of one client waits until the first releases the lock") {
    RedisServer server;
    Client client{server.url()};
    RLock orders{client, "orders"};
    PlainCounter counter;
    orders.lock();
    auto second = start([&] {
        const std::lock_guard guard{orders};
        counter.add_one();
        return counter.value();
    });
    REQUIRE(has_waiters(client, 1));
    CHECK_FALSE(ready(second, 100ms));
    counter.add_one(1ms);
    orders.unlock();
    CHECK(second.get() == 2);
}

TEST_CASE("a second client waits until the first releases the lock") {
    RedisServer server;
    Client client{server.url()};
    Client other{server.url()};
    RLock orders{client, "orders"};
    RLock theirs{other, "orders"};
    orders.lock();
    orders.lock();
    auto second = start([&] { return theirs.lock(), theirs.unlock(), true; });
    REQUIRE(has_waiters(other, 1));
    CHECK_FALSE(ready(second, 100ms));
    orders.unlock();
    CHECK_FALSE(ready(second, 100ms));  // one level is left
    orders.unlock();
    CHECK(ready(second));
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("a second process waits until the first releases the lock") {
    RedisServer server;
    TempDir dir;
    auto shared = SharedMemory<Shared>::create(dir.file("shared"));
    ChildProcess child = spawn_self("hold a lock", {server.url(), dir.file("shared")});
    REQUIRE(eventually([&] { return shared->entered.load(); }, 60s));
    Client client{server.url()};
    RLock orders{client, "orders"};
    auto second = start([&] { return orders.lock(), orders.unlock(), true; });
    REQUIRE(has_waiters(client, 1));
    CHECK_FALSE(ready(second, 100ms));
    shared->may_leave = true;
    CHECK(ready(second));
    CHECK(child.wait() == ExitStatus{0, 0});
}

TEST_CASE("a release wakes a waiter of another client within 50 ms") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    RLock orders{client, "orders"};
    RLock theirs{other, "orders"};
    auto best = std::chrono::milliseconds::max();
    const Stopwatch since;
    for (int round = 0; goes_on(round, best <= 50ms, since); ++round) {
        orders.lock();
        const auto waits = other.stats().waits;
        auto waiter = start([&] {
            theirs.lock();
            const auto entered = std::chrono::steady_clock::now();
            theirs.unlock();
            return entered;
        });
        REQUIRE(has_waiters(other, waits + 1));
        REQUIRE(is_listened_to(redis, "orders"));
        const auto released = std::chrono::steady_clock::now();
        orders.unlock();
        REQUIRE(ready(waiter));
        best = std::min(best, std::chrono::duration_cast<std::chrono::milliseconds>(waiter.get() - released));
    }
    CHECK(best <= 50ms);
}
#endif

TEST_CASE("threads of one process get the lock in order of arrival") {
    RedisServer server;
    Client client{server.url()};
    RLock orders{client, "orders"};
    orders.lock();
    std::vector<int> order;  // guarded by the lock
    std::vector<std::future<void>> waiters;
    constexpr int threads = 8;
    for (int t = 0; t < threads; ++t) {
        waiters.push_back(start_waiting(client, [&, t] {
            orders.lock();
            order.push_back(t);
            orders.unlock();
        }));
    }
    orders.unlock();
    for (auto& waiter : waiters) waiter.get();
    // The first one may be asking the server at the moment of the unlock(), and at that of the next ones. Then others
    // are served before it.
    CHECK(std::erase(order, 0) == 1);
    CHECK(order == std::vector<int>{1, 2, 3, 4, 5, 6, 7});
    CHECK(client.stats().handoffs >= threads - 1);
}

TEST_CASE("all of eight threads get their turn, and the lock synchronizes their writes") {
    RedisServer server;
    Client client{server.url()};
    RLock orders{client, "orders"};
    PlainCounter counter;
    constexpr int threads = 8;
    std::atomic<bool> enough = false;
    std::atomic<int> satisfied = 0;
    std::vector<std::future<std::uint64_t>> workers;
    for (int t = 0; t < threads; ++t)
        workers.push_back(start([&] {
            std::uint64_t turns = 0;
            while (!enough) {
                const std::lock_guard guard{orders};
                counter.add_one();
                if (++turns == 25) ++satisfied;
            }
            return turns;
        }));
    CHECK(eventually([&] { return satisfied == threads; }, 60s));
    enough = true;
    std::uint64_t total = 0;
    for (auto& worker : workers) total += worker.get();
    CHECK(counter.value() == total);
    CHECK(client.stats().acquisitions == total);
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("local_handoff_limit lets another process in") {
    RedisServer server;
    TempDir dir;
    auto shared = SharedMemory<Shared>::create(dir.file("shared"));
    ClientOptions options;
    options.local_handoff_limit = 4;
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    ChildProcess child = spawn_self("take a lock now and then", {server.url(), dir.file("shared")});
    std::vector<std::future<void>> workers;
    for (int t = 0; t < 6; ++t)
        workers.push_back(start([&] {
            while (!shared->done) {
                const std::lock_guard guard{orders};
                ++shared->here;
                shared->counter.add_one_unseen();
            }
        }));
    CHECK(eventually([&] { return shared->done.load() || !child.running(); }, 60s));
    shared->done = true;
    for (auto& worker : workers) worker.get();
    CHECK(child.wait() == ExitStatus{0, 0});
    CHECK(shared->turns == 20);
    // Each release gives the child a chance only, and it may get no CPU at times.
    CHECK(shared->usual <= 60 * (4 + 1));
    CHECK(shared->counter.value() == static_cast<std::uint64_t>(shared->here + shared->turns));
    const auto stats = client.stats();
    CHECK(stats.handoffs > 0);
    CHECK(stats.handoffs <= 4 * (stats.acquisitions - stats.handoffs));
}
#endif

TEST_CASE("with a local_handoff_limit of 0 every release reaches the server") {
    RedisServer server;
    RawRedis redis{server};
    ClientOptions options;
    options.local_handoff_limit = 0;
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    orders.lock();
    auto waiter = start_waiting(client, [&] { return orders.lock(), orders.unlock(), true; });
    REQUIRE(is_listened_to(redis, "orders"));
    commands_when_quiet(client);
    Messages messages{server, channel_of("orders")};
    orders.unlock();
    CHECK(ready(waiter));
    CHECK(client.stats().handoffs == 0);
    // The first one grants the lock to this process, which waits in the queue. Nobody else there would notice that it is
    // frozen, so those who do not queue are told that the lease is another one now.
    CHECK(messages.take() == Words{"0", "0"});
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("timed waits end on time") {
    RedisServer server;
    Client client{server.url()};
    Client other{server.url()};
    RLock held{other, "orders"};
    held.lock();
    RLock orders{client, "orders"};
    auto best = std::chrono::steady_clock::duration::max();
    const Stopwatch since;
    for (int round = 0; goes_on(round, best <= 50ms, since); ++round) {
        const auto deadline = std::chrono::steady_clock::now() + 120ms;
        const bool got = round % 2 == 0 ? orders.try_lock_until(deadline) : orders.try_lock_for(120ms);
        CHECK_FALSE(got);
        const auto late = std::chrono::steady_clock::now() - deadline;
        CHECK(late >= 0ms);
        best = std::min(best, late);
    }
    CHECK(best <= 50ms);
    held.unlock();
}

TEST_CASE("timed waits of many threads end on time, each at its own deadline") {
    RedisServer server;
    Client client{server.url()};
    RLock orders{client, "orders"};
    orders.lock();
    auto best = std::chrono::steady_clock::duration::max();
    for (int round = 0; round < rounds && best > patient(500ms); ++round) {
        std::vector<std::future<std::chrono::steady_clock::duration>> waiters;
        for (int t = 0; t < 8; ++t)
            waiters.push_back(start([&, t] {
                const auto deadline = std::chrono::steady_clock::now() + 50ms + t * 20ms;
                if (orders.try_lock_until(deadline)) return std::chrono::steady_clock::duration::max();
                return std::chrono::steady_clock::now() - deadline;
            }));
        auto latest = std::chrono::steady_clock::duration::min();
        for (auto& waiter : waiters) {
            const auto late = waiter.get();
            CHECK(late >= 0ms);
            latest = std::max(latest, late);
        }
        best = std::min(best, latest);
    }
    CHECK(best <= patient(500ms));
    orders.unlock();
    CHECK(client.stats().handoffs == 0);
    CHECK(eventually([&] { return RawRedis{server}.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("a stop request ends a wait promptly, and leaves nothing") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    orders.lock();
    auto best = std::chrono::steady_clock::duration::max();
    const Stopwatch since;
    for (int round = 0; goes_on(round, best <= 50ms, since); ++round) {
        std::stop_source stop;
        const auto waits = client.stats().waits;
        auto waiter = start([&] {
            const bool got = round % 2 == 0 ? orders.lock(stop.get_token()) : orders.try_lock_for(1h, stop.get_token());
            return std::pair{got, std::chrono::steady_clock::now()};
        });
        REQUIRE(has_waiters(client, waits + 1));
        CHECK_FALSE(ready(waiter, 20ms));
        const auto asked = std::chrono::steady_clock::now();
        stop.request_stop();
        REQUIRE(ready(waiter));
        const auto [got, ended] = waiter.get();
        CHECK_FALSE(got);
        best = std::min(best, ended - asked);
    }
    CHECK(best <= 50ms);
    orders.unlock();  // without a hand-over
    CHECK(client.stats().handoffs == 0);
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}
#endif

TEST_CASE("a stop request or a deadline that removes the first waiter does not delay the next") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    RLock held{other, "orders"};
    RLock orders{client, "orders"};
    for (const bool by_deadline : {false, true}) {
        CAPTURE(by_deadline);
        held.lock();
        std::stop_source stop;
        const auto waits = client.stats().waits;
        auto first = start([&] { return by_deadline ? orders.try_lock_for(300ms) : orders.lock(stop.get_token()); });
        REQUIRE(has_waiters(client, waits + 1));
        auto next = start([&] { return orders.lock(), orders.unlock(), true; });
        REQUIRE(has_waiters(client, waits + 2));
        REQUIRE(is_listened_to(redis, "orders"));
        stop.request_stop();
        REQUIRE(ready(first));
        CHECK_FALSE(first.get());
        CHECK_FALSE(ready(next, 20ms));
        held.unlock();
        CHECK(ready(next));
    }
}

#ifndef REDLATCH_TEST_IN_MEMORY
// Nobody tells the end of a dead holder's lease. Only the first waiter asks then.
TEST_CASE("the waiter behind one that leaves gets the lock at the end of a dead holder's lease") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    CommandMonitor monitor{server};
    CHECK(succeeds_once([&] {  // a busy machine may stop the first waiter after the end of the lease
        redis.integer("HSET", "orders", "dead:1", 1);
        redis.integer("PEXPIRE", "orders", 5000);
        std::stop_source stop;
        const auto waits = client.stats().waits;
        auto first = start([&] { return orders.lock(stop.get_token()) && (orders.unlock(), true); });
        REQUIRE(has_waiters(client, waits + 1));
        auto next = start([&] { orders.lock(), orders.unlock(); });
        REQUIRE(has_waiters(client, waits + 2));
        falls_silent(monitor);  // the subscription wakes those who wait, too
        stop.request_stop();
        REQUIRE(ready(first));
        REQUIRE(ready(next));
        return !first.get();
    }));
}
#endif

TEST_CASE("force_unlock() wakes the waiters") {
    RedisServer server;
    Client client{server.url()};
    Client other{server.url()};
    Client third{server.url()};
    RLock orders{client, "orders"};
    RLock theirs{other, "orders"};
    orders.lock();
    auto here = start([&] { return orders.lock(), orders.unlock(), true; });
    auto there = start([&] { return theirs.lock(), theirs.unlock(), true; });
    REQUIRE(has_waiters(client, 1));
    REQUIRE(has_waiters(other, 1));
    RLock key{third, "orders"};
    CHECK(key.force_unlock());
    CHECK(ready(there));
    CHECK(ready(here));  // although this thread has not unlocked its hold yet, which force_unlock() ended
    CHECK_NOTHROW(orders.unlock());
    CHECK(eventually([&] { return RawRedis{server}.keys().empty(); }, std::chrono::seconds{20}));
}

#ifndef REDLATCH_TEST_IN_MEMORY
// The waiter that force_unlock() wakes may acquire the lock before the reply to that command arrives. Its hold is not
// the one that was ended.
TEST_CASE("a thread that acquires the lock by a force_unlock() of its own process keeps it") {
    RedisServer server;
    RawRedis redis{server};
    Proxy proxy{server.url()};
    ClientOptions options;
    options.command_timeout = 20s;  // so that the held-back command is not resent
    Client client{proxy.url(), options};
    RLock orders{client, "orders"};
    const auto somebody_holds_it = [&] {
        redis.integer("HSET", "orders", "somebody:1", 1);
        redis.integer("PEXPIRE", "orders", 600'000);
    };
    somebody_holds_it();
    CHECK(orders.force_unlock());  // the server has the script cached
    for (int round = 0; round < 4; ++round) {
        CAPTURE(round);
        somebody_holds_it();
        const auto waits = client.stats().waits;
        std::atomic<bool> entered = false;
        std::promise<void> end;
        auto waiter = start([&] {
            orders.lock();
            const std::stop_token lost = orders.lost();
            entered = true;
            end.get_future().wait();
            const bool kept = !lost.stop_requested() && orders.is_held();
            std::error_code ec;
            orders.unlock(ec);
            return kept && !ec;
        });
        REQUIRE(has_waiters(client, waits + 1));
        REQUIRE(is_listened_to(redis, "orders"));
        proxy.hold_next_replies(
            1, std::string{redlatch::detail::digested<redlatch::detail::scripts::queue_give_up>.digest()});
        auto force = start([&] { return orders.force_unlock(); });
        REQUIRE(eventually([&] { return proxy.counts().held == 1; }, 20s));
        // The two threads may share a connection. Then the waiter's reply comes after the other one, but not in all
        // rounds.
        eventually([&] { return entered.load(); }, 500ms);
        proxy.release();
        CHECK(force.get());
        REQUIRE(eventually([&] { return entered.load(); }, 20s));
        end.set_value();
        CHECK(waiter.get());
        CHECK_FALSE(redis.exists("orders"));
        redis.integer("DEL", "orders");
    }
    CHECK(client.stats().lost_holds == 0);
}

// One waiting thread receives the messages for all. It must pass on those of other locks, and another thread must take
// its place when it leaves.
TEST_CASE("two threads that wait for different locks are woken in either order") {
    RedisServer server;
    Client other{server.url()};
    Client client{server.url()};
    RLock their_a{other, "a"};
    RLock their_b{other, "b"};
    RLock a{client, "a"};
    RLock b{client, "b"};
    for (const bool first_come_first : {true, false}) {
        CAPTURE(first_come_first);
        auto best_first = std::chrono::steady_clock::duration::max();
        auto best_second = best_first;
        const Stopwatch since;
        const auto in_time = [&] { return best_first < patient(50ms) && best_second < patient(50ms); };
        for (int round = 0; goes_on(round, in_time(), since); ++round) {
            their_a.lock();
            their_b.lock();
            auto waits = client.stats().waits;
            const auto entered_at = [](auto& lock) {
                return start([&lock] {
                    lock.lock();
                    const auto now = std::chrono::steady_clock::now();
                    lock.unlock();
                    return now;
                });
            };
            auto in_a = entered_at(a);
            REQUIRE(has_waiters(client, ++waits));
            auto in_b = entered_at(b);
            REQUIRE(has_waiters(client, ++waits));
            RawRedis redis{server};
            REQUIRE(eventually([&] { return redis.lock_listeners(channel_of("b")) == 1; }));
            auto& first = first_come_first ? in_a : in_b;
            auto& second = first_come_first ? in_b : in_a;
            auto released = std::chrono::steady_clock::now();
            first_come_first ? their_a.unlock() : their_b.unlock();
            best_first = std::min(best_first, first.get() - released);
            released = std::chrono::steady_clock::now();
            first_come_first ? their_b.unlock() : their_a.unlock();
            best_second = std::min(best_second, second.get() - released);
        }
        CHECK(best_first < patient(50ms));
        CHECK(best_second < patient(50ms));
    }
}

// A coroutine cannot receive messages itself. So when the thread that received them leaves, the background thread has to
// take over. Nothing else wakes that one here: it knows already when to end the subscriptions that are idle. The short lease of
// a grant would wake it.
TEST_CASE("a coroutine that waits for another lock is woken after the receiving thread has left") {
    RedisServer server;
    const ClientOptions without_grants{.grants = false};
    Client other{server.url(), without_grants};
    Client client{server.url(), without_grants};
    RLock their_a{other, "a"};
    RLock their_b{other, "b"};
    RLock a{client, "a"};
    RLock b{client, "b"};
    RawRedis redis{server};
    const auto wait_for_a = [&] {
        their_a.lock();
        auto in_a = start_waiting(client, [&] { a.lock(), a.unlock(); });
        REQUIRE(is_listened_to(redis, "a"));
        CHECK_FALSE(ready(in_a, 20ms));  // by then the background thread receives nothing
        their_a.unlock();
        in_a.get();
    };
    wait_for_a();
    int late = 0;
    for (int round = 0; round < rounds; ++round) {
        their_b.lock();
        const auto waits = client.stats().waits;
        auto held = b.async_lock().future();
        REQUIRE(has_waiters(client, waits + 1));
        REQUIRE(is_listened_to(redis, "b"));
        wait_for_a();
        const Stopwatch watch;
        their_b.unlock();
        REQUIRE(ready(held, 60s));
        if (!watch.within(patient(1000ms))) ++late;  // idle subscriptions end after five seconds
        CHECK_FALSE(held.get().unlock());
    }
    CHECK(late <= 1);  // a busy machine may delay one, but nothing else delays any
}

// One of the waiting threads receives messages, and a byte in a pipe interrupts it. Another one, which takes its place,
// may read that byte. Nothing else would wake the successor of a hand-over within the process.
TEST_CASE("threads that wait for different locks are woken together, by hand-over or by message") {
    constexpr std::size_t waiting = 8;
    constexpr int turns = 60;
    constexpr auto bound = patient(2500ms);  // a thread that was forgotten sleeps for five seconds at least
    for (const bool fair : {false, true}) {
        CAPTURE(fair);
        RedisServer server;
        Client client{server.url()};
        std::vector<std::shared_ptr<redlatch::detail::LockApi>> locks;
        for (std::size_t i = 0; i < waiting; ++i) {
            const std::string name = "orders" + std::to_string(i);
            if (fair)
                locks.push_back(std::make_shared<FairLock>(client, name));
            else
                locks.push_back(std::make_shared<RLock>(client, name));
        }
        std::barrier together{waiting + 1};
        std::atomic<bool> over{false};
        std::vector<std::jthread> threads;
        for (const auto& lock : locks)
            threads.emplace_back([&] {
                for (;;) {
                    together.arrive_and_wait();
                    if (over) return;
                    lock->lock();
                    // A release is a message that wakes the receiving thread, too.
                    together.arrive_and_wait();
                    lock->unlock();
                }
            });
        auto longest = std::chrono::steady_clock::duration::zero();
        for (int turn = 0; turn < turns && longest < bound; ++turn) {
            for (const auto& lock : locks) lock->lock();
            const auto waits = client.stats().waits;
            together.arrive_and_wait();
            // In every other turn they are asleep. In the others some are about to be.
            if (turn % 2 == 0)
                std::this_thread::sleep_for(10ms);
            else
                eventually([&] { return client.stats().waits >= waits + waiting; }, 20s, 0ms);
            const Stopwatch watch;
            for (const auto& lock : locks) lock->unlock();
            together.arrive_and_wait();
            longest = std::max(longest, watch.elapsed());
        }
        over = true;
        together.arrive_and_wait();
        threads.clear();
        CHECK(longest < bound);
        CHECK((client.stats().handoffs == 0) == fair);
    }
}

TEST_CASE("the end of another thread's lease lets a waiting thread of the same process in") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    auto best = std::chrono::steady_clock::duration::max();
    const Stopwatch since;
    for (int round = 0; goes_on(round, best <= 300ms, since); ++round) {
        const auto begin = std::chrono::steady_clock::now();
        orders.lock(Lease{200ms});
        const auto entered = elsewhere([&] {
            orders.lock();
            const auto now = std::chrono::steady_clock::now();
            orders.unlock();
            return now;
        });
        CHECK(entered - begin >= 199ms);
        best = std::min(best, entered - begin);
        CHECK_NOTHROW(orders.unlock());
    }
    CHECK(best <= 300ms);
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}
#endif

TEST_CASE("a wait too short to connect is a failed try, not an unreachable server") {
    RedisServer server;
    for (int round = 0; round < 20; ++round) {
        CAPTURE(round);
        Client client{server.url()};
        RLock orders{client, "orders"};
        const Stopwatch watch;
        std::error_code ec;
        if (orders.try_lock_for(std::chrono::microseconds{1 + round * 20}, ec)) orders.unlock();
        CHECK_FALSE(ec);
    }
    CHECK(eventually([&] { return RawRedis{server}.keys().empty(); }));
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("fault: release between try and subscription: the waiter still acquires the lock") {
    RedisServer server;
    RawRedis redis{server};
    Proxy proxy{server.url()};
    Client client{proxy.url()};
    for (int round = 0; round < 3; ++round) {
        const std::string name = "orders " + std::to_string(round);
        RLock lock{client, name};
        redis.integer("HSET", name, "somebody:1", 1);
        redis.integer("PEXPIRE", name, 60000);
        const auto waits = client.stats().waits;
        proxy.hold_next_requests(1, "SUBSCRIBE");
        auto waiter = start([&] { return lock.lock(), lock.unlock(), true; });
        REQUIRE(has_waiters(client, waits + 1));  // the first try is over
        REQUIRE(eventually([&] { return proxy.counts().held == 1; }, 20s));
        redis.integer("DEL", name);
        CHECK(redis.integer("PUBLISH", channel_of(name), "0") == 0);  // there is no subscriber
        CHECK_FALSE(ready(waiter, 20ms));
        proxy.release();
        CHECK(ready(waiter));
    }
}

// While a release is in flight, the other threads of the process do not ask. If other processes listen too, the message
// has to wake them, and it may come before the reply.
TEST_CASE("a release whose message arrives before its reply still wakes the local waiter") {
    RedisServer server;
    RawRedis redis{server};
    Proxy proxy{server.url()};
    ClientOptions options;
    options.local_handoff_limit = 0;
    Client client{proxy.url(), options};
    RLock orders{client, "orders"};
    Messages others{server, channel_of("orders")};
    orders.lock();
    orders.unlock();  // the server has the script cached
    CHECK(others.take() == Words{"0"});
    for (int round = 0; round < rounds; ++round) {
        orders.lock();
        auto waiter = start_waiting(client, [&] { return orders.lock(), orders.unlock(), true; });
        REQUIRE(is_listened_to(redis, "orders", 2));
        proxy.hold_next_replies(
            1, std::string{redlatch::detail::digested<redlatch::detail::scripts::queue_release>.digest()});
        auto network = start([&] {
            REQUIRE(eventually([&] { return proxy.counts().held == 1; }, 20s));
            // The message has its own connection. Another message after it shows that it has arrived.
            const auto before = proxy.counts().bytes_to_client;
            redis.integer("PUBLISH", channel_of("orders"), "0");
            eventually([&] { return proxy.counts().bytes_to_client > before; }, 20s);
            proxy.release();
        });
        orders.unlock();
        network.get();
        const bool woken = ready(waiter);
        CHECK(woken);
        if (!woken) redis.integer("PUBLISH", channel_of("orders"), "0");  // so that the test ends
        REQUIRE(ready(waiter));
        others.take();
    }
}

// A client skips the message of its own release. If that came before the reply, the next message is somebody else's.
TEST_CASE("after a release whose message arrives before its reply, another process's release wakes a waiter at once") {
    RedisServer server;
    RawRedis redis{server};
    Proxy proxy{server.url()};
    ClientOptions options;
    options.grants = false;  // a grant has a channel of its own
    Client client{proxy.url(), options};
    Client other{server.url(), options};
    RLock orders{client, "orders"};
    RLock theirs{other, "orders"};
    const auto wait_for_them = [&] {
        theirs.lock();
        auto waiter = start_waiting(client, [&] { return orders.lock(), orders.unlock(), true; });
        REQUIRE(is_listened_to(redis, "orders"));
        theirs.unlock();
        REQUIRE(ready(waiter, 8s));  // otherwise it asks after the lease, which is 30 s
    };
    wait_for_them();
    for (int round = 0; round < rounds; ++round) {
        orders.lock();
        const auto received = proxy.counts().bytes_to_client;
        proxy.hold_next_replies(
            1, std::string{redlatch::detail::digested<redlatch::detail::scripts::rlock_release>.digest()});
        auto network = start([&] {
            REQUIRE(
                eventually([&] { return proxy.counts().held == 1 && proxy.counts().bytes_to_client > received; }, 20s));
            proxy.release();
        });
        orders.unlock();
        network.get();
        wait_for_them();
    }
}

TEST_CASE("one subscription serves all waiting threads, and is kept for a while") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    RLock orders{client, "orders"};
    RLock held{other, "orders"};
    for (int round = 0; round < 3; ++round) {
        held.lock();
        const auto waits = client.stats().waits;
        std::vector<std::future<void>> waiters;
        for (int t = 0; t < 4; ++t) waiters.push_back(start([&] { const std::lock_guard guard{orders}; }));
        REQUIRE(has_waiters(client, waits + 4));
        REQUIRE(is_listened_to(redis, "orders"));
        held.unlock();
        for (auto& waiter : waiters) CHECK(ready(waiter));
    }
    CHECK(redis.subscribe_calls() == 1);
}
#endif

TEST_CASE("cancellation at random times leaves no key, no queue and, after a while, no channel") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    RLock orders{client, "orders"};
    RLock theirs{other, "orders"};
    std::atomic<bool> enough = false;
    PlainCounter counter;
    std::atomic<std::uint64_t> turns = 0;
    // Two threads that hold the lock now and then, for hand-overs within the client and releases from outside.
    const auto hold_now_and_then = [&](HiredisRLock& lock) {
        return start([&] {
            while (!enough) {
                {
                    const std::lock_guard guard{lock};
                    counter.add_one_unseen(200us);
                    ++turns;
                }
                std::this_thread::sleep_for(100us);
            }
        });
    };
    auto here = hold_now_and_then(orders);
    auto there = hold_now_and_then(theirs);
    std::mt19937 random{20240607};
    std::uniform_int_distribution<int> microseconds{0, 3000};
    int got = 0;
    int gave_up = 0;
    for (int round = 0; round < 300; ++round) {
        std::stop_source stop;
        const auto after = std::chrono::microseconds{microseconds(random)};
        auto waiter = start([&] {
            bool held = false;
            switch (round % 3) {
                case 0: held = orders.lock(stop.get_token()); break;
                case 1: held = orders.try_lock_for(after); break;
                default: held = orders.try_lock_for(after, Lease{60s}, stop.get_token()); break;
            }
            if (held) {
                counter.add_one_unseen();
                ++turns;
                orders.unlock();
            }
            return held;
        });
        std::this_thread::sleep_for(after);
        stop.request_stop();
        REQUIRE(ready(waiter, 60s));
        ++(waiter.get() ? got : gave_up);
    }
    enough = true;
    here.get();
    there.get();
    CHECK(counter.value() == turns);
    CHECK(got + gave_up == 300);
    CHECK(gave_up > 0);
    CHECK(client.stats().lost_holds == 0);
    CHECK(eventually([&] { return redis.keys().empty(); }));  // an unwanted acquire is released at once
    CHECK(orders.try_lock());
    orders.unlock();
    CHECK(eventually([&] { return redis.pubsub_channels().empty(); }, 5s + patient(5s), 20ms));
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("a waiter that is destroyed with its lock object leaves no channel") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    redis.integer("HSET", "orders", "somebody:1", 1);
    redis.integer("PEXPIRE", "orders", 600'000);
    {
        RLock orders{client, "orders"};
        CHECK_FALSE(orders.try_lock_for(50ms));
    }
    CHECK(eventually([&] { return redis.pubsub_channels().empty(); }, 5s + patient(5s), 20ms));
}
