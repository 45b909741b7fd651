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

struct Fixture {
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
std::future<void> wait_then(Fixture& fixture, Done done) {
    return start([&fixture, done] {
        const std::lock_guard guard{fixture.lock};
        fixture.changed.wait(fixture.lock);
        done();
    });
}

// Waits with the lock that `acquire()` returns. While it looks at what it waits for, `lose()` is called, `changer` acquires
// the lock, and notifies. Returns true if the waiter looks again.
template <class Changer, class Lose, class Acquire>
bool looks_again(Fixture& fixture, Changer& changer, Lose lose, Acquire acquire) {
    // The registration of an earlier waiter leaves in the background.
    REQUIRE(fixture.are_waiting(0));
    auto wait = start([&] {
        auto&& lock = acquire();
        int looks = 0;
        fixture.changed.wait(lock, [&] {
            if (++looks > 1) return true;
            lose();
            const std::lock_guard guard{changer};
            CHECK_FALSE(fixture.changed.notify_one());
            return false;
        });
        lock.unlock();
    });
    const bool looked = wait.wait_for(10s) == std::future_status::ready;
    if (!looked) fixture.changed.notify_all();
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
    Fixture fixture;
    CHECK(pass_on(fixture.changed, fixture.lock) == 1275);
    FairLock fair{fixture.client, "fair"};
    ConditionVariable another{fixture.client, "another"};
    CHECK(pass_on(another, fair) == 1275);
    CHECK(fixture.changed.name() == "changed");
}

TEST_CASE("one notification wakes the waiter that has waited longest, and no other") {
    Fixture fixture;
    std::vector<int> order;
    std::vector<std::future<void>> waiting;
    for (int i = 0; i < 4; ++i) {
        waiting.push_back(wait_then(fixture, [&order, i] { order.push_back(i); }));
        REQUIRE(fixture.are_waiting(i + 1));
    }
    for (int i = 0; i < 2; ++i) {
        CHECK(fixture.changed.notify_one());
        CHECK(ready(waiting[static_cast<std::size_t>(i)]));
    }
    CHECK(fixture.changed.waiters() == 2);
    CHECK(waiting[2].wait_for(50ms) == std::future_status::timeout);
    CHECK(fixture.changed.notify_all() == 2);
    for (auto& one : waiting) CHECK(ready(one));
    CHECK(order[0] == 0);
    CHECK(order[1] == 1);
    CHECK_FALSE(fixture.changed.notify_one());
    CHECK(fixture.changed.notify_all() == 0);
    // Nothing stays but the marks of requests and, until it is deleted, nothing else.
    CHECK(eventually([&] { return fixture.redis.keys().size() == 1; }, 20s));
}

TEST_CASE("a notification between the release of the lock and the sleep of the waiter is not lost") {
    Fixture fixture;
    Client other{fixture.server.url()};
    RLock theirs{other, "orders"};
    ConditionVariable notifier{other, "changed"};
    for (int round = 0; round < 30; ++round) {
        std::unique_lock guard{fixture.lock};
        // It gets the lock as soon as the waiter releases it, and notifies at once.
        auto notifying = start([&] {
            const std::lock_guard also{theirs};
            return notifier.notify_one();
        });
        CHECK(fixture.changed.wait_for(guard, 20s));
        CHECK(guard.owns_lock());
        CHECK(fixture.lock.is_held());
        guard.unlock();
        CHECK(notifying.get());
    }
}

TEST_CASE("the lock is free while a caller waits, and held when it returns, whatever ends the wait") {
    Fixture fixture;
    Client other{fixture.server.url()};
    RLock theirs{other, "orders"};
    fixture.lock.lock();
    CHECK_FALSE(fixture.changed.wait_for(fixture.lock, 10ms));
    CHECK(fixture.lock.is_held());
    CHECK_FALSE(fixture.changed.wait_until(fixture.lock, std::chrono::system_clock::now()));
    CHECK(fixture.lock.is_held());
    fixture.lock.unlock();
    std::stop_source stop;
    auto waiting = start([&] {
        const std::lock_guard guard{fixture.lock};
        const bool notified = fixture.changed.wait(fixture.lock, stop.get_token());
        return std::pair(notified, fixture.lock.is_held());
    });
    REQUIRE(fixture.are_waiting(1));
    CHECK(theirs.try_lock_for(20s));
    stop.request_stop();
    CHECK(fixture.are_waiting(0));
    CHECK(waiting.wait_for(50ms) == std::future_status::timeout);
    theirs.unlock();
    CHECK(waiting.get() == std::pair(false, true));
}

TEST_CASE("a waiter that has lost the lock before it is registered looks again") {
    Fixture fixture;
    Client other{fixture.server.url()};
    RLock changer{other, "orders"};
    ReadWriteLock both{fixture.client, "both"}, both_changer{other, "both"};
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
        CHECK(looks_again(fixture, changer, lose, [&]() -> RLock& { return fixture.lock.lock(lease), fixture.lock; }));
        CHECK(looks_again(fixture, changer, lose, [&] {
            fixture.lock.lock(lease);
            return std::unique_lock{fixture.lock, std::adopt_lock};
        }));
        CHECK(looks_again(fixture, changer, lose, [&] {
            hold = fixture.lock.hold(lease);
            return HeldLock{fixture.lock, hold};
        }));
        CHECK(looks_again(fixture, both_changer, lose, [&] {
            both.lock(lease);
            return std::unique_lock{both, std::adopt_lock};
        }));
        CHECK(looks_again(fixture, both_changer, lose, [&] {
            both.lock_shared(lease);
            return std::shared_lock{both, std::adopt_lock};
        }));
    }
}

TEST_CASE("a Hold is released and acquired again") {
    Fixture fixture;
    Hold hold = fixture.lock.hold();
    HeldLock held{fixture.lock, hold};
    auto waiting = start([&] {
        return fixture.changed.wait_for(held, 20s) && hold && hold.valid_until() > std::chrono::steady_clock::now();
    });
    REQUIRE(fixture.are_waiting(1));
    {
        CHECK(fixture.lock.try_lock_for(20s));
        CHECK(fixture.changed.notify_one());
        fixture.lock.unlock();
    }
    CHECK(waiting.get());
    CHECK_FALSE(fixture.lock.try_lock());
    CHECK_FALSE(hold.unlock());
    CHECK(code_of([&] { fixture.changed.wait(held); }) == errc::not_owner);
    CHECK(fixture.are_waiting(0));
}

TEST_CASE("a notification of a waiter that gives up goes to the next one") {
    Fixture fixture;
    for (int round = 0; round < 10; ++round) {
        // Both wait; the first gives up at about the time of the notification.
        auto first = start([&] {
            const std::lock_guard guard{fixture.lock};
            return fixture.changed.wait_for(fixture.lock, 100ms);
        });
        // On a busy machine the first may have given up already.
        REQUIRE(eventually([&] { return fixture.changed.waiters() == 1 || ready(first, 0ms); }));
        auto second = start([&] {
            const std::lock_guard guard{fixture.lock};
            return fixture.changed.wait_for(fixture.lock, 20s);
        });
        REQUIRE(eventually([&] {
            const std::ptrdiff_t expected = ready(first, 0ms) ? 1 : 2;
            return fixture.changed.waiters() == expected;
        }));
        std::this_thread::sleep_for(std::chrono::milliseconds(85 + 2 * round));  // any moment will do
        CHECK(fixture.changed.notify_one());
        const bool first_has_it = first.get();
        if (first_has_it) CHECK(fixture.changed.notify_one());
        CHECK(second.get());
        CHECK(fixture.changed.waiters() == 0);
    }
}

TEST_CASE("who waits sends nothing until it is notified") {
    Fixture fixture;
    std::vector<std::future<void>> waiting;
    for (int i = 0; i < 5; ++i) waiting.push_back(wait_then(fixture, [] {}));
    REQUIRE(fixture.are_waiting(5));
    REQUIRE(has_waiters(fixture.client, 5));
    CHECK(stops_sending(fixture.client));
    CHECK(fixture.changed.notify_all() == 5);
    for (auto& one : waiting) CHECK(ready(one));
}

TEST_CASE("a caller that waits for longer than a lease is still registered") {
    Fixture fixture;
    Client client{fixture.server.url(), with_watchdog(short_lease)};
    RLock lock{client, "other"};
    ConditionVariable changed{client, "changed"};
    auto waiting = start([&] {
        const std::lock_guard guard{lock};
        return changed.wait_for(lock, 60s);
    });
    REQUIRE(fixture.are_waiting(1));
    REQUIRE(eventually([&] { return client.stats().renewals >= 5; }, 30s));
    CHECK(fixture.changed.notify_one());
    CHECK(waiting.get());
}

TEST_CASE("errors are thrown, or stored with an error code") {
    Fixture fixture;
    std::error_code ec;
    CHECK(code_of([&] { fixture.changed.wait(fixture.lock); }) == errc::not_owner);
    fixture.changed.wait(fixture.lock, ec);
    CHECK(ec == errc::not_owner);
    CHECK(fixture.are_waiting(0));
    fixture.redis.text("SET", "wrong", "x");
    ConditionVariable wrong{fixture.client, "wrong"};
    const std::lock_guard guard{fixture.lock};
    CHECK(code_of([&] { wrong.wait(fixture.lock); }) == errc::wrong_type);
    CHECK(fixture.lock.is_held());
    CHECK_FALSE(wrong.wait_for(fixture.lock, 1s, ec));
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(wrong.wait_for(
        fixture.lock, 1s, [] { return false; }, ec));
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(wrong.notify_one(ec));
    CHECK(ec == errc::wrong_type);
    CHECK(wrong.notify_all(ec) == 0);
    CHECK(ec == errc::wrong_type);
    CHECK(wrong.waiters(ec) == 0);
    CHECK(ec == errc::wrong_type);
    CHECK(fixture.changed.notify_all(ec) == 0);
    CHECK_FALSE(ec);
    CHECK(code_of([&] { ConditionVariable(fixture.client, ""); }) == errc::invalid_argument);
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("processes wait for what another one provides, and take each of it once") {
    Fixture fixture;
    fixture.redis.text("SET", "stock", "0");
    std::vector<ChildProcess> consumers;
    for (int i = 0; i < 3; ++i) consumers.push_back(spawn_self("condition: consumer", {fixture.server.url()}));
    for (int i = 0; i < 90; ++i) {
        const std::lock_guard guard{fixture.lock};
        fixture.redis.text("SET", "stock", std::to_string(std::stoi(fixture.redis.text("GET", "stock")) + 1));
        fixture.changed.notify_one();
    }
    for (ChildProcess& one : consumers) {
        const auto status = one.wait(60s);
        REQUIRE(status);
        CHECK(status->code == 0);
    }
    CHECK(fixture.redis.text("GET", "stock") == "0");
}
#endif
