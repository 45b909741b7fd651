// SPDX-License-Identifier: MIT
// Hold: a hold that belongs to an object, of every kind of lock.
// ctest: in_memory
#include <doctest/doctest.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "integration/lock/lock_kinds.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

namespace inside = redlatch::detail;

static_assert(std::is_nothrow_move_constructible_v<Hold> && std::is_nothrow_move_assignable_v<Hold>);
static_assert(!std::is_copy_constructible_v<Hold> && !std::is_copy_assignable_v<Hold>);
static_assert(std::is_nothrow_default_constructible_v<Hold>);

}  // namespace

TEST_CASE("a hold is released by its destructor, by unlock() and by assignment; then the server has nothing left") {
    for (const Kind& kind : kinds) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto lock = kind.make(fixture.client);
        {
            const Hold hold = lock->hold();
            CHECK(hold);
            CHECK(hold.valid_until() > Clock::now() + 10s);
            CHECK_FALSE(hold.lost().stop_requested());
            CHECK(hold.owner() != 0);
            CHECK(lock->is_locked());
            CHECK_FALSE(lock->try_hold());
            CHECK_FALSE(start([&] { return lock->try_lock(); }).get());
        }
        CHECK(eventually([&] { return fixture.is_clean(); }));
        Hold hold = lock->try_hold();
        REQUIRE(hold);
        CHECK(hold.unlock() == std::error_code());
        CHECK(fixture.is_clean());
        CHECK_FALSE(hold);
        CHECK(hold.unlock() == errc::not_owner);
        hold = lock->try_hold_for(5s);
        REQUIRE(hold);
        hold = Hold();
        CHECK(eventually([&] { return fixture.is_clean(); }));
    }
}

TEST_CASE("a hold excludes the thread that has it, and the thread's own hold excludes the object") {
    for (const Kind& kind : kinds) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto lock = kind.make(fixture.client);
        {
            const Hold hold = lock->hold();
            CHECK_FALSE(lock->try_lock());
            std::error_code ec;
            lock->unlock(ec);
            CHECK(ec == errc::not_owner);
            CHECK(hold.valid_until() > Clock::now());
        }
        lock->lock();
        CHECK_FALSE(lock->try_hold());
        CHECK_FALSE(lock->try_hold_for(20ms));
        lock->unlock();
        CHECK(eventually([&] { return fixture.is_clean(); }));
    }
}

TEST_CASE("a hold moves: into other threads, and out of them") {
    for (const Kind& kind : kinds) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto lock = kind.make(fixture.client);
        Hold hold = lock->hold();
        const auto until = hold.valid_until();
        Hold back = start([hold = std::move(hold)]() mutable { return std::move(hold); }).get();
        CHECK_FALSE(hold);  // NOLINT(bugprone-use-after-move)
        CHECK(hold.valid_until() == Instant::min());
        CHECK(hold.lost().stop_requested());
        CHECK(hold.owner() == 0);
        CHECK(hold.name().empty());
        REQUIRE(back);
        CHECK(back.valid_until() >= until);
        CHECK(start([back = std::move(back)]() mutable { return back.unlock(); }).get() == std::error_code());
        CHECK(fixture.is_clean());
    }
}

TEST_CASE("waiting for a hold: a release by another object wakes it, a deadline and a stop token end it") {
    for (const Kind& kind : kinds) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto lock = kind.make(fixture.client);
        std::optional<Hold> first = lock->hold();
        auto second = start([&] { return lock->hold(); });
        CHECK_FALSE(lock->try_hold_for(30ms));
        CHECK_FALSE(lock->try_hold_until(std::chrono::steady_clock::now() + 30ms));
        std::stop_source stop;
        auto stopped = start([&] { return static_cast<bool>(lock->hold(stop.get_token())); });
        stop.request_stop();
        REQUIRE(ready(stopped));
        CHECK_FALSE(stopped.get());
        first.reset();
        REQUIRE(ready(second));
        CHECK(second.get());
        CHECK(eventually([&] { return fixture.is_clean(); }));
    }
}

TEST_CASE("again() adds a level to the hold: the lock is free after the last of its objects") {
    for (const Kind& kind : kinds) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto lock = kind.make(fixture.client);
        Hold outer = lock->hold();
        if (!kind.reentrant) {
            CHECK_THROWS_AS(static_cast<void>(outer.again()), Error);
            continue;
        }
        Hold inner = outer.again();
        REQUIRE(inner);
        CHECK(inner.owner() == outer.owner());
        CHECK(outer.unlock() == std::error_code());
        CHECK_FALSE(start([&] { return lock->try_lock(); }).get());
        Hold innermost = inner.again(Lease{10s});
        CHECK(inner.unlock() == std::error_code());
        CHECK(innermost.valid_until() > Clock::now());
        innermost = Hold();
        CHECK(eventually([&] { return fixture.is_clean(); }));
        std::error_code ec;
        CHECK_FALSE(innermost.again(ec));
        CHECK(ec == errc::not_owner);
    }
}

TEST_CASE("a hold that is lost: lost() is requested, unlock() and again() report it, the next hold is unharmed") {
    for (const Kind& kind : kinds) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto lock = kind.make(fixture.client);
        Hold hold = lock->hold(Lease{200ms});
        const std::stop_token lost = hold.lost();
        CHECK(eventually([&] { return lost.stop_requested(); }));
        std::error_code ec;
        if (kind.reentrant) {
            CHECK_FALSE(hold.again(ec));
            CHECK(ec == errc::hold_lost);
        }
        CHECK(hold);
        const Hold next = lock->hold();
        REQUIRE(next);
        CHECK(hold.unlock() == errc::hold_lost);
        CHECK(next.valid_until() > Clock::now());
        CHECK(lock->is_locked());
    }
}

TEST_CASE("the watchdog renews a hold, and a lease ends it by itself") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(6s)};
    RLock orders{client, "orders"};
    const Hold hold = orders.hold();
    const auto until = hold.valid_until();
    CHECK(eventually([&] { return hold.valid_until() > until + 600ms; }));
    CHECK_FALSE(hold.lost().stop_requested());
    RLock other{client, "other"};
    const Hold leased = other.hold(Lease{100ms});
    CHECK(eventually([&] { return !redis.exists("other"); }));
    CHECK(eventually([&] { return leased.lost().stop_requested(); }));
}

TEST_CASE("the owner on the wire is the client's id and the number of the hold, a new one each time") {
    Fixture fixture;
    Client shop{fixture.server.url(), {.key_prefix = "shop:"}};
    RLock orders{shop, "orders"};
    Hold hold = orders.hold();
    CHECK(fixture.redis.hgetall("shop:orders") == Fields{{shop.id() + ":" + std::to_string(hold.owner()), "1"}});
    CHECK(hold.name() == "orders");
    const auto first = hold.owner();
    CHECK(hold.unlock() == std::error_code());
    hold = orders.hold();
    CHECK(hold.owner() != first);
}

TEST_CASE("token() is that of the FencedLock; other locks have none") {
    Fixture fixture;
    FencedLock fenced{fixture.client, "fenced"};
    Hold hold = fenced.hold();
    const auto first = hold.token();
    CHECK(first > 0);
    CHECK(hold.again().token() == first);
    CHECK(hold.unlock() == std::error_code());
    CHECK(fenced.hold().token() > first);
    RLock plain{fixture.client, "plain"};
    const Hold other = plain.hold();
    try {
        static_cast<void>(other.token());
        FAIL("no error");
    } catch (const Error& error) {
        CHECK(error.code() == errc::unsupported);
    }
}

TEST_CASE("again() adds no level to a later hold of the same Owner") {
    Fixture fixture;
    RLock orders{fixture.client, "orders"};
    const Hold first = orders.hold(Owner{1});
    REQUIRE(orders.force_unlock());
    const Hold second = orders.hold(Owner{1});
    std::error_code ec;
    CHECK_FALSE(first.again(ec));
    CHECK(ec == errc::hold_lost);
    const Hold level = second.again(ec);
    CHECK_FALSE(ec);
    CHECK(level.owner() == second.owner());
}

TEST_CASE("a lost hold of an Owner neither releases nor reports a later one") {
    Fixture fixture;
    RLock orders{fixture.client, "orders"};
    const auto lost_hold = [&] {
        Hold hold = orders.hold(Owner{1});
        REQUIRE(orders.force_unlock());
        return hold;
    };
    Hold unlocked = lost_hold();
    Hold moved = lost_hold();
    {
        Hold destroyed = lost_hold();
        REQUIRE(orders.try_lock(Owner{1}));
        CHECK(unlocked.valid_until() == Clock::time_point::min());
        CHECK(unlocked.lost().stop_requested());
        CHECK(unlocked.unlock() == errc::hold_lost);
        CHECK(std::move(moved).async_unlock().get() == errc::hold_lost);
    }
    CHECK_FALSE(orders.lost(Owner{1}).stop_requested());
    CHECK(orders.hold_count(Owner{1}) == 1);
    orders.unlock(Owner{1});
    CHECK(eventually([&] { return fixture.is_clean(); }));
}

TEST_CASE("a hold that is lost before its object is made keeps its number and its token") {
    Fixture fixture;
    FencedLock fenced{fixture.client, "fenced"};
    const std::int64_t before = fenced.hold().token();
    const inside::HeldLevel level = inside::LockAccess::keeper_of_holds(fenced);
    inside::LockRequest request;
    request.owner = inside::new_hold_owner();
    inside::LockAccess::prepare(fenced, request);
    REQUIRE(level.keeper->acquire(request).run());
    const inside::HoldFacts held = level.keeper->facts(request.owner);
    CHECK(held.token > before);
    REQUIRE(fenced.force_unlock());
    const inside::HoldFacts lost = level.keeper->facts(request.owner);
    CHECK(lost.number == held.number);
    CHECK(lost.token == held.token);
    CHECK(level.keeper->release(request.owner) == errc::hold_lost);
}

TEST_CASE("a hold outlives the lock and the client that it came from") {
    RedisServer server;
    RawRedis redis{server};
    auto client = std::make_unique<Client>(server.url(), with_watchdog(6s));
    auto orders = std::make_unique<RLock>(*client, "orders");
    Hold hold = orders->hold();
    const auto until = hold.valid_until();
    orders.reset();
    client.reset();
    CHECK(eventually([&] { return hold.valid_until() > until + 600ms; }));
    CHECK_FALSE(hold.lost().stop_requested());
    CHECK(redis.exists("orders"));
    hold = Hold();
    CHECK_FALSE(redis.exists("orders"));
}

TEST_CASE("a hold of several locks ends with the lock over them, even if the object stays") {
    Fixture fixture;
    Hold hold, inner;
    std::stop_token lost;
    {
        WithMembers<MultiLock> whole{fixture.client};
        hold = whole.several.hold();
        inner = hold.again();
        lost = hold.lost();
        CHECK(fixture.redis.keys().size() == 3);
    }
    CHECK(eventually([&] { return fixture.is_clean(); }));
    CHECK(eventually([&] { return lost.stop_requested(); }));
    CHECK(hold.valid_until() == Instant::min());
    std::error_code ec;
    CHECK_FALSE(hold.again(ec));
    CHECK(ec == errc::hold_lost);
    CHECK(hold.unlock() == errc::hold_lost);
    inner = Hold();
}

TEST_CASE("readers hold together, and a writer's hold excludes them") {
    Fixture fixture;
    ReadWriteLock table{fixture.client, "table"};
    std::vector<Hold> readers;
    for (int i = 0; i < 10; ++i) readers.push_back(table.hold_shared());
    CHECK(table.try_hold_shared());
    CHECK_FALSE(table.try_hold());
    CHECK_FALSE(table.try_hold_for(20ms));
    auto writer = start([&] { return table.hold(); });
    readers.clear();
    REQUIRE(ready(writer));
    {
        const Hold alone = writer.get();
        CHECK(alone);
        CHECK_FALSE(table.try_hold_shared());
        CHECK_FALSE(table.try_hold_shared_for(20ms));
        CHECK_FALSE(table.try_hold_shared_until(std::chrono::steady_clock::now() + 20ms));
    }
    CHECK(eventually([&] { return fixture.is_clean(); }));
}

TEST_CASE("an error code takes the error: the hold is empty") {
    Fixture fixture;
    fixture.redis.text("SET", "orders", "a string");
    RLock orders{fixture.client, "orders"};
    std::error_code ec;
    CHECK_FALSE(orders.hold(ec));
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(orders.try_hold(Lease{1s}, ec));
    CHECK(ec == errc::wrong_type);
    CHECK_THROWS_AS(static_cast<void>(orders.try_hold()), Error);
}

TEST_CASE("holds that one thread acquires and another releases: never two at a time") {
    Fixture fixture;
    RLock orders{fixture.client, "orders"};
    long inside = 0, most = 0, turns = 0;  // plain: the lock is what guards them
    std::mutex mutex;
    std::condition_variable changed;  // tells the releasing thread that there is a hold
    std::deque<Hold> to_release;
    bool over = false;
    auto releasing = start([&] {
        std::unique_lock lock(mutex);
        for (;;) {
            changed.wait(lock, [&] { return over || !to_release.empty(); });
            if (to_release.empty()) return;
            Hold hold = std::move(to_release.front());
            to_release.pop_front();
            lock.unlock();
            --inside;
            hold = Hold();
            lock.lock();
        }
    });
    std::vector<std::future<void>> workers;
    for (int worker = 0; worker < 4; ++worker)
        workers.push_back(start([&] {
            for (int turn = 0; turn < 50; ++turn) {
                Hold hold = orders.hold();
                most = std::max(most, ++inside);
                ++turns;
                const std::lock_guard lock(mutex);
                to_release.push_back(std::move(hold));
                changed.notify_one();
            }
        }));
    for (auto& worker : workers) {
        REQUIRE(ready(worker, 60s));
        worker.get();
    }
    {
        const std::lock_guard lock(mutex);
        over = true;
        changed.notify_one();
    }
    releasing.get();
    CHECK(most == 1);
    CHECK(turns == 200);
}
