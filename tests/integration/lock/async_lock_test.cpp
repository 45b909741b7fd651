// SPDX-License-Identifier: MIT
// Operations on locks: who completes them and where, what cancels them, and what they leave behind.
#include <doctest/doctest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "integration/lock/async_kit.hpp"
#include "support/coroutine.hpp"
#include "support/proxy.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

TEST_CASE("async: a free lock, by a coroutine, a callback, a future and a waiting thread") {
    with_each_kind([](Fixture& fixture, LockApi& lock) {
        std::promise<Hold> awaited;
        const auto fiber = [&]() -> Fiber { awaited.set_value(co_await lock.async_lock()); };
        {
            const Fiber one = fiber();
            auto result = awaited.get_future();
            REQUIRE(ready(result));
            const Hold hold = result.get();
            CHECK(hold);
            CHECK(hold.valid_until() > Clock::now() + 10s);
            CHECK_FALSE(lock.try_lock());
        }
        REQUIRE(eventually([&] { return fixture.is_clean(); }));
        {
            Completed completion;
            lock.async_lock(Lease{20s}).start(completion.callback());
            REQUIRE(eventually([&] { return completion.came(); }));
            CHECK_FALSE(completion.ec);
            CHECK(completion.hold);
            CHECK(completion.hold.valid_until() < Clock::now() + 20s);
            CHECK(completion.thread != std::this_thread::get_id());
        }
        REQUIRE(eventually([&] { return fixture.is_clean(); }));
        {
            auto later = lock.async_try_lock().future();
            REQUIRE(ready(later));
            const Hold hold = later.get();
            CHECK(hold);
            CHECK_FALSE(lock.async_try_lock().get());
            CHECK_FALSE(lock.async_try_lock_for(20ms).get());
        }
        REQUIRE(eventually([&] { return fixture.is_clean(); }));
        CHECK(lock.async_try_lock_until(Clock::now() + 5s).get());
        CHECK(eventually([&] { return fixture.is_clean(); }));
    });
}

TEST_CASE("async: nothing is sent before the operation begins") {
    Fixture fixture;
    RLock orders{fixture.client, "orders"};
    { auto never_begun = orders.async_lock(); }
    auto operation = orders.async_lock();
    CHECK(fixture.client.stats().commands == 0);
    const Hold hold = std::move(operation).get();
    CHECK(hold);
}

TEST_CASE("async: a held lock: a release wakes the operation, a timeout and a stop request end it") {
    with_each_kind([](Fixture& fixture, LockApi& lock) {
        std::optional<Hold> first = lock.hold();
        Completed second, late, stopped;
        lock.async_lock().start(second.callback());
        lock.async_try_lock_for(30ms).start(late.callback());
        std::stop_source stop;
        lock.async_lock(stop.get_token()).start(stopped.callback());
        REQUIRE(eventually([&] { return late.came(); }));
        CHECK_FALSE(late.ec);
        CHECK_FALSE(late.hold);
        CHECK_FALSE(stopped.came());
        stop.request_stop();
        REQUIRE(eventually([&] { return stopped.came(); }));
        CHECK(eventually([&] { return fixture.client.stats().waiting <= 1; }));  // a MultiLock's does not always wait
        CHECK(stopped.ec == errc::cancelled);
        CHECK(stopped.ec == std::errc::operation_canceled);
        CHECK_FALSE(stopped.hold);
        CHECK_FALSE(second.came());
        first.reset();
        REQUIRE(eventually([&] { return second.came(); }));
        CHECK(second.hold);
        second.hold = Hold();
        CHECK(eventually([&] { return fixture.is_clean(); }));
    });
}

TEST_CASE("async: readers hold together, a writer waits for them") {
    Fixture fixture;
    ReadWriteLock table{fixture.client, "table"};
    std::vector<Hold> readers;
    for (int i = 0; i < 5; ++i) readers.push_back(table.async_lock_shared().future().get());
    CHECK(table.async_try_lock_shared().future().get());
    CHECK(table.async_try_lock_shared_for(20s).future().get());
    CHECK(table.async_try_lock_shared_until(Clock::now() + 20s).future().get());
    auto writer = table.async_lock().future();
    CHECK_FALSE(table.async_try_lock_for(20ms).future().get());
    readers.clear();
    REQUIRE(ready(writer));
    const Hold alone = writer.get();
    CHECK(alone);
    CHECK_FALSE(table.async_try_lock_shared().future().get());
}

TEST_CASE("async: the token of a FencedLock comes with the hold") {
    Fixture fixture;
    FencedLock orders{fixture.client, "orders"};
    const auto first = orders.async_lock().future().get().token();
    CHECK(orders.async_lock().future().get().token() > first);
}

TEST_CASE("async: a server that cannot do it: each way to wait has the error") {
    Fixture fixture;
    fixture.redis.text("SET", "orders", "a string");
    RLock orders{fixture.client, "orders"};
    Completed completion;
    orders.async_lock().start(completion.callback());
    REQUIRE(eventually([&] { return completion.came(); }));
    CHECK(completion.ec == errc::wrong_type);
    CHECK_FALSE(completion.hold);
    CHECK_THROWS_AS(static_cast<void>(orders.async_lock().future().get()), Error);
    CHECK_THROWS_AS(static_cast<void>(orders.async_lock().get()), Error);
    std::promise<std::error_code> thrown, told;
    const auto fiber = [&]() -> Fiber {
        try {
            static_cast<void>(co_await orders.async_lock());
        } catch (const Error& error) {
            thrown.set_value(error.code());
        }
        auto [ec, hold] = co_await orders.async_lock().no_throw();
        told.set_value(hold ? std::error_code() : ec);
    };
    const Fiber one = fiber();
    CHECK(thrown.get_future().get() == errc::wrong_type);
    CHECK(told.get_future().get() == errc::wrong_type);
}

// --- where it completes ----------------------------------------------------------------------------------------------

TEST_CASE("async: completes on the executor that was named, and nowhere else") {
    with_each_kind([](Fixture& fixture, LockApi& lock) {
        const ManualExecutor executor;
        Completed completion;
        lock.async_lock().on(executor).start(completion.callback());
        REQUIRE(eventually([&] { return fixture.client.stats().acquisitions > 0; }));
        CHECK_FALSE(completion.came());
        REQUIRE(eventually([&] { return executor.run() > 0; }));
        CHECK(completion.hold);
        CHECK(completion.thread == std::this_thread::get_id());
    });
}

TEST_CASE("async: a function can be an executor; one that refuses leaves the completion to the client") {
    Fixture fixture;
    RLock orders{fixture.client, "orders"};
    std::atomic<int> runs{0};
    auto by_function = orders.async_lock()
                           .on([&](std::function<void()> f) {
                               ++runs;
                               f();
                           })
                           .future();
    CHECK(by_function.get());
    CHECK(runs == 1);
    auto refused =
        orders.async_lock().on([](const std::function<void()>&) { throw std::runtime_error("full"); }).future();
    CHECK(refused.get());
}

TEST_CASE("async: an executor that drops the completion gives the hold back, of a callback and of a coroutine") {
    with_each_kind([](Fixture& fixture, LockApi& lock) {
        std::atomic<int> given{0};
        const auto drops = [&](const std::function<void()>&) { ++given; };
        lock.async_lock().on(drops).start([](std::error_code, const Hold&) {});
        REQUIRE(eventually([&] { return given == 1; }));
        CHECK(eventually([&] { return fixture.is_clean(); }));
        // Also if the program keeps the operation.
        Operation<Hold> named = lock.async_lock().on(drops);
        std::future<Hold> broken = std::move(named).future();
        REQUIRE(eventually([&] { return given == 2; }));
        CHECK(eventually([&] { return fixture.is_clean(); }));
        REQUIRE(ready(broken));
        CHECK_THROWS_AS(static_cast<void>(broken.get()), std::future_error);
        bool goes_on = false;
        const auto coroutine = [&]() -> Fiber {
            const Hold hold = co_await lock.async_lock().on(drops);
            goes_on = true;
        };
        Fiber fiber = coroutine();
        CHECK(eventually([&] { return given == 3; }));
        CHECK(eventually([&] { return fixture.is_clean(); }));
        CHECK_FALSE(goes_on);
        fiber.destroy();
    });
}

TEST_CASE("async: nothing completes inside the call that begins it, that releases the lock or that cancels it") {
    with_each_kind([](Fixture& fixture, LockApi& lock) {
        // Whoever completes an operation while this thread has the mutex cannot be this thread.
        std::mutex mine;
        std::atomic<int> completed{0};
        const auto note = [&](std::error_code, const Hold&) {
            const std::lock_guard wait(mine);
            ++completed;
        };
        std::stop_source stop;
        {
            const std::lock_guard busy(mine);
            Hold hold = lock.hold();
            lock.async_lock().start(note);
            lock.async_lock(stop.get_token()).start(note);
            lock.async_lock(stop.get_token()).start(note);
            stop.request_stop();
            CHECK(hold.unlock() == std::error_code());
            std::stop_source before;
            before.request_stop();
            lock.async_lock(before.get_token()).start(note);
        }
        CHECK(eventually([&] { return completed == 4; }));
        CHECK(eventually([&] { return fixture.is_clean(); }));
    });
}

TEST_CASE("async: a completion that blocks holds up neither renewals nor messages nor other executors") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    RLock kept{client, "kept"}, orders{client, "orders"}, parcels{client, "parcels"};
    const Hold renewed = kept.hold();
    std::promise<void> go_on;
    auto blocked_until = go_on.get_future().share();
    Completed blocked;
    orders.async_lock().start([&](std::error_code ec, Hold hold) {
        blocked_until.wait();
        blocked(ec, std::move(hold));
    });
    REQUIRE(eventually([&] { return client.stats().acquisitions == 2; }));
    const auto until = renewed.valid_until();
    // Messages: a thread, and an operation with an executor, wait for a release by another client.
    Client other{server.url()};
    RLock theirs{other, "parcels"};
    theirs.lock();
    auto thread = start([&] { return parcels.hold(); });
    const ManualExecutor executor;
    Completed coroutine;
    RLock more{client, "more"};
    more.async_lock().on(executor).start(coroutine.callback());
    REQUIRE(eventually([&] { return executor.run() > 0; }));
    CHECK(coroutine.hold);
    theirs.unlock();
    REQUIRE(ready(thread));
    CHECK(eventually([&] { return renewed.valid_until() > until + short_lease; }, patient(20s)));
    CHECK_FALSE(renewed.lost().stop_requested());
    CHECK_FALSE(blocked.came());
    go_on.set_value();
    CHECK(eventually([&] { return blocked.came(); }));
}

// --- cancelling ------------------------------------------------------------------------------------------------------

TEST_CASE("async: a coroutine that is destroyed while it waits cancels the operation") {
    with_each_kind([](Fixture& fixture, LockApi& lock) {
        std::optional<Hold> first = lock.hold();
        bool went_on = false;
        const ManualExecutor executor;
        const auto waiting = [&]() -> Fiber {
            const Hold hold = co_await lock.async_lock().on(executor);
            went_on = true;
        };
        {
            Fiber gone = waiting();
            CHECK(eventually([&] { return fixture.client.stats().waiting > 0; }));
            gone.destroy();
        }
        CHECK(eventually([&] { return fixture.client.stats().waiting == 0; }));
        first.reset();
        CHECK(eventually([&] { return fixture.is_clean(); }));
        executor.run();
        CHECK_FALSE(went_on);
        CHECK(lock.async_try_lock_for(5s).get());
        // Destroyed after the grant, before its executor could resume it.
        {
            Fiber gone = waiting();
            CHECK(eventually([&] { return fixture.client.stats().acquisitions >= 3; }));
            gone.destroy();
        }
        // It is given back although the executor may have no time for long.
        CHECK(eventually([&] { return fixture.is_clean(); }));
        executor.run();
        CHECK_FALSE(went_on);
        CHECK(fixture.is_clean());
    });
}

TEST_CASE("async: cancelled while the command is under way: completes at once, and its hold is released") {
    for (const Kind& kind : kinds) {
        CAPTURE(kind.name);
        RedisServer server;
        RawRedis redis{server};
        Proxy proxy{server.url()};
        Client client{proxy.url(), {.command_timeout = 60s, .unreachable_timeout = 60s}};
        const auto lock = kind.make(client);
        lock->lock();  // the next command is the acquire
        lock->unlock();
        proxy.hold_next_replies(1, "");
        std::stop_source stop;
        Completed completion;
        lock->async_lock(stop.get_token()).start(completion.callback());
        REQUIRE(eventually([&] { return proxy.counts().held > 0; }));
        stop.request_stop();
        REQUIRE(eventually([&] { return completion.came(); }, 20s));  // long before the command's timeout
        CHECK(completion.ec == errc::cancelled);
        proxy.release();
        CHECK(lock->async_try_lock_for(10s).get());
        CHECK(eventually(
            [&] {
                const auto keys = redis.keys();
                return std::all_of(keys.begin(), keys.end(),
                                   [](const auto& key) { return key.starts_with("redisson_lock_token"); });
            },
            patient(10s)));
    }
}

// Whoever cancels and whoever grants come at the same time, in every order.
TEST_CASE("async: grants and cancellations at the same time: one completion each, never two holders, nothing left") {
    with_each_kind([](Fixture& fixture, LockApi& lock) {
        const int operations = 300 / slow_build_factor;
        long inside = 0, most = 0, held = 0;  // plain: the lock is what guards them
        std::atomic<int> completed{0}, cancelled{0}, wrong{0};
        std::deque<std::stop_source> stops(static_cast<std::size_t>(operations));
        std::mt19937 random{20261122};
        for (int i = 0; i < operations; ++i) {
            lock.async_lock(stops[static_cast<std::size_t>(i)].get_token()).start([&](std::error_code ec, Hold hold) {
                if (ec == errc::cancelled) ++cancelled;
                if (static_cast<bool>(ec) == static_cast<bool>(hold)) ++wrong;
                if (hold) {
                    most = std::max(most, ++inside);
                    ++held;
                    --inside;
                }
                hold = Hold();
                ++completed;
            });
            if (random() % 2 == 0) stops[random() % static_cast<std::size_t>(i + 1)].request_stop();
        }
        REQUIRE(eventually([&] { return completed == operations; }, patient(60s)));
        CHECK(wrong == 0);
        CHECK(most == 1);
        CHECK(held + cancelled == operations);
        CHECK(held > 0);
        CHECK(cancelled > 0);
        CHECK(eventually([&] { return fixture.is_clean(); }));
    });
}

TEST_CASE("async: coroutines and threads take turns: never two holders") {
    with_each_kind([](Fixture& fixture, LockApi& lock) {
        const int turns = 60 / slow_build_factor;
        long inside = 0, most = 0, done = 0;  // plain: the lock is what guards them
        const auto enter = [&] {
            most = std::max(most, ++inside);
            ++done;
            --inside;
        };
        const auto coroutine = [&]() -> Fiber {
            for (int i = 0; i < turns; ++i) {
                Hold hold = co_await lock.async_lock();
                enter();
            }
        };
        std::vector<Fiber> fibers;
        for (int i = 0; i < 3; ++i) fibers.push_back(coroutine());
        std::vector<std::future<void>> threads;
        for (int i = 0; i < 3; ++i)
            threads.push_back(start([&] {
                for (int turn = 0; turn < turns; ++turn) {
                    const std::lock_guard guard{lock};
                    enter();
                }
            }));
        for (auto& thread : threads) {
            REQUIRE(ready(thread, patient(60s)));
            thread.get();
        }
        fibers.clear();  // when they have ended
        CHECK(most == 1);
        CHECK(done == 6 * turns);
        CHECK(eventually([&] { return fixture.is_clean(); }));
    });
}

// --- lifetimes -------------------------------------------------------------------------------------------------------

TEST_CASE("async: an operation outlives the lock and the client that it came from") {
    RedisServer server;
    RawRedis redis{server};
    Client other{server.url()};
    RLock theirs{other, "orders"};
    theirs.lock();
    Completed completion;
    {
        Client client{server.url()};
        RLock orders{client, "orders"};
        orders.async_lock().start(completion.callback());
        REQUIRE(eventually([&] { return client.stats().waits == 1; }));
    }
    CHECK_FALSE(completion.came());
    theirs.unlock();
    REQUIRE(eventually([&] { return completion.came(); }));
    CHECK(completion.hold);
    CHECK(completion.hold.unlock() == std::error_code());
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("async: a completion may destroy the client; so may a cancellation") {
    RedisServer server;
    for (const bool cancelled : {false, true}) {
        CAPTURE(cancelled);
        auto client = std::make_shared<Client>(server.url());
        auto orders = std::make_shared<RLock>(*client, "orders");
        Hold mine;
        if (cancelled) mine = orders->hold();
        std::stop_source stop;
        std::promise<std::error_code> done;
        orders->async_lock(stop.get_token()).start([&done, client, orders](std::error_code ec, Hold hold) mutable {
            hold = Hold();
            orders.reset();
            client.reset();
            done.set_value(ec);
        });
        orders.reset();
        client.reset();
        if (cancelled) stop.request_stop();
        CHECK(done.get_future().get() == (cancelled ? make_error_code(errc::cancelled) : std::error_code()));
    }
}

TEST_CASE("async: a lock over several ends its operations when it is destroyed") {
    Fixture fixture;
    RLock a{fixture.client, "a"}, b{fixture.client, "b"};
    Client other{fixture.server.url()};
    RLock theirs{other, "b"};
    theirs.lock();
    Completed waiting, not_begun;
    std::optional<Operation<Hold>> kept;
    {
        MultiLock both{a, b};
        both.async_lock().start(waiting.callback());
        kept.emplace(both.async_lock());
        REQUIRE(eventually([&] { return fixture.client.stats().waits > 0; }));
    }
    REQUIRE(eventually([&] { return waiting.came(); }));
    CHECK(waiting.ec == errc::cancelled);
    std::move(*kept).start(not_begun.callback());
    REQUIRE(eventually([&] { return not_begun.came(); }));
    CHECK(not_begun.ec == errc::cancelled);
    theirs.unlock();
    CHECK(eventually([&] { return fixture.redis.keys().empty(); }));
}

// --- many ------------------------------------------------------------------------------------------------------------

TEST_CASE("async: thousands of operations wait on one lock without a thread each, and are served in order") {
    const int waiters = 3000 / slow_build_factor;
    Fixture fixture;
    RLock orders{fixture.client, "orders"};
    std::optional<Hold> first = orders.hold();
    std::vector<int> order;  // guarded by the lock
    std::atomic<int> completed{0};
    for (int i = 0; i < waiters; ++i)
        orders.async_lock().start([&, i](std::error_code, const Hold& hold) {
            if (hold) order.push_back(i);
            ++completed;
        });
    REQUIRE(eventually([&] { return fixture.client.stats().waits == static_cast<std::uint64_t>(waiters); }));
    const auto commands = fixture.client.stats().commands;
    std::this_thread::yield();
    CHECK(fixture.client.stats().commands <= commands + 2);
    first.reset();
    REQUIRE(eventually([&] { return completed == waiters; }, patient(60s)));
    CHECK(order.size() == static_cast<std::size_t>(waiters));
    // The first one may be asking the server at the moment of the release. Then others are served before it.
    CHECK(std::erase(order, 0) == 1);
    CHECK(std::is_sorted(order.begin(), order.end()));
}
