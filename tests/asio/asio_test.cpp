// SPDX-License-Identifier: MIT
// Operations with completion tokens of Asio. Compiled once with standalone Asio and once with Boost.Asio.
#include <redlatch/asio.hpp>

#ifdef REDLATCH_BOOST_ASIO
#include <boost/asio.hpp>
#include <boost/asio/experimental/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/experimental/deferred.hpp>
namespace asio = boost::asio;
using ErrorCode = boost::system::error_code;
using SystemError = boost::system::system_error;
#else
#include <asio.hpp>
#include <asio/experimental/as_tuple.hpp>
#include <asio/experimental/awaitable_operators.hpp>
#include <asio/experimental/deferred.hpp>
using ErrorCode = asio::error_code;
using SystemError = asio::system_error;
#endif

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/proxy.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;
using namespace asio::experimental::awaitable_operators;

namespace {

#if defined(REDLATCH_BOOST_ASIO)
constexpr auto deferred = asio::deferred;
#else
constexpr auto deferred = asio::experimental::deferred;
#endif

const std::array all_types{asio::cancellation_type::terminal, asio::cancellation_type::partial,
                           asio::cancellation_type::total};

struct Fixture {
    RedisServer server{};
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};

    bool is_clean() {
        return eventually([&] { return redis.keys().empty(); }, patient(5s));
    }

    bool has_waiters(std::uint64_t number) {
        return eventually([&] { return client.stats().waits >= number; });
    }
};

// What a handler was called with.
struct Called {
    int times = 0;
    ErrorCode ec{};
    Hold hold{};
    std::thread::id thread{};

    auto handler() {
        return [this](ErrorCode with, Hold result) {
            ++times;
            ec = with;
            hold = std::move(result);
            thread = std::this_thread::get_id();
        };
    }
};

void rethrow(const std::exception_ptr& error) {
    if (error) std::rethrow_exception(error);
}

// Counts what it has allocated and not freed.
template <class T>
struct CountingAllocator {
    using value_type = T;
    explicit CountingAllocator(std::pair<long, long>& counts_) : counts(&counts_) {}
    template <class U>
    CountingAllocator(const CountingAllocator<U>& other) : counts(other.counts) {}
    T* allocate(std::size_t n) {
        ++counts->first;
        ++counts->second;
        return std::allocator<T>().allocate(n);
    }
    void deallocate(T* memory, std::size_t n) {
        --counts->first;
        std::allocator<T>().deallocate(memory, n);
    }
    template <class U>
    bool operator==(const CountingAllocator<U>& other) const {
        return counts == other.counts;
    }
    std::pair<long, long>* counts;  // present, and in all
};

struct WithAllocator {
    using allocator_type = CountingAllocator<int>;
    using executor_type = asio::io_context::executor_type;
    allocator_type allocator;
    executor_type executor;
    std::function<void(ErrorCode, Hold)> function;
    allocator_type get_allocator() const noexcept { return allocator; }
    executor_type get_executor() const noexcept { return executor; }
    void operator()(ErrorCode ec, Hold hold) { function(ec, std::move(hold)); }
};

}  // namespace

// --- tokens ----------------------------------------------------------------------------------------------------------

TEST_CASE("asio: a callback without an executor is called where operations complete by default") {
    Fixture fixture;
    std::promise<std::pair<ErrorCode, Hold>> done;
    std::thread::id thread, by_default;
    redlatch::async(fixture.orders.async_lock(), [&](ErrorCode ec, Hold hold) {
        thread = std::this_thread::get_id();
        done.set_value({ec, std::move(hold)});
    });
    {
        const auto [ec, hold] = done.get_future().get();
        CHECK_FALSE(ec);
        CHECK(hold);
        CHECK(fixture.orders.is_locked());
    }
    std::promise<void> second;
    fixture.orders.async_lock().start([&](std::error_code, const Hold&) {
        by_default = std::this_thread::get_id();
        second.set_value();
    });
    second.get_future().get();
    CHECK(thread == by_default);
    CHECK(fixture.is_clean());
}

TEST_CASE("asio: use_future") {
    Fixture fixture;
    Hold hold = redlatch::async(fixture.orders.async_lock(), asio::use_future).get();
    CHECK(hold);
    CHECK_FALSE(redlatch::async(fixture.orders.async_try_lock(), asio::use_future).get());
    hold = Hold();
    REQUIRE(fixture.is_clean());
    fixture.redis.text("SET", "orders", "a string");
    auto failed = redlatch::async(fixture.orders.async_lock(), asio::use_future);
    try {
        static_cast<void>(failed.get());
        FAIL("no error");
    } catch (const SystemError& error) {
        CHECK(error.code() == errc::wrong_type);
    }
}

TEST_CASE("asio: if the operation's executor drops the completion, the handler is destroyed and the hold given back") {
    Fixture fixture;
    const auto drops = [](const std::function<void()>&) {};
    auto broken = redlatch::async(fixture.orders.async_lock().on(drops), asio::use_future);
    REQUIRE(broken.wait_for(20s) == std::future_status::ready);
    CHECK_THROWS_AS(static_cast<void>(broken.get()), std::future_error);
    CHECK(fixture.is_clean());
}

TEST_CASE("asio: use_awaitable, as_tuple and deferred") {
    Fixture fixture;
    asio::io_context context;
    const auto visit = [&]() -> asio::awaitable<void> {
        {
            const Hold hold = co_await redlatch::async(fixture.orders.async_lock(), asio::use_awaitable);
            CHECK(hold);
            CHECK(fixture.orders.is_locked());
        }
        CHECK(fixture.is_clean());
        {
            auto later = redlatch::async(fixture.orders.async_lock(Lease{20s}), deferred);
            CHECK_FALSE(fixture.orders.is_locked());
            const Hold hold = co_await std::move(later)(asio::use_awaitable);
            CHECK(hold);
            const auto [ec, none] = co_await redlatch::async(fixture.orders.async_try_lock_for(20ms),
                                                             asio::experimental::as_tuple(asio::use_awaitable));
            CHECK_FALSE(ec);
            CHECK_FALSE(none);
        }
        CHECK(fixture.is_clean());
        fixture.redis.text("SET", "orders", "a string");
        const auto [ec, none] =
            co_await redlatch::async(fixture.orders.async_lock(), asio::experimental::as_tuple(asio::use_awaitable));
        CHECK(ec == errc::wrong_type);
        CHECK_FALSE(none);
        bool thrown = false;
        try {
            const Hold none_either = co_await redlatch::async(fixture.orders.async_lock(), asio::use_awaitable);
        } catch (const SystemError& error) {
            thrown = error.code() == errc::wrong_type;
        }
        CHECK(thrown);
    };
    auto done = asio::co_spawn(context, visit(), asio::use_future);
    context.run();
    done.get();
}

TEST_CASE("asio: a stop token of the operation cancels it, too") {
    Fixture fixture;
    const Hold first = fixture.orders.hold();
    asio::io_context context;
    std::stop_source stop;
    Called called;
    redlatch::async(fixture.orders.async_lock(stop.get_token()), asio::bind_executor(context, called.handler()));
    REQUIRE(fixture.has_waiters(1));
    stop.request_stop();
    context.run();
    CHECK(called.ec == errc::cancelled);
}

// --- executor and allocator ------------------------------------------------------------------------------------------

TEST_CASE("asio: completes on the handler's executor, which does not run out of work meanwhile") {
    Fixture fixture;
    std::optional<Hold> first = fixture.orders.hold();
    asio::io_context context;
    Called called;
    redlatch::async(fixture.orders.async_lock(), asio::bind_executor(context, called.handler()));
    REQUIRE(fixture.has_waiters(1));
    CHECK(context.poll() == 0);
    CHECK_FALSE(context.stopped());
    std::thread release([&] {
        std::this_thread::sleep_for(20ms);
        first.reset();
    });
    context.run();
    release.join();
    CHECK(called.times == 1);
    CHECK(called.hold);
    CHECK(called.thread == std::this_thread::get_id());
}

TEST_CASE("asio: other executors: strands, a thread pool, any_io_executor") {
    Fixture fixture;
    asio::thread_pool pool(2);
    std::vector<std::future<std::thread::id>> threads;
    const auto start = [&](auto executor) {
        auto done = std::make_shared<std::promise<std::thread::id>>();
        threads.push_back(done->get_future());
        redlatch::async(fixture.orders.async_lock(), asio::bind_executor(executor, [done](ErrorCode, const Hold& hold) {
                            CHECK(hold);
                            done->set_value(std::this_thread::get_id());
                        }));
    };
    start(pool.get_executor());
    start(asio::make_strand(pool));
    start(asio::any_io_executor(pool.get_executor()));
    start(asio::any_io_executor(asio::system_executor()));
    start(asio::strand<asio::any_io_executor>(pool.get_executor()));
    for (auto& thread : threads) CHECK(thread.get() != std::this_thread::get_id());
    pool.join();
    CHECK(fixture.is_clean());
}

TEST_CASE("asio: a handler that blocks delays no completion on other executors") {
    Fixture fixture;
    RLock parcels{fixture.client, "parcels"};
    std::promise<void> go_on;
    std::promise<void> blocked;
    redlatch::async(fixture.orders.async_lock(), [&](ErrorCode, const Hold&) {
        blocked.set_value();
        go_on.get_future().wait();
    });
    blocked.get_future().wait();
    asio::io_context context;
    Called called;
    redlatch::async(parcels.async_lock(), asio::bind_executor(context, called.handler()));
    CHECK(context.run_for(patient(5s)) == 1);
    CHECK(called.hold);
    go_on.set_value();
    called.hold = Hold();
    CHECK(fixture.is_clean());
}

TEST_CASE("asio: the handler's allocator gives its memory, which is freed before the call") {
    Fixture fixture;
    asio::io_context context;
    std::pair<long, long> counts{0, 0};
    bool came = false;
    {
        WithAllocator handler{CountingAllocator<int>(counts), context.get_executor(), [&](ErrorCode, const Hold&) {
                                  came = true;
                                  CHECK(counts.first == 0);
                              }};
        redlatch::async(fixture.orders.async_lock(), std::move(handler));
        CHECK(counts.first == 1);
        context.run();
    }
    CHECK(came);
    CHECK(counts.first == 0);
    CHECK(counts.second == 1);
}

TEST_CASE("asio: nothing completes inside the call that begins it or cancels it") {
    Fixture fixture;
    std::mutex mine;
    std::atomic<int> completed{0};
    const auto handler = [&](ErrorCode, const Hold&) {
        // A thread that has the mutex cannot be here.
        const std::lock_guard wait(mine);
        ++completed;
    };
    asio::cancellation_signal signal;
    {
        const std::lock_guard busy(mine);
        const Hold hold = fixture.orders.hold();
        redlatch::async(fixture.orders.async_try_lock(), handler);
        redlatch::async(fixture.orders.async_lock(), asio::bind_cancellation_slot(signal.slot(), handler));
        signal.emit(asio::cancellation_type::all);
        std::stop_source before;
        before.request_stop();
        redlatch::async(fixture.orders.async_lock(before.get_token()), handler);
    }
    CHECK(eventually([&] { return completed == 3; }));
}

// --- cancelling ------------------------------------------------------------------------------------------------------

TEST_CASE("asio: each type of cancellation ends the wait and leaves nothing") {
    Fixture fixture;
    for (const auto type : all_types) {
        std::optional<Hold> first = fixture.orders.hold();
        asio::io_context context;
        asio::cancellation_signal signal;
        Called called;
        const auto waits = fixture.client.stats().waits;
        redlatch::async(fixture.orders.async_lock(),
                        asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(context, called.handler())));
        REQUIRE(fixture.has_waiters(waits + 1));
        signal.emit(asio::cancellation_type::none);
        CHECK(context.run_for(20ms) == 0);
        signal.emit(type);
        context.run();
        CHECK(called.times == 1);
        CHECK(called.ec == errc::cancelled);
        CHECK(called.ec == std::errc::operation_canceled);
        CHECK_FALSE(called.hold);
        first.reset();
        CHECK(fixture.is_clean());
        signal.emit(type);  // too late, harmless
    }
}

TEST_CASE("asio: cancelled after the grant was decided: completes with the hold") {
    Fixture fixture;
    for (const auto type : all_types) {
        asio::io_context context;
        asio::cancellation_signal signal;
        Called called;
        const auto acquisitions = fixture.client.stats().acquisitions;
        redlatch::async(fixture.orders.async_lock(),
                        asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(context, called.handler())));
        REQUIRE(eventually([&] { return fixture.client.stats().acquisitions > acquisitions; }));
        std::this_thread::sleep_for(20ms);
        signal.emit(type);
        context.run();
        CHECK(called.times == 1);
        CHECK_FALSE(called.ec);
        CHECK(called.hold);
        called.hold = Hold();
        CHECK(fixture.is_clean());
    }
}

TEST_CASE("asio: cancelled while the command is under way: completes at once, and its hold is released") {
    for (const auto type : all_types) {
        RedisServer server;
        RawRedis redis{server};
        Proxy proxy{server.url()};
        Client client{proxy.url(), {.command_timeout = 30s}};
        RLock orders{client, "orders"};
        orders.lock();  // the next command is the acquire
        orders.unlock();
        proxy.hold_next_replies(1, "");
        asio::io_context context;
        asio::cancellation_signal signal;
        Called called;
        redlatch::async(orders.async_lock(),
                        asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(context, called.handler())));
        REQUIRE(eventually([&] { return proxy.counts().held > 0; }));
        signal.emit(type);
        CHECK(context.run_for(10s) == 1);  // long before the command's time-out
        CHECK(called.ec == errc::cancelled);
        proxy.release();
        CHECK(eventually([&] { return redis.keys().empty(); }, patient(10s)));
    }
}

TEST_CASE("asio: grants and cancellations at the same time: one completion each, and nothing left") {
    Fixture fixture;
    const int operations = 300 / slow_build_factor;
    asio::io_context context;
    std::vector<asio::cancellation_signal> signals(static_cast<std::size_t>(operations));
    int held = 0, cancelled = 0, inside = 0, wrong = 0;
    for (int i = 0; i < operations; ++i) {
        const auto enter = [&](ErrorCode ec, Hold hold) {
            if (static_cast<bool>(ec) == static_cast<bool>(hold)) ++wrong;
            if (ec == errc::cancelled) ++cancelled;
            if (!hold) return;
            ++held;
            if (++inside != 1) ++wrong;
            --inside;
        };
        auto& signal = signals[static_cast<std::size_t>(i)];
        redlatch::async(fixture.orders.async_lock(),
                        asio::bind_cancellation_slot(signal.slot(), asio::bind_executor(context, enter)));
        if (i % 2 == 0)
            asio::post(context, [&signal, i] { signal.emit(all_types[static_cast<std::size_t>(i / 2 % 3)]); });
    }
    context.run();
    CHECK(held + cancelled == operations);
    CHECK(held > 0);
    CHECK(cancelled > 0);
    CHECK(wrong == 0);
    CHECK(fixture.is_clean());
}

// --- parallel groups -------------------------------------------------------------------------------------------------

TEST_CASE("asio: || with a timer: the loser is cancelled, and its hold is released") {
    Fixture fixture;
    std::optional<Hold> first = fixture.orders.hold();
    asio::io_context context;
    const auto race = [&]() -> asio::awaitable<void> {
        asio::steady_timer timer(context);
        timer.expires_after(30ms);
        auto late = co_await (redlatch::async(fixture.orders.async_lock(), asio::use_awaitable) ||
                              timer.async_wait(asio::use_awaitable));
        CHECK(late.index() == 1);
        first.reset();
        CHECK(fixture.is_clean());

        timer.expires_after(60s);
        {
            auto in_time = co_await (redlatch::async(fixture.orders.async_lock(), asio::use_awaitable) ||
                                     timer.async_wait(asio::use_awaitable));
            REQUIRE(in_time.index() == 0);
            CHECK(std::get<0>(in_time));
        }
        CHECK(fixture.is_clean());

        // The timer and the grant come at the same time.
        for (int i = 0; i < 50 / slow_build_factor; ++i) {
            timer.expires_after(std::chrono::microseconds(20 * i));
            auto either = co_await (redlatch::async(fixture.orders.async_lock(), asio::use_awaitable) ||
                                    timer.async_wait(asio::use_awaitable));
            if (either.index() == 1) CHECK(fixture.is_clean());
        }
        CHECK(fixture.is_clean());
    };
    auto done = asio::co_spawn(context, race(), asio::use_future);
    context.run();
    done.get();
}

TEST_CASE("asio: && has both holds, or neither") {
    Fixture fixture;
    RLock parcels{fixture.client, "parcels"};
    asio::io_context context;
    const auto both = [&]() -> asio::awaitable<void> {
        asio::steady_timer timer(context);
        {
            const auto [a, b] = co_await (redlatch::async(fixture.orders.async_lock(), asio::use_awaitable) &&
                                          redlatch::async(parcels.async_lock(), asio::use_awaitable));
            CHECK(a);
            CHECK(b);
        }
        CHECK(fixture.is_clean());
        const Hold taken = co_await redlatch::async(parcels.async_lock(), asio::use_awaitable);
        timer.expires_after(50ms);
        auto result = co_await ((redlatch::async(fixture.orders.async_lock(), asio::use_awaitable) &&
                                 redlatch::async(parcels.async_lock(), asio::use_awaitable)) ||
                                timer.async_wait(asio::use_awaitable));
        CHECK(result.index() == 1);
        CHECK(eventually([&] { return fixture.redis.keys() == std::vector<std::string>{"parcels"}; }));
    };
    auto done = asio::co_spawn(context, both(), asio::use_future);
    context.run();
    done.get();
    CHECK(fixture.is_clean());
}

// --- lifetimes -------------------------------------------------------------------------------------------------------

TEST_CASE("asio: a context that is destroyed takes its handlers with it; what they waited for is given up") {
    Fixture fixture;
    std::optional<Hold> first = fixture.orders.hold();
    const auto token = std::make_shared<int>();
    std::atomic<int> called{0};
    {
        asio::io_context context;
        asio::cancellation_signal signal;
        for (int i = 0; i < 5; ++i)
            redlatch::async(fixture.orders.async_lock(),
                            asio::bind_executor(context, [&called, token](ErrorCode, const Hold&) { ++called; }));
        const auto coroutine = [&, keep = token]() -> asio::awaitable<void> {
            asio::steady_timer timer(context);
            timer.expires_after(60s);
            co_await (redlatch::async(fixture.orders.async_lock(), asio::use_awaitable) ||
                      timer.async_wait(asio::use_awaitable));
            ++called;
        };
        asio::co_spawn(context, coroutine(), asio::detached);
        context.poll();
        REQUIRE(fixture.has_waiters(6));
    }
    CHECK(token.use_count() == 1);
    std::this_thread::sleep_for(20ms);
    const auto acquisitions = fixture.client.stats().acquisitions;
    first.reset();
    CHECK(fixture.is_clean());
    CHECK(fixture.orders.async_try_lock_for(5s).get());
    CHECK(fixture.client.stats().acquisitions < acquisitions + 6);  // the six do not wait any more
    CHECK(called == 0);
}

TEST_CASE("asio: a context that is destroyed with a grant in its queue releases the hold") {
    Fixture fixture;
    std::atomic<int> called{0};
    {
        asio::io_context context;
        redlatch::async(fixture.orders.async_lock(),
                        asio::bind_executor(context, [&called](ErrorCode, const Hold&) { ++called; }));
        asio::co_spawn(
            context,
            [&]() -> asio::awaitable<void> {
                const Hold hold = co_await redlatch::async(fixture.orders.async_lock(), asio::use_awaitable);
                ++called;
            },
            asio::detached);
        REQUIRE(eventually([&] { return fixture.client.stats().acquisitions > 0; }));
        std::this_thread::sleep_for(20ms);
    }
    CHECK(fixture.is_clean());
    CHECK(called == 0);
}

TEST_CASE("asio: a context that is destroyed while grants come") {
    Fixture fixture;
    for (int round = 0; round < 100 / slow_build_factor; ++round) {
        std::optional<Hold> first = fixture.orders.hold();
        auto context = std::make_unique<asio::io_context>();
        const auto waits = fixture.client.stats().waits;
        for (int i = 0; i < 3; ++i)
            redlatch::async(fixture.orders.async_lock(), asio::bind_executor(*context, [](ErrorCode, const Hold&) {}));
        REQUIRE(fixture.has_waiters(waits + 3));
        first.reset();
        std::this_thread::sleep_for(std::chrono::microseconds(20 * round));
        context.reset();
        CHECK(fixture.is_clean());
    }
}

TEST_CASE("asio: the client may go before the operation and its context") {
    RedisServer server;
    RawRedis redis{server};
    asio::io_context context;
    Called called;
    {
        Client client{server.url()};
        RLock orders{client, "orders"};
        redlatch::async(orders.async_lock(), asio::bind_executor(context, called.handler()));
    }
    context.run();
    CHECK(called.hold);
    called.hold = Hold();
    CHECK(eventually([&] { return redis.keys().empty(); }));
}

// --- many ------------------------------------------------------------------------------------------------------------

TEST_CASE("asio: a thousand coroutines on one thread take turns") {
    Fixture fixture;
    const int coroutines = 1000;
    asio::io_context context;
    long counter = 0, inside = 0, most = 0;  // plain, and used across a suspension
    const auto turn = [&]() -> asio::awaitable<void> {
        const Hold hold = co_await redlatch::async(fixture.orders.async_lock(), asio::use_awaitable);
        const long seen = counter;
        most = std::max(most, ++inside);
        co_await asio::post(context, asio::use_awaitable);
        --inside;
        counter = seen + 1;
    };
    int done = 0;
    for (int i = 0; i < coroutines; ++i)
        asio::co_spawn(context, turn(), [&](const std::exception_ptr& error) {
            rethrow(error);
            ++done;
        });
    context.run();
    CHECK(done == coroutines);
    CHECK(counter == coroutines);
    CHECK(most == 1);
    CHECK(fixture.is_clean());
}
