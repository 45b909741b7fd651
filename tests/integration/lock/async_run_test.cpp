// SPDX-License-Identifier: MIT
// Operations that end holds, run a function under a lock, and close a client.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "integration/lock/async_kit.hpp"
#include "support/coroutine.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

template <class R>
std::error_code error_of(Operation<R>&& operation) {
    const auto told = std::make_shared<std::promise<std::error_code>>();
    std::future<std::error_code> result = told->get_future();
    std::move(operation).start([told](std::error_code ec, auto&&...) { told->set_value(ec); });
    return result_of(std::move(result));
}

}  // namespace

// --- async_unlock() ---------------------------------------------------------------------------------------------

TEST_CASE("async_unlock: the lock is free when it completes, and the object holds nothing from the call on") {
    with_each_kind([](Fixture& fixture, LockApi& lock) {
        Hold hold = lock.hold();
        Operation<std::error_code> unlocking = std::move(hold).async_unlock();
        CHECK_FALSE(hold);
        CHECK(lock.is_locked());
        CHECK_FALSE(result_of(std::move(unlocking).future()));
        CHECK(fixture.is_clean());

        std::promise<std::error_code> told;
        const auto coroutine = [&]() -> Fiber {
            Hold mine = co_await lock.async_lock();
            told.set_value(co_await std::move(mine).async_unlock());
        };
        const Fiber fiber = coroutine();
        CHECK_FALSE(result_of(told.get_future()));
        CHECK(fixture.is_clean());

        CHECK_FALSE(lock.hold().async_unlock().get());
        CHECK(fixture.is_clean());
        CHECK_THROWS_AS(static_cast<void>(Hold().async_unlock()), Error);
    });
}

TEST_CASE("async_unlock: an operation that is cancelled or never begun releases the hold all the same") {
    with_each_kind([](Fixture& fixture, LockApi& lock) {
        { const auto never_begun = lock.hold().async_unlock(); }
        CHECK(eventually([&] { return fixture.is_clean(); }));
        std::stop_source stop;
        stop.request_stop();
        CHECK(error_of(lock.hold().async_unlock().stop_on(stop.get_token())) == errc::cancelled);
        CHECK(eventually([&] { return fixture.is_clean(); }));
        // Asio may cancel it on another thread, before it is begun.
        {
            Operation<std::error_code> given_up = lock.hold().async_unlock();
            redlatch::detail::OperationAccess::running(given_up)->give_up();
            CHECK(error_of(std::move(given_up)) == errc::cancelled);
        }
        CHECK(eventually([&] { return fixture.is_clean(); }));
    });
}

TEST_CASE("async_unlock: one level of several; a hold that is gone is reported") {
    Fixture fixture;
    RLock lock{fixture.client, "orders"};
    const Hold outer = lock.hold();
    Hold inner = outer.again();
    CHECK_FALSE(result_of(std::move(inner).async_unlock().future()));
    CHECK(lock.is_locked());
    inner = outer.again();
    fixture.redis.call("DEL", "orders");
    CHECK(result_of(std::move(inner).async_unlock().future()) == errc::hold_lost);
}

TEST_CASE("async_unlock: a server that does not reply: unreachable in time, and released later") {
    Fixture fixture;
    Client client{fixture.server.url(), {.command_timeout = 200ms}};
    RLock lock{client, "orders"};
    Hold hold = lock.hold();
    fixture.server.stop();
    const std::error_code ec = result_of(std::move(hold).async_unlock().future());
    fixture.server.cont();
    CHECK(ec == errc::unreachable);
    CHECK(eventually([&] { return fixture.is_clean(); }));
}

// --- async_run() ------------------------------------------------------------------------------------------------

namespace {

// Runs a function under a lock, and ends the operation or the hold meanwhile. The destructor of its result takes its time.
void destroy_a_result(bool is_given_up) {
    Fixture fixture;
    Client client{fixture.server.url(), {.watchdog_timeout = 3s}};
    RLock kept{client, "kept"}, orders{client, "orders"};
    const std::lock_guard guard{kept};
    std::atomic<bool> is_called{false}, is_destroying{false}, goes_on{false}, is_destroyed{false};
    std::stop_source stop;
    orders
        .async_run([&](std::stop_token ending) {
            if (!is_given_up) fixture.redis.integer("DEL", "orders");
            is_called = true;
            if (is_given_up) static_cast<void>(eventually([&] { return ending.stop_requested(); }, 20s));
            return std::shared_ptr<int>(new int, [&](const int* result) {
                delete result;
                is_destroying = true;
                static_cast<void>(eventually([&] { return goes_on.load(); }, 60s));
                is_destroyed = true;
            });
        })
        .stop_on(stop.get_token())
        .start([](std::error_code, std::shared_ptr<int>) {});
    REQUIRE(eventually([&] { return is_called.load(); }));
    if (is_given_up) stop.request_stop();
    REQUIRE(eventually([&] { return is_destroying.load(); }));
    const std::uint64_t renewals = client.stats().renewals;
    CHECK(eventually([&] { return client.stats().renewals > renewals + 1; }, 15s));
    CHECK(kept.is_held());
    goes_on = true;
    REQUIRE(eventually([&] { return is_destroyed.load(); }, 60s));
}

}  // namespace

TEST_CASE("async_run: the result of a function that was given up is not destroyed on the thread that renews") {
    destroy_a_result(true);
}

TEST_CASE("async_run: the result of a function whose lock was lost is not destroyed on the thread that renews") {
    destroy_a_result(false);
}

TEST_CASE("async_run: the function runs while the lock is held, and its result comes when the lock is free") {
    with_each_kind([](Fixture& fixture, LockApi& lock) {
        bool was_held = false;
        const auto work = [&](const std::stop_token& lost) {
            was_held = lock.is_locked() && !lock.try_lock() && !lost.stop_requested();
            return 7;
        };
        CHECK(result_of(lock.async_run(work).future()) == 7);
        CHECK(std::exchange(was_held, false));
        CHECK(fixture.is_clean());
        CHECK(lock.async_run(work).get() == 7);
        CHECK(std::exchange(was_held, false));
        CHECK(fixture.is_clean());

        std::promise<int> told;
        const auto coroutine = [&]() -> Fiber { told.set_value(co_await lock.async_run(work, Lease(10s))); };
        const Fiber fiber = coroutine();
        CHECK(result_of(told.get_future()) == 7);
        CHECK(std::exchange(was_held, false));
        CHECK(fixture.is_clean());
    });
}

TEST_CASE(
    "async_run: a function without a result, with one that is no more than movable, and with a member of its own") {
    Fixture fixture;
    RLock lock{fixture.client, "orders"};
    bool called = false;
    CHECK_FALSE(error_of(lock.async_run([&](const std::stop_token&) { called = true; })));
    CHECK(called);
    lock.async_run([own = std::make_unique<int>(3)](const std::stop_token&) { return *own; }).get();
    const auto moved =
        result_of(lock.async_run([](const std::stop_token&) { return std::make_unique<int>(4); }).future());
    CHECK(*moved == 4);
    std::promise<std::error_code> told;
    const auto coroutine = [&]() -> Fiber {
        co_await lock.async_run([](const std::stop_token&) {});
        told.set_value(co_await lock.async_run([](const std::stop_token&) {}).no_throw());
    };
    const Fiber fiber = coroutine();
    CHECK_FALSE(result_of(told.get_future()));
}

TEST_CASE("async_run: a function that returns an awaitable") {
    Fixture fixture;
    RLock lock{fixture.client, "orders"}, other{fixture.client, "other"};
    const auto work = [&](const std::stop_token&) { return other.async_lock(); };
    Hold hold = result_of(lock.async_run(work).future());
    CHECK(hold);
    CHECK_FALSE(lock.is_locked());
    CHECK(other.is_locked());
    CHECK_FALSE(hold.unlock());
    hold = lock.async_run(work).get();
    CHECK(hold);
    CHECK_FALSE(hold.unlock());
    CHECK(fixture.is_clean());
}

TEST_CASE("async_run: an exception of the function releases the lock and is the outcome") {
    Fixture fixture;
    RLock lock{fixture.client, "orders"};
    const auto fail = [](const std::stop_token&) -> int { throw std::runtime_error("no paper"); };
    CHECK_THROWS_WITH_AS(result_of(lock.async_run(fail).future()), "no paper", std::runtime_error);
    CHECK(fixture.is_clean());
    CHECK_THROWS_WITH_AS(lock.async_run(fail).get(), "no paper", std::runtime_error);
    CHECK(fixture.is_clean());
    CHECK(error_of(lock.async_run(fail)) == errc::function_failed);
    CHECK(error_of(lock.async_run([](const std::stop_token&) {
              throw std::system_error(make_error_code(std::errc::broken_pipe));
          })) == std::errc::broken_pipe);
}

TEST_CASE(
    "async_run: the function runs on the executor that was named, otherwise on the client's thread of callbacks") {
    Fixture fixture;
    RLock lock{fixture.client, "orders"};
    const auto thread = [](const std::stop_token&) { return std::this_thread::get_id(); };
    const ManualExecutor executor;
    auto named = lock.async_run(thread).on(executor).future();
    REQUIRE(eventually([&] { return executor.run() > 0; }));  // the function
    REQUIRE(eventually([&] { return executor.run() > 0; }));  // the completion
    CHECK(result_of(std::move(named)) == std::this_thread::get_id());

    const auto callbacks = std::make_shared<std::promise<std::thread::id>>();
    lock.async_lock().start([callbacks](std::error_code, Hold) { callbacks->set_value(std::this_thread::get_id()); });
    const std::thread::id expected = result_of(callbacks->get_future());
    CHECK(result_of(lock.async_run(thread).future()) == expected);
    CHECK(lock.async_run(thread).get() == std::this_thread::get_id());

    // One that refuses leaves the function to the client; one that drops it cancels.
    const auto refuse = [](const std::function<void()>&) { throw std::runtime_error("full"); };
    CHECK(result_of(lock.async_run(thread).on(refuse).future()) != std::this_thread::get_id());
    bool called = false;
    int jobs = 0;
    const auto drop_first = [&jobs](const std::function<void()>& f) {
        if (jobs++ > 0) f();
    };
    CHECK(error_of(lock.async_run([&](const std::stop_token&) { called = true; }).on(drop_first)) == errc::cancelled);
    CHECK_FALSE(called);
    CHECK(eventually([&] { return fixture.is_clean(); }));
}

TEST_CASE("async_run: the token is requested when the lock is lost, and the outcome is hold_lost") {
    Fixture fixture;
    Client client{fixture.server.url(), with_watchdog(300ms)};
    RLock lock{client, "orders"};
    const auto until_lost = [&](const std::stop_token& lost) {
        fixture.redis.call("DEL", "orders");
        return eventually([&] { return lost.stop_requested(); });
    };
    CHECK(error_of(lock.async_run(until_lost)) == errc::hold_lost);
    CHECK_THROWS_AS(lock.async_run(until_lost).get(), Error);
    // One that ignores the token is late all the same.
    CHECK(error_of(lock.async_run(
              [&](const std::stop_token&) {
                  const Instant over = Clock::now() + 60ms;
                  while (Clock::now() < over) std::this_thread::sleep_for(5ms);
              },
              Lease(30ms))) == errc::hold_lost);
    CHECK(fixture.is_clean());
}

TEST_CASE("async_run: cancelled while the function runs: completes at once, and holds the lock until it returns") {
    Fixture fixture;
    RLock lock{fixture.client, "orders"};
    std::stop_source stop;
    std::promise<void> entered, leave;
    std::atomic<bool> told{false};
    const ManualExecutor executor;
    auto working = start([&] {  // a pool of one thread
        REQUIRE(eventually([&] { return executor.run() > 0; }));
    });
    std::promise<std::error_code> outcome;
    lock.async_run([&](const std::stop_token& ending) {
            entered.set_value();
            leave.get_future().wait();
            told = ending.stop_requested();
        })
        .on(executor)
        .stop_on(stop.get_token())
        .start([&](std::error_code ec) { outcome.set_value(ec); });
    auto inside = entered.get_future();
    REQUIRE(ready(inside));
    stop.request_stop();
    REQUIRE(eventually([&] { return executor.run() > 0; }));
    CHECK(result_of(outcome.get_future()) == errc::cancelled);
    CHECK(lock.is_locked());
    leave.set_value();
    REQUIRE(ready(working));
    CHECK(told);
    CHECK(eventually([&] { return fixture.is_clean(); }));
}

TEST_CASE("async_run: cancelled while its executor has no time: the lock is free, and the function is not called") {
    with_each_kind([](Fixture& fixture, LockApi& lock) {
        std::stop_source stop;
        std::atomic<bool> called{false};
        std::atomic<int> given{0};
        const ManualExecutor executor;
        const auto counts = [&](std::function<void()> f) {
            executor.execute(std::move(f));
            ++given;
        };
        auto result = lock.async_run([&](const std::stop_token&) { called = true; })
                          .on(counts)
                          .stop_on(stop.get_token())
                          .future();
        REQUIRE(eventually([&] { return given == 1; }));
        CHECK(lock.is_locked());
        stop.request_stop();
        CHECK(eventually([&] { return fixture.is_clean(); }));
        REQUIRE(eventually([&] { return given == 2; }));
        CHECK(executor.run() == 2);
        REQUIRE(ready(result));
        CHECK_THROWS_AS(result.get(), Error);
        CHECK_FALSE(called);
    });
}

TEST_CASE("async_run: cancelled before the lock is free: the function is not called") {
    Fixture fixture;
    RLock lock{fixture.client, "orders"};
    Hold holder = lock.hold();
    std::stop_source stop;
    std::atomic<bool> called{false};
    auto result = lock.async_run([&](const std::stop_token&) { called = true; }, stop.get_token()).future();
    REQUIRE(eventually([&] { return fixture.client.stats().waits == 1; }));
    stop.request_stop();
    REQUIRE(ready(result));
    CHECK_THROWS_AS(result.get(), Error);
    CHECK_FALSE(holder.unlock());
    CHECK(eventually([&] { return fixture.is_clean(); }));
    CHECK_FALSE(called);
    CHECK_THROWS_AS(lock.async_run([&](const std::stop_token&) { called = true; }, stop.get_token()).get(), Error);
    CHECK_FALSE(called);
}

// --- Client::async_close() --------------------------------------------------------------------------------------

TEST_CASE("async_close: operations are cancelled, holds are given back, and nothing begins afterwards") {
    Fixture fixture;
    Client other{fixture.server.url()};
    RLock held_elsewhere{other, "elsewhere"}, waited_for{fixture.client, "elsewhere"}, mine{fixture.client, "mine"};
    const Hold blocker = held_elsewhere.hold();
    const Hold hold = mine.hold();
    const std::stop_token lost = hold.lost();
    auto waiting = waited_for.async_lock().future();
    REQUIRE(eventually([&] { return fixture.client.stats().waits == 1; }));
    CHECK(result_of(fixture.client.async_close().future()) == 1);
    REQUIRE(ready(waiting));
    CHECK_THROWS_AS(static_cast<void>(waiting.get()), Error);
    CHECK(eventually([&] { return lost.stop_requested(); }));
    CHECK_FALSE(RLock(other, "mine").is_locked());
    CHECK(error_of(mine.async_lock()) == errc::cancelled);
    CHECK(result_of(fixture.client.async_close(1s).future()) == 0);
    CHECK(fixture.client.async_close(1s).get() == 0);
}

TEST_CASE("async_close: completes after its limit if a server does not reply") {
    Fixture fixture;
    Client client{fixture.server.url(), {.command_timeout = 30s, .unreachable_timeout = 60s}};
    RLock lock{client, "orders"};
    const Hold hold = lock.hold();
    fixture.server.stop();
    const Instant begun = Clock::now();
    const std::error_code ec = error_of(client.async_close(100ms));
    const auto took = Clock::now() - begun;
    fixture.server.cont();
    CHECK(ec == errc::unreachable);
    CHECK(took >= 100ms);
    CHECK(took < 10s);
    CHECK(eventually([&] { return fixture.is_clean(); }));
}
