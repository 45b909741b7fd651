// SPDX-License-Identifier: MIT
// ConditionVariable on a real server, with locks of several kinds: a queue that nobody waits for in vain.
// ctest: in_memory
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <shared_mutex>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/code_of.hpp"
#include "support/process.hpp"

#include "support/any_server.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

struct Bench {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock lock{client, "orders"};
    ConditionVariable changed{client, "changed"};

    bool are_waiting(std::ptrdiff_t n) {
        return eventually([&] { return changed.waiters() == n; }, 20s);
    }
};

// Puts 50 numbers into a queue and takes them out in two threads. Returns the sum that was taken.
template <class Condition, class Lock>
int pass_on(Condition& changed, Lock& lock) {
    std::deque<int> queue;
    bool ended = false;
    std::atomic<int> sum{0};
    const auto take = [&] {
        for (;;) {
            std::unique_lock guard{lock};
            changed.wait(guard, [&] { return !queue.empty() || ended; });
            if (queue.empty()) return;
            sum += queue.front();
            queue.pop_front();
        }
    };
    std::jthread one(take), two(take);
    for (int i = 1; i <= 50; ++i) {
        const std::lock_guard guard{lock};
        queue.push_back(i);
        changed.notify_one();
    }
    {
        const std::lock_guard guard{lock};
        ended = true;
        changed.notify_all();
    }
    one.join();
    two.join();
    return sum;
}

// Waits with its own lock object, in a thread.
template <class Done>
std::future<void> wait_then(Bench& bench, Done done) {
    return start([&bench, done] {
        const std::lock_guard guard{bench.lock};
        bench.changed.wait(bench.lock);
        done();
    });
}

// Waits with the lock that `acquire()` returns. While it looks at what it waits for, `lose()` is called, `changer` acquires
// the lock, and notifies. Returns true if the waiter looks again.
template <class Changer, class Lose, class Acquire>
bool looks_again(Bench& bench, Changer& changer, Lose lose, Acquire acquire) {
    // The registration of an earlier waiter leaves in the background.
    REQUIRE(bench.are_waiting(0));
    auto wait = start([&] {
        auto&& lock = acquire();
        int looks = 0;
        bench.changed.wait(lock, [&] {
            if (++looks > 1) return true;
            lose();
            const std::lock_guard guard{changer};
            CHECK_FALSE(bench.changed.notify_one());
            return false;
        });
        lock.unlock();
    });
    const bool looked = wait.wait_for(10s) == std::future_status::ready;
    if (!looked) bench.changed.notify_all();
    wait.get();
    return looked;
}

#ifndef REDLATCH_TEST_IN_MEMORY
// Takes the number in the key "stock" down to zero, one at a time, as soon as it is above zero.
const Role consumer_role{"condition: consumer", [](std::span<const std::string> args) {
                             Client client{args[0]};
                             RawRedis redis{args[0]};
                             RLock lock{client, "orders"};
                             ConditionVariable changed{client, "changed"};
                             for (int i = 0; i < 30; ++i) {
                                 std::unique_lock guard{lock};
                                 changed.wait(guard, [&] { return std::stoi(redis.text("GET", "stock")) > 0; });
                                 redis.text("SET", "stock", std::to_string(std::stoi(redis.text("GET", "stock")) - 1));
                             }
                             return 0;
                         }};
#endif

}  // namespace

TEST_CASE("code written for std::condition_variable_any works with a ConditionVariable and an RLock") {
    std::mutex mutex;
    std::condition_variable_any local;
    CHECK(pass_on(local, mutex) == 1275);
    Bench bench;
    CHECK(pass_on(bench.changed, bench.lock) == 1275);
    FairLock fair{bench.client, "fair"};
    ConditionVariable another{bench.client, "another"};
    CHECK(pass_on(another, fair) == 1275);
    CHECK(bench.changed.name() == "changed");
}

TEST_CASE("one notification wakes the waiter that has waited longest, and no other") {
    Bench bench;
    std::vector<int> order;
    std::vector<std::future<void>> waiting;
    for (int i = 0; i < 4; ++i) {
        waiting.push_back(wait_then(bench, [&order, i] { order.push_back(i); }));
        REQUIRE(bench.are_waiting(i + 1));
    }
    for (int i = 0; i < 2; ++i) {
        CHECK(bench.changed.notify_one());
        CHECK(ready(waiting[static_cast<std::size_t>(i)]));
    }
    CHECK(bench.changed.waiters() == 2);
    CHECK(waiting[2].wait_for(50ms) == std::future_status::timeout);
    CHECK(bench.changed.notify_all() == 2);
    for (auto& one : waiting) CHECK(ready(one));
    CHECK(order[0] == 0);
    CHECK(order[1] == 1);
    CHECK_FALSE(bench.changed.notify_one());
    CHECK(bench.changed.notify_all() == 0);
    // Nothing stays but the marks of requests and, until it is deleted, nothing else.
    CHECK(eventually([&] { return bench.redis.keys().size() == 1; }, 20s));
}

TEST_CASE("a notification between the release of the lock and the sleep of the waiter is not lost") {
    Bench bench;
    Client other{bench.server.url()};
    RLock theirs{other, "orders"};
    ConditionVariable notifier{other, "changed"};
    for (int round = 0; round < 30; ++round) {
        std::unique_lock guard{bench.lock};
        // It gets the lock as soon as the waiter releases it, and notifies at once.
        auto notifying = start([&] {
            const std::lock_guard also{theirs};
            return notifier.notify_one();
        });
        CHECK(bench.changed.wait_for(guard, 20s));
        CHECK(guard.owns_lock());
        CHECK(bench.lock.is_held());
        guard.unlock();
        CHECK(notifying.get());
    }
}

TEST_CASE("the lock is free while a caller waits, and held when it returns, whatever ends the wait") {
    Bench bench;
    Client other{bench.server.url()};
    RLock theirs{other, "orders"};
    bench.lock.lock();
    CHECK_FALSE(bench.changed.wait_for(bench.lock, 10ms));
    CHECK(bench.lock.is_held());
    CHECK_FALSE(bench.changed.wait_until(bench.lock, std::chrono::system_clock::now()));
    CHECK(bench.lock.is_held());
    bench.lock.unlock();
    std::stop_source stop;
    auto waiting = start([&] {
        const std::lock_guard guard{bench.lock};
        const bool notified = bench.changed.wait(bench.lock, stop.get_token());
        return std::pair(notified, bench.lock.is_held());
    });
    REQUIRE(bench.are_waiting(1));
    CHECK(theirs.try_lock_for(20s));
    stop.request_stop();
    CHECK(bench.are_waiting(0));
    CHECK(waiting.wait_for(50ms) == std::future_status::timeout);
    theirs.unlock();
    CHECK(waiting.get() == std::pair(false, true));
}

TEST_CASE("a waiter that has lost the lock before it is registered looks again") {
    Bench bench;
    Client other{bench.server.url()};
    RLock changer{other, "orders"};
    ReadWriteLock both{bench.client, "both"}, both_changer{other, "both"};
    Hold hold;
    for (const bool by_force : {false, true}) {
        CAPTURE(by_force);
        // Its lease ends, or somebody ends it by force, which its process does not learn.
        const Lease lease{by_force ? 60s : 100ms};
        const auto lose = [&] {
            if (!by_force) return;
            changer.force_unlock();
            both_changer.force_unlock();
            both_changer.read_lock().force_unlock();
        };
        CHECK(looks_again(bench, changer, lose, [&]() -> RLock& { return bench.lock.lock(lease), bench.lock; }));
        CHECK(looks_again(bench, changer, lose, [&] {
            bench.lock.lock(lease);
            return std::unique_lock{bench.lock, std::adopt_lock};
        }));
        CHECK(looks_again(bench, changer, lose, [&] {
            hold = bench.lock.hold(lease);
            return HeldLock{bench.lock, hold};
        }));
        CHECK(looks_again(bench, both_changer, lose, [&] {
            both.lock(lease);
            return std::unique_lock{both, std::adopt_lock};
        }));
        CHECK(looks_again(bench, both_changer, lose, [&] {
            both.lock_shared(lease);
            return std::shared_lock{both, std::adopt_lock};
        }));
    }
}

TEST_CASE("a Hold is released and acquired again") {
    Bench bench;
    Hold hold = bench.lock.hold();
    HeldLock held{bench.lock, hold};
    auto waiting = start([&] {
        return bench.changed.wait_for(held, 20s) && hold && hold.valid_until() > std::chrono::steady_clock::now();
    });
    REQUIRE(bench.are_waiting(1));
    {
        CHECK(bench.lock.try_lock_for(20s));
        CHECK(bench.changed.notify_one());
        bench.lock.unlock();
    }
    CHECK(waiting.get());
    CHECK_FALSE(bench.lock.try_lock());
    CHECK_FALSE(hold.unlock());
    CHECK(code_of([&] { bench.changed.wait(held); }) == errc::not_owner);
    CHECK(bench.are_waiting(0));
}

TEST_CASE("a notification of a waiter that gives up goes to the next one") {
    Bench bench;
    for (int round = 0; round < 10; ++round) {
        // Both wait; the first gives up at about the time of the notification.
        auto first = start([&] {
            const std::lock_guard guard{bench.lock};
            return bench.changed.wait_for(bench.lock, 100ms);
        });
        // On a busy machine the first may have given up already.
        REQUIRE(eventually([&] { return bench.changed.waiters() == 1 || ready(first, 0ms); }));
        auto second = start([&] {
            const std::lock_guard guard{bench.lock};
            return bench.changed.wait_for(bench.lock, 20s);
        });
        REQUIRE(eventually([&] {
            const std::ptrdiff_t expected = ready(first, 0ms) ? 1 : 2;
            return bench.changed.waiters() == expected;
        }));
        std::this_thread::sleep_for(std::chrono::milliseconds(85 + 2 * round));  // any moment will do
        CHECK(bench.changed.notify_one());
        const bool first_has_it = first.get();
        if (first_has_it) CHECK(bench.changed.notify_one());
        CHECK(second.get());
        CHECK(bench.changed.waiters() == 0);
    }
}

TEST_CASE("who waits sends nothing until it is notified") {
    Bench bench;
    std::vector<std::future<void>> waiting;
    for (int i = 0; i < 5; ++i) waiting.push_back(wait_then(bench, [] {}));
    REQUIRE(bench.are_waiting(5));
    REQUIRE(has_waiters(bench.client, 5));
    CHECK(stops_sending(bench.client));
    CHECK(bench.changed.notify_all() == 5);
    for (auto& one : waiting) CHECK(ready(one));
}

TEST_CASE("a caller that waits for longer than a lease is still registered") {
    Bench bench;
    Client client{bench.server.url(), with_watchdog(short_lease)};
    RLock lock{client, "other"};
    ConditionVariable changed{client, "changed"};
    auto waiting = start([&] {
        const std::lock_guard guard{lock};
        return changed.wait_for(lock, 60s);
    });
    REQUIRE(bench.are_waiting(1));
    REQUIRE(eventually([&] { return client.stats().renewals >= 5; }, 30s));
    CHECK(bench.changed.notify_one());
    CHECK(waiting.get());
}

TEST_CASE("errors are thrown, or stored with an error code") {
    Bench bench;
    std::error_code ec;
    CHECK(code_of([&] { bench.changed.wait(bench.lock); }) == errc::not_owner);
    bench.changed.wait(bench.lock, ec);
    CHECK(ec == errc::not_owner);
    CHECK(bench.are_waiting(0));
    bench.redis.text("SET", "wrong", "x");
    ConditionVariable wrong{bench.client, "wrong"};
    const std::lock_guard guard{bench.lock};
    CHECK(code_of([&] { wrong.wait(bench.lock); }) == errc::wrong_type);
    CHECK(bench.lock.is_held());
    CHECK_FALSE(wrong.wait_for(bench.lock, 1s, ec));
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(wrong.wait_for(
        bench.lock, 1s, [] { return false; }, ec));
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(wrong.notify_one(ec));
    CHECK(ec == errc::wrong_type);
    CHECK(wrong.notify_all(ec) == 0);
    CHECK(ec == errc::wrong_type);
    CHECK(wrong.waiters(ec) == 0);
    CHECK(ec == errc::wrong_type);
    CHECK(bench.changed.notify_all(ec) == 0);
    CHECK_FALSE(ec);
    CHECK(code_of([&] { ConditionVariable(bench.client, ""); }) == errc::invalid_argument);
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("processes wait for what another one provides, and take each of it once") {
    Bench bench;
    bench.redis.text("SET", "stock", "0");
    std::vector<ChildProcess> consumers;
    for (int i = 0; i < 3; ++i) consumers.push_back(spawn_self("condition: consumer", {bench.server.url()}));
    for (int i = 0; i < 90; ++i) {
        const std::lock_guard guard{bench.lock};
        bench.redis.text("SET", "stock", std::to_string(std::stoi(bench.redis.text("GET", "stock")) + 1));
        bench.changed.notify_one();
    }
    for (ChildProcess& one : consumers) {
        const auto status = one.wait(60s);
        REQUIRE(status);
        CHECK(status->code == 0);
    }
    CHECK(bench.redis.text("GET", "stock") == "0");
}
#endif
