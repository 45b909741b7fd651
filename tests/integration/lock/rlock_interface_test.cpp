// SPDX-License-Identifier: MIT
// Every member and overload of RLock, and the standard library's tools with it.
// ctest: in_memory
#include <doctest/doctest.h>

#include <chrono>
#include <concepts>
#include <condition_variable>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
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
using redlatch::errc;
using redlatch::Lease;
using redlatch::RLock;

namespace {

static_assert(TimedLockable<HiredisRLock>);
static_assert(!std::copy_constructible<HiredisRLock> && !std::move_constructible<HiredisRLock>);
static_assert(!std::is_copy_assignable_v<HiredisRLock> && !std::is_move_assignable_v<HiredisRLock>);
static_assert(!std::copy_constructible<HiredisClient> && !std::move_constructible<HiredisClient>);
static_assert(!std::is_copy_assignable_v<HiredisClient> && !std::is_move_assignable_v<HiredisClient>);
static_assert(std::same_as<decltype(RLock{std::declval<HiredisClient&>(), "name"}), HiredisRLock>);
static_assert(std::same_as<decltype(Client{"redis://127.0.0.1"}), HiredisClient>);
static_assert(!std::convertible_to<std::chrono::seconds, Lease>, "a lease is said in so many words");

template <class L, class... Tail>
concept LocksWith = requires(L& lock, Tail&&... tail) {
    lock.lock(std::forward<Tail>(tail)...);
};
template <class L, class... Tail>
concept TriesWith = requires(L& lock, Tail&&... tail) {
    lock.try_lock(std::forward<Tail>(tail)...);
};

template <class... Tail>
using LockResult = decltype(std::declval<HiredisRLock&>().lock(std::declval<Tail>()...));

// Only a call that can be stopped returns whether it acquired the lock.
static_assert(std::is_void_v<LockResult<>>);
static_assert(std::is_void_v<LockResult<Lease>>);
static_assert(std::is_void_v<LockResult<std::error_code&>>);
static_assert(std::is_void_v<LockResult<Lease, std::error_code&>>);
static_assert(std::same_as<LockResult<std::stop_token>, bool>);
static_assert(std::same_as<LockResult<Lease, std::stop_token>, bool>);
static_assert(std::same_as<LockResult<std::stop_token, std::error_code&>, bool>);
static_assert(std::same_as<LockResult<const Lease&, const std::stop_token&, std::error_code&>, bool>);

// The order of the trailing arguments is fixed, each occurs once at most, and no other type is accepted.
static_assert(!LocksWith<HiredisRLock, std::stop_token, Lease>);
static_assert(!LocksWith<HiredisRLock, std::error_code&, Lease>);
static_assert(!LocksWith<HiredisRLock, std::error_code&, std::stop_token>);
static_assert(!LocksWith<HiredisRLock, Lease, Lease>);
static_assert(!LocksWith<HiredisRLock, std::chrono::seconds>);
static_assert(!LocksWith<HiredisRLock, int>);
static_assert(!LocksWith<HiredisRLock, std::error_code>, "an error code that nobody can read");
static_assert(!LocksWith<HiredisRLock, const std::error_code&>);
static_assert(!TriesWith<HiredisRLock, std::stop_token>, "it does not wait, so there is nothing to stop");
static_assert(!TriesWith<HiredisRLock, std::chrono::seconds>);

/// One way to acquire the lock, and its properties.
struct Way {
    const char* text;
    bool leased;     // the hold has some_lease; otherwise the watchdog keeps it
    bool stoppable;  // waits until a stop is requested
    bool timed;      // waits for some_time at most
    std::function<bool(HiredisRLock&, std::stop_token, std::error_code&)> take;
};

const Lease some_lease{7000ms};
// Ample where the lock is free; less where it is not.
std::chrono::milliseconds some_time = 20s;

auto soon() { return std::chrono::steady_clock::now() + some_time; }

const std::vector<Way>& ways() {
    using L = HiredisRLock;
    using S = std::stop_token;
    using E = std::error_code;
    static const std::vector<Way> all{
        {"lock()", false, false, false, [](L& l, S, E&) { return l.lock(), true; }},
        {"lock(ec)", false, false, false, [](L& l, S, E& e) { return l.lock(e), true; }},
        {"lock(Lease)", true, false, false, [](L& l, S, E&) { return l.lock(some_lease), true; }},
        {"lock(Lease, ec)", true, false, false, [](L& l, S, E& e) { return l.lock(some_lease, e), true; }},
        {"lock(token)", false, true, false, [](L& l, S s, E&) { return l.lock(s); }},
        {"lock(token, ec)", false, true, false, [](L& l, S s, E& e) { return l.lock(s, e); }},
        {"lock(Lease, token)", true, true, false, [](L& l, S s, E&) { return l.lock(some_lease, s); }},
        {"lock(Lease, token, ec)", true, true, false, [](L& l, S s, E& e) { return l.lock(some_lease, s, e); }},

        {"try_lock()", false, false, true, [](L& l, S, E&) { return l.try_lock(); }},
        {"try_lock(ec)", false, false, true, [](L& l, S, E& e) { return l.try_lock(e); }},
        {"try_lock(Lease)", true, false, true, [](L& l, S, E&) { return l.try_lock(some_lease); }},
        {"try_lock(Lease, ec)", true, false, true, [](L& l, S, E& e) { return l.try_lock(some_lease, e); }},

        {"try_lock_for(d)", false, false, true, [](L& l, S, E&) { return l.try_lock_for(some_time); }},
        {"try_lock_for(d, ec)", false, false, true, [](L& l, S, E& e) { return l.try_lock_for(some_time, e); }},
        {"try_lock_for(d, Lease)", true, false, true,
         [](L& l, S, E&) { return l.try_lock_for(some_time, some_lease); }},
        {"try_lock_for(d, Lease, ec)", true, false, true,
         [](L& l, S, E& e) { return l.try_lock_for(some_time, some_lease, e); }},
        {"try_lock_for(d, token)", false, true, true, [](L& l, S s, E&) { return l.try_lock_for(some_time, s); }},
        {"try_lock_for(d, token, ec)", false, true, true,
         [](L& l, S s, E& e) { return l.try_lock_for(some_time, s, e); }},
        {"try_lock_for(d, Lease, token)", true, true, true,
         [](L& l, S s, E&) { return l.try_lock_for(some_time, some_lease, s); }},
        {"try_lock_for(d, Lease, token, ec)", true, true, true,
         [](L& l, S s, E& e) { return l.try_lock_for(some_time, some_lease, s, e); }},

        {"try_lock_until(t)", false, false, true, [](L& l, S, E&) { return l.try_lock_until(soon()); }},
        {"try_lock_until(t, ec)", false, false, true, [](L& l, S, E& e) { return l.try_lock_until(soon(), e); }},
        {"try_lock_until(t, Lease)", true, false, true,
         [](L& l, S, E&) { return l.try_lock_until(soon(), some_lease); }},
        {"try_lock_until(t, Lease, ec)", true, false, true,
         [](L& l, S, E& e) { return l.try_lock_until(soon(), some_lease, e); }},
        {"try_lock_until(t, token)", false, true, true, [](L& l, S s, E&) { return l.try_lock_until(soon(), s); }},
        {"try_lock_until(t, token, ec)", false, true, true,
         [](L& l, S s, E& e) { return l.try_lock_until(soon(), s, e); }},
        {"try_lock_until(t, Lease, token)", true, true, true,
         [](L& l, S s, E&) { return l.try_lock_until(soon(), some_lease, s); }},
        {"try_lock_until(t, Lease, token, ec)", true, true, true,
         [](L& l, S s, E& e) { return l.try_lock_until(soon(), some_lease, s, e); }},
    };
    return all;
}

const std::error_code stale = std::make_error_code(std::errc::address_in_use);

bool takes_code(const Way& way) { return std::string{way.text}.find("ec)") != std::string::npos; }

}  // namespace

TEST_CASE("every overload acquires a free lock, with the lease that it was given") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    for (const Way& way : ways()) {
        CAPTURE(way.text);
        std::error_code ec = stale;
        CHECK(way.take(orders, {}, ec));
        CHECK(ec == (takes_code(way) ? std::error_code{} : stale));
        CHECK(redis.hgetall("orders") == Fields{{owner_of(client, orders), "1"}});
        const long long pttl = redis.pttl("orders");
        CHECK(pttl <= (way.leased ? 7000 : 30000));
        CHECK(pttl > (way.leased ? 0 : 7000));
        orders.unlock();
        CHECK_FALSE(redis.exists("orders"));
    }
}

TEST_CASE("every overload re-enters the lock") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    int depth = 0;
    for (const Way& way : ways()) {
        CAPTURE(way.text);
        std::error_code ec;
        CHECK(way.take(orders, {}, ec));
        CHECK(orders.hold_count() == ++depth);
    }
    CHECK(redis.hgetall("orders") == Fields{{owner_of(client, orders), std::to_string(depth)}});
    while (depth > 0) {
        orders.unlock();
        CHECK(orders.hold_count() == --depth);
    }
    CHECK_FALSE(redis.exists("orders"));
}

TEST_CASE("every timed overload returns false at its deadline if the lock is held, and not before") {
    RedisServer server;
    Client client{server.url()};
    Client other{server.url()};
    RLock held{other, "orders"};
    held.lock();
    RLock orders{client, "orders"};
    some_time = 40ms;
    for (const Way& way : ways()) {
        if (!way.timed) continue;
        CAPTURE(way.text);
        const bool one_try = std::string{way.text}.starts_with("try_lock(");
        std::error_code ec = stale;
        const Stopwatch watch;
        CHECK_FALSE(way.take(orders, {}, ec));
        if (!one_try) CHECK(watch.elapsed() >= some_time);
        CHECK(watch.elapsed() < patient(5s));
        CHECK(ec == (takes_code(way) ? std::error_code{} : stale));
    }
    some_time = 20s;
    CHECK(held.hold_count() == 1);
    held.unlock();
    CHECK(eventually([&] { return RawRedis{server}.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("every stoppable overload returns false once a stop is requested, before or during the wait") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    RLock held{other, "orders"};
    held.lock();
    RLock orders{client, "orders"};
    for (const Way& way : ways()) {
        if (!way.stoppable) continue;
        CAPTURE(way.text);
        std::stop_source before;
        before.request_stop();
        std::error_code ec = stale;
        CHECK_FALSE(way.take(orders, before.get_token(), ec));
        CHECK(ec == (takes_code(way) ? std::error_code{} : stale));

        const auto waits = client.stats().waits;
        std::stop_source meanwhile;
        std::error_code second = stale;
        auto waiter = start([&] { return way.take(orders, meanwhile.get_token(), second); });
        REQUIRE(has_waiters(client, waits + 1));
        meanwhile.request_stop();
        REQUIRE(ready(waiter));
        CHECK_FALSE(waiter.get());
        CHECK(second == (takes_code(way) ? std::error_code{} : stale));
    }
    held.unlock();
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("every overload without a deadline acquires the lock when it becomes free") {
    RedisServer server;
    Client client{server.url()};
    Client other{server.url()};
    RLock held{other, "orders"};
    RLock orders{client, "orders"};
    for (const Way& way : ways()) {
        if (way.timed) continue;
        CAPTURE(way.text);
        held.lock();
        const auto waits = client.stats().waits;
        std::error_code ec = stale;
        auto waiter = start([&] {
            const bool got = way.take(orders, {}, ec);
            const auto left = [&] { return orders.remaining_lease().value_or(0ms); };
            // A granted hold has its full lease after its first renewal.
            const bool lasts = way.leased ? left() > 0ms && left() <= 7000ms
                                          : eventually([&] { return left() > 7000ms && left() <= 30000ms; }, 20s);
            orders.unlock();
            return got && lasts;
        });
        REQUIRE(has_waiters(client, waits + 1));
        held.unlock();
        REQUIRE(ready(waiter));
        CHECK(waiter.get());
        CHECK(ec == (takes_code(way) ? std::error_code{} : stale));
    }
}

TEST_CASE("waits of any chrono type work, and those in the past are one try") {
    RedisServer server;
    Client client{server.url()};
    RLock orders{client, "orders"};
    using std::chrono::duration;
    using std::chrono::steady_clock;
    using std::chrono::system_clock;
    const auto taken = [&](bool got) {
        if (got) orders.unlock();
        return got;
    };
    // Long and endless waits must not overflow into the past. One try would acquire a free lock, so another holder
    // releases it during the wait.
    Client other{server.url()};
    RLock held{other, "orders"};
    const std::vector<std::function<bool()>> endless{
        [&] { return taken(orders.try_lock_for(std::chrono::hours::max())); },
        [&] { return taken(orders.try_lock_for(std::chrono::nanoseconds::max())); },
        [&] { return taken(orders.try_lock_for(duration<double>{std::numeric_limits<double>::infinity()})); },
        [&] { return taken(orders.try_lock_for(duration<double, std::ratio<86400>>{1e300})); },
        [&] { return taken(orders.try_lock_until(steady_clock::time_point::max())); },
        [&] { return taken(orders.try_lock_until(system_clock::time_point::max())); },
        [&] { return taken(orders.try_lock_until(system_clock::now() + 1h)); },
    };
    for (std::size_t i = 0; i < endless.size(); ++i) {
        CAPTURE(i);
        held.lock();
        const auto waits = client.stats().waits;
        auto waiter = start(endless[i]);
        REQUIRE(has_waiters(client, waits + 1));
        held.unlock();
        REQUIRE(ready(waiter));
        CHECK(waiter.get());
    }

    const std::vector<std::function<bool()>> over{
        [&] { return taken(orders.try_lock_for(0ms)); },
        [&] { return taken(orders.try_lock_for(-1h)); },
        [&] { return taken(orders.try_lock_for(std::chrono::hours::min())); },
        [&] { return taken(orders.try_lock_for(duration<double>{std::numeric_limits<double>::quiet_NaN()})); },
        [&] { return taken(orders.try_lock_until(steady_clock::now() - 1s)); },
        [&] { return taken(orders.try_lock_until(steady_clock::time_point::min())); },
        [&] { return taken(orders.try_lock_until(system_clock::time_point{})); },
    };
    for (std::size_t i = 0; i < over.size(); ++i) {
        CAPTURE(i);
        CHECK(over[i]());
        held.lock();
        CHECK_FALSE(over[i]());
        held.unlock();
    }
}

TEST_CASE("queries report the server's state, for any holder") {
    RedisServer server;
    Client client{server.url()};
    RLock orders{client, "orders"};
    std::error_code ec = stale;
    const auto ask = [&](bool locked, bool held, int count) {
        CHECK(orders.is_locked() == locked);
        CHECK(orders.is_held() == held);
        CHECK(orders.hold_count() == count);
        CHECK(orders.remaining_lease().has_value() == locked);
        CHECK(orders.is_locked(ec = stale) == locked);
        CHECK_FALSE(ec);
        CHECK(orders.is_held(ec = stale) == held);
        CHECK_FALSE(ec);
        CHECK(orders.hold_count(ec = stale) == count);
        CHECK_FALSE(ec);
        CHECK(orders.remaining_lease(ec = stale).has_value() == locked);
        CHECK_FALSE(ec);
    };
    ask(false, false, 0);
    orders.lock();
    ask(true, true, 1);
    orders.lock(Lease{50s});
    ask(true, true, 2);
    CHECK(orders.remaining_lease().value() > 30s);
    CHECK(orders.remaining_lease().value() <= 50s);
    elsewhere([&] { ask(true, false, 0); });
    RLock same{client, "orders"};
    CHECK(same.hold_count() == 2);
    same.unlock();
    orders.unlock();
    ask(false, false, 0);
    CHECK(orders.name() == "orders");
}

TEST_CASE("valid_until() is never too late, and time_point::min() without a hold") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    using Time = std::chrono::steady_clock::time_point;
    CHECK(orders.valid_until() == Time::min());
    const auto before = std::chrono::steady_clock::now();
    orders.lock(Lease{10s});
    CHECK(orders.valid_until() > before);
    CHECK(orders.valid_until() <= before + 10s + (std::chrono::steady_clock::now() - before));
    const auto left = std::chrono::milliseconds{redis.pttl("orders")};
    CHECK(orders.valid_until() <= std::chrono::steady_clock::now() + left);
    CHECK(elsewhere([&] { return orders.valid_until(); }) == Time::min());
    orders.unlock();
    CHECK(orders.valid_until() == Time::min());
}

TEST_CASE("lost() has a stop requested without a hold, and not during one") {
    RedisServer server;
    Client client{server.url()};
    RLock orders{client, "orders"};
    CHECK(orders.lost().stop_requested());
    orders.lock();
    const std::stop_token lost = orders.lost();
    CHECK(lost.stop_possible());
    CHECK_FALSE(lost.stop_requested());
    CHECK(elsewhere([&] { return orders.lost().stop_requested(); }));
    orders.lock();
    orders.unlock();
    CHECK_FALSE(lost.stop_requested());
    orders.unlock();
    CHECK_FALSE(lost.stop_requested());  // a released hold is not lost
    CHECK(orders.lost().stop_requested());
}

TEST_CASE("force_unlock() ends the hold of any owner, at any depth, and returns whether there was one") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    RLock orders{client, "orders"};
    RLock theirs{other, "orders"};
    CHECK_FALSE(orders.force_unlock());
    theirs.lock();
    theirs.lock();
    CHECK(orders.force_unlock());
    CHECK_FALSE(redis.exists("orders"));
    CHECK_FALSE(orders.force_unlock());

    std::error_code ec = stale;
    orders.lock();
    const std::stop_token lost = orders.lost();
    CHECK(orders.force_unlock(ec));
    CHECK_FALSE(ec);
    CHECK(eventually([&] { return lost.stop_requested(); }));  // our own hold: reported at once
    CHECK_FALSE(orders.force_unlock(ec = stale));
    CHECK_FALSE(ec);
    orders.unlock(ec);
    CHECK(ec == errc::hold_lost);
    theirs.unlock();
    theirs.unlock();
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("unlock(ec) reports every error and throws nothing") {
    RedisServer server;
    Client client{server.url()};
    RLock orders{client, "orders"};
    std::error_code ec = stale;
    orders.unlock(ec);
    CHECK(ec == errc::not_owner);
    CHECK(ec == std::errc::operation_not_permitted);
    orders.lock();
    orders.unlock(ec);
    CHECK_FALSE(ec);
    orders.lock();
    RawRedis{server}.integer("DEL", "orders");
    orders.unlock(ec);
    CHECK(ec == errc::hold_lost);
    orders.unlock(ec);
    CHECK(ec == errc::not_owner);
}

TEST_CASE("two objects with one name are one lock, and a hold survives the object that acquired it") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock second{client, "orders"};
    {
        RLock first{client, "orders"};
        first.lock();
        second.lock();
        CHECK(first.hold_count() == 2);
        first.unlock();
    }
    CHECK(second.hold_count() == 1);
    second.unlock();
    {
        RLock third{client, "parcels"};
        third.lock();
    }
    CHECK(redis.exists("parcels"));
    RLock fourth{client, "parcels"};
    CHECK(fourth.is_held());
    fourth.unlock();
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("std::lock_guard works, also with an exception inside") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    {
        const std::lock_guard guard{orders};
        CHECK(redis.exists("orders"));
        const std::lock_guard inner{orders};
        CHECK(orders.hold_count() == 2);
    }
    CHECK_FALSE(redis.exists("orders"));
    CHECK_THROWS_AS(
        [&] {
            const std::lock_guard guard{orders};
            throw std::runtime_error("inside");
        }(),
        std::runtime_error);
    CHECK_FALSE(redis.exists("orders"));
}

TEST_CASE("std::unique_lock works in all its forms") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    RLock orders{client, "orders"};
    RLock theirs{other, "orders"};
    using Guard = std::unique_lock<HiredisRLock>;
    {
        Guard guard{orders};
        CHECK(redis.exists("orders"));
        guard.unlock();
        CHECK_FALSE(redis.exists("orders"));
        CHECK(guard.try_lock());
    }
    CHECK_FALSE(redis.exists("orders"));
    theirs.lock();
    CHECK_FALSE(Guard(orders, std::try_to_lock).owns_lock());
    CHECK_FALSE(Guard(orders, 20ms).owns_lock());
    CHECK_FALSE(Guard(orders, std::chrono::system_clock::now() + 20ms).owns_lock());
    theirs.unlock();
    CHECK(Guard(orders, std::try_to_lock).owns_lock());
    CHECK(Guard(orders, 20s).owns_lock());
    CHECK(Guard(orders, std::chrono::steady_clock::now() + 20s).owns_lock());
    CHECK_FALSE(redis.exists("orders"));
    {
        Guard guard{orders, std::defer_lock};
        CHECK_FALSE(redis.exists("orders"));
        CHECK(guard.try_lock_for(20s));
        Guard moved = std::move(guard);
        CHECK(redis.exists("orders"));
    }
    orders.lock(Lease{20s});
    { const Guard guard{orders, std::adopt_lock}; }
    CHECK_FALSE(redis.exists("orders"));
}

TEST_CASE("scoped_lock acquires two locks in any order without a deadlock") {
    RedisServer server;
    Client client{server.url()};
    Client other{server.url()};
    RLock a1{client, "a"};
    RLock b1{client, "b"};
    RLock a2{other, "a"};
    RLock b2{other, "b"};
    PlainCounter counter;
    constexpr std::uint64_t times = 25;
    auto there = start([&] {
        for (std::uint64_t i = 0; i < times; ++i) {
            const std::scoped_lock both{a1, b1};
            counter.add_one_unseen();
        }
    });
    auto back = start([&] {
        for (std::uint64_t i = 0; i < times; ++i) {
            const std::scoped_lock both{b2, a2};
            counter.add_one_unseen();
        }
    });
    REQUIRE(ready(there, patient(30s)));
    REQUIRE(ready(back, patient(30s)));
    CHECK(counter.value() == 2 * times);
    CHECK(eventually([&] { return RawRedis{server}.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("std::condition_variable_any waits on an RLock") {
    RedisServer server;
    Client client{server.url()};
    RLock orders{client, "orders"};
    std::condition_variable_any changed;
    int stock = 0;
    int sold = 0;
    constexpr int times = 20;
    auto buyer = start([&] {
        std::unique_lock guard{orders};
        while (sold < times) {
            changed.wait(guard, [&] { return stock > 0; });
            --stock;
            ++sold;
            changed.notify_all();
        }
    });
    for (int i = 0; i < times; ++i) {
        std::unique_lock guard{orders};
        changed.wait(guard, [&] { return stock == 0; });
        ++stock;
        changed.notify_all();
    }
    REQUIRE(ready(buyer));
    CHECK(sold == times);
    std::unique_lock guard{orders};
    CHECK_FALSE(changed.wait_for(guard, 20ms, [&] { return stock > 0; }));
    CHECK(orders.hold_count() == 1);
}

// So a late command names a hold that is gone.
TEST_CASE("each first hold has its own owner, in any thread, and no number is used twice") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    const auto holder = [&] {
        orders.lock();
        orders.lock();  // one more level of the same hold
        const Fields held = redis.hgetall("orders");
        CHECK(held == Fields{{owner_of(client, orders), "2"}});
        orders.unlock();
        orders.unlock();
        CHECK(owner_of(client, orders) == client.id() + ":0");
        return held.begin()->first;
    };
    std::set<std::string> owners{holder(), holder()};
    CHECK(owners.size() == 2);
    for (int i = 0; i < 10; ++i) owners.insert(elsewhere(holder));
    CHECK(owners.size() == 12);
}
