// SPDX-License-Identifier: MIT
// ctest: timeout=500 long
// Lease::at_least() and Lease::at_most(): how long a hold lasts at least and at most, for every kind of lock.
#include <algorithm>
#include <future>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "faults/fault_kit.hpp"
#include "integration/lock/lock_kinds.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

// Long enough for a busy machine to act before it is over.
constexpr auto least = paced(6s);
constexpr auto least_for_each = paced(2500ms);  // where a test waits for its end once for each kind
constexpr auto most = paced(4500ms);
constexpr auto renewed = paced(3s);  // the watchdog's lease; a renewal may be late by two thirds of it

// Kinds of which every hold excludes the others.
std::vector<Kind> exclusive_kinds() {
    std::vector<Kind> all(kinds.begin(), kinds.end());
    all.pop_back();  // MultiLock
    return all;
}

Kind readers() {
    return {"readers", [](Client& client) {
                auto both = std::make_shared<ReadWriteLock>(client, "orders");
                return std::shared_ptr<LockApi>(both, &both->read_lock());
            }};
}

std::vector<Kind> all_kinds() {
    std::vector<Kind> all = exclusive_kinds();
    all.push_back(readers());
    return all;
}

long long lease_left(RawRedis& redis) { return redis.pttl("orders"); }

bool is_gone(RawRedis& redis, std::chrono::milliseconds within = 30s) {
    return eventually([&] { return !redis.exists("orders"); }, within);
}

// Returns when the lease ends by the server's clock, or earlier if the machine was busy between the two commands; 0 if
// there is no key.
long long lease_end(RawRedis& redis) {
    const long long now = redis.now();
    const long long left = lease_left(redis);
    return left < 0 ? 0 : now + left;
}

// A lease counts from the arrival of its renewal at the server, in ms.
constexpr long long on_its_way = 1000;

// Waits until the key is gone. Returns the latest end that its lease has had meanwhile. That does not depend on when
// this thread looks.
long long last_lease_end(RawRedis& redis) {
    long long last = 0;
    const auto is_over = [&] {
        const long long end = lease_end(redis);
        last = std::max(last, end);
        return end == 0;
    };
    CHECK(eventually(is_over, 30s, 5ms));
    return last;
}

// Measures time by the server's clock, in ms.
class ServerStopwatch {
public:
    explicit ServerStopwatch(RawRedis& redis) : redis_(redis), begun_(redis.now()) {}
    long long elapsed() { return redis_.now() - begun_; }

private:
    RawRedis& redis_;
    long long begun_;
};

}  // namespace

// --- minimum hold -------------------------------------------------------------------------------------------------

TEST_CASE("at_least: an unlock before leaves the lock taken for the rest of the time, for every kind") {
    for (const Kind& kind : all_kinds()) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto orders = kind.make(fixture.client);
        ServerStopwatch watch(fixture.redis);
        orders->lock(Lease::at_least(least_for_each));
        CHECK(lease_left(fixture.redis) > least_for_each.count());
        orders->unlock();
        CHECK(orders->is_locked());
        CHECK_FALSE(orders->is_held());
        CHECK(orders->valid_until() == Instant::min());
        CHECK(lease_left(fixture.redis) > 0);
        CHECK(lease_left(fixture.redis) <= (least_for_each + least_for_each / 500 + late).count());
        CHECK(fixture.client.stats().held == 0);
        CHECK_THROWS_AS(orders->unlock(), const Error&);
        CHECK(is_gone(fixture.redis));
        CHECK(watch.elapsed() >= least_for_each.count());
        CHECK(fixture.is_clean());
        CHECK(fixture.client.stats().lost_holds == 0);
    }
}

TEST_CASE("at_least: an unlock after that frees the lock at once, for every kind") {
    for (const Kind& kind : all_kinds()) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto orders = kind.make(fixture.client);
        ServerStopwatch watch(fixture.redis);
        orders->lock(Lease::at_least(paced(200ms)));
        REQUIRE(eventually([&] { return watch.elapsed() > 2 * paced(200ms).count(); }));
        orders->unlock();
        CHECK_FALSE(fixture.redis.exists("orders"));
        CHECK(fixture.is_clean());
    }
}

TEST_CASE("at_least: a waiter learns of the shorter lease and gets the lock when it is over, for every kind") {
    constexpr auto brief = paced(1500ms);
    for (const Kind& kind : exclusive_kinds()) {
        for (const bool same_client : {false, true}) {
            CAPTURE(kind.name);
            CAPTURE(same_client);
            Fixture fixture;
            Client other{fixture.server.url()};
            Client& waiters = same_client ? fixture.client : other;
            const auto orders = kind.make(fixture.client), theirs = kind.make(waiters);
            ServerStopwatch watch(fixture.redis);
            orders->lock(Lease::at_least(brief));
            auto next = start_waiting(waiters, [&] {
                const bool held = theirs->try_lock_for(20s);
                const long long after = watch.elapsed();
                if (held) theirs->unlock();
                return held ? after : 0;
            });
            orders->unlock();
            const long long after = next.get();
            CHECK(after >= brief.count());
            CHECK(after < 15'000);  // the lease that the waiter saw first was 30 s
            CHECK(fixture.is_clean());
        }
    }
}

TEST_CASE("at_least: a writer waits for the readers that have left, and readers for the writer") {
    for (const bool writer_first : {false, true}) {
        CAPTURE(writer_first);
        Fixture fixture;
        ReadWriteLock orders{fixture.client, "orders"};
        auto& first = writer_first ? static_cast<LockApi&>(orders.write_lock()) : orders.read_lock();
        auto& second = writer_first ? static_cast<LockApi&>(orders.read_lock()) : orders.write_lock();
        ServerStopwatch watch(fixture.redis);
        first.lock(Lease::at_least(least));
        first.unlock();
        CHECK_FALSE(second.try_lock());
        CHECK(elsewhere([&] {
            const bool held = second.try_lock_for(20s);
            if (held) second.unlock();
            return held;
        }));
        CHECK(watch.elapsed() >= least.count());
        CHECK(fixture.is_clean());
    }
}

TEST_CASE("at_least: other readers come in meanwhile, and the writer still waits for the one that has left") {
    Fixture fixture;
    ReadWriteLock orders{fixture.client, "orders"};
    orders.read_lock().lock(Lease::at_least(least));
    orders.unlock_shared();
    CHECK(elsewhere([&] {
        orders.lock_shared();
        orders.unlock_shared();
        return true;
    }));
    CHECK(lease_left(fixture.redis) > 0);
    CHECK_FALSE(orders.try_lock());
    CHECK(is_gone(fixture.redis));
}

TEST_CASE("at_least: a writer that is a reader, too, keeps only the read hold in the end") {
    Fixture fixture;
    ReadWriteLock orders{fixture.client, "orders"};
    orders.write_lock().lock(Lease::at_least(least));
    orders.lock_shared();
    orders.unlock();
    CHECK_FALSE(elsewhere([&] { return orders.try_lock_shared(); }));
    // The read hold keeps the key, but not the writer's place in it.
    CHECK(elsewhere([&] {
        const bool held = orders.try_lock_shared_for(20s);
        if (held) orders.unlock_shared();
        return held;
    }));
    CHECK(orders.read_lock().is_held());
    orders.unlock_shared();
    CHECK(is_gone(fixture.redis));
}

TEST_CASE(
    "at_least: longer than the watchdog's lease: a process that dies leaves the lock no shorter, for every kind") {
    for (const Kind& kind : all_kinds()) {
        CAPTURE(kind.name);
        RedisServer server;
        RawRedis redis{server};
        ServerStopwatch watch(redis);
        ChildProcess child = ChildProcess::run([&] {
            Client client{server.url(), with_watchdog(300ms)};
            kind.make(client)->lock(Lease::at_least(paced(1500ms)));
            ::kill(::getpid(), SIGKILL);
            return 0;
        });
        REQUIRE(child.wait(20s));
        CHECK(is_gone(redis));
        CHECK(watch.elapsed() >= paced(1500ms).count());
    }
}

TEST_CASE("at_least: with a lease of its own, a hold is not renewed, and its rest is no longer than the lease") {
    Fixture fixture;
    RLock orders{fixture.client, "orders"};
    orders.lock(Lease::at_least(least, Lease{least + 1s}));
    CHECK(lease_left(fixture.redis) <= (least + 1s).count());
    orders.unlock();
    CHECK(lease_left(fixture.redis) <= (least + 500ms).count());
    CHECK(fixture.redis.exists("orders"));
    CHECK(fixture.client.stats().renewals == 0);
}

TEST_CASE("at_least: of a nested level counts from its own acquire, and for the whole hold") {
    Fixture fixture;
    RLock orders{fixture.client, "orders"};
    orders.lock();
    ServerStopwatch watch(fixture.redis);
    orders.lock(Lease::at_least(least));
    orders.unlock();
    CHECK(orders.hold_count() == 1);
    CHECK(orders.is_held());
    orders.unlock();
    CHECK_FALSE(orders.is_held());
    CHECK(fixture.redis.exists("orders"));
    CHECK(is_gone(fixture.redis));
    CHECK(watch.elapsed() >= least.count());

    Hold outer = orders.hold(Lease::at_least(least));
    Hold inner = outer.again();
    REQUIRE_FALSE(outer.unlock());
    REQUIRE_FALSE(inner.unlock());
    CHECK(fixture.redis.exists("orders"));
    CHECK(orders.force_unlock());
    CHECK_FALSE(fixture.redis.exists("orders"));
}

TEST_CASE("at_least: holds of objects and of coroutines, whoever gives them back, for every kind") {
    for (const Kind& kind : all_kinds()) {
        for (int way = 0; way < 4; ++way) {
            CAPTURE(kind.name);
            CAPTURE(way);
            Fixture fixture;
            const auto orders = kind.make(fixture.client);
            {
                Hold hold = way == 0   ? orders->hold(Lease::at_least(least))
                            : way == 1 ? orders->try_hold_for(5s, Lease::at_least(least))
                            : way == 2 ? orders->async_lock(Lease::at_least(least)).future().get()
                                       : orders->async_try_lock(Lease::at_least(least)).future().get();
                REQUIRE(hold);
                if (way == 1) REQUIRE_FALSE(hold.unlock());
                if (way == 2) REQUIRE_FALSE(std::move(hold).async_unlock().future().get());
            }
            CHECK(eventually([&] { return lease_left(fixture.redis) <= (least + late).count(); }));
            CHECK(fixture.redis.exists("orders"));
            CHECK(orders->is_locked());
            CHECK(orders->force_unlock());
            CHECK_FALSE(fixture.redis.exists("orders"));
        }
    }
}

TEST_CASE("at_least: release_all() leaves the rest of the time, in one command for each hold") {
    for (const Kind& kind : all_kinds()) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto orders = kind.make(fixture.client);
        ServerStopwatch watch(fixture.redis);
        orders->lock(Lease::at_least(least_for_each));
        CHECK(fixture.client.release_all() == 1);
        CHECK(lease_left(fixture.redis) > 0);
        CHECK(lease_left(fixture.redis) <= (least_for_each + late).count());
        CHECK(is_gone(fixture.redis));
        CHECK(watch.elapsed() >= least_for_each.count());
    }
}

TEST_CASE("at_least: an operation that was given up before its grant leaves nothing") {
    FaultyPath path;
    Client client{path.url(), unhurried()};
    RLock orders{client, "orders"};
    orders.lock();
    orders.unlock();
    for (int i = 0; i < 3; ++i) {
        path.proxy.hold_next_replies(1, acquire_digest);
        std::stop_source stop;
        auto result = orders.async_lock(Lease::at_least(60s), stop.get_token()).future();
        REQUIRE(eventually([&] { return path.redis.exists("orders"); }));
        stop.request_stop();
        CHECK(code_of([&] { static_cast<void>(result.get()); }) == errc::cancelled);
        path.proxy.release();
        CHECK(is_gone(path.redis, 20s));
    }
}

TEST_CASE("at_least: an acquire that fails or times out leaves nothing") {
    Fixture fixture;
    Client other{fixture.server.url()};
    RLock orders{fixture.client, "orders"}, theirs{other, "orders"};
    theirs.lock();
    CHECK_FALSE(orders.try_lock(Lease::at_least(60s)));
    CHECK_FALSE(orders.try_lock_for(50ms, Lease::at_least(60s)));
    theirs.unlock();
    CHECK_FALSE(fixture.redis.exists("orders"));
}

// --- maximum hold -------------------------------------------------------------------------------------------------

TEST_CASE("at_most: the watchdog stops in time, and lost() and an event tell it, for every kind") {
    for (const Kind& kind : all_kinds()) {
        CAPTURE(kind.name);
        RedisServer server;
        RawRedis redis{server};
        redlatch::fault::EventLog events;
        Client client{server.url(), events.in(unhurried(renewed))};
        const auto orders = kind.make(client);
        ServerStopwatch watch(redis);
        orders->lock(Lease::at_most(most));
        const long long end = redis.now() + most.count();
        const Instant held_before = Clock::now();
        const std::stop_token lost = orders->lost();
        Instant last = Instant::min();
        long long last_end = 0;
        CHECK(eventually(
            [&] {
                last = std::max(last, orders->valid_until());
                last_end = std::max(last_end, lease_end(redis));
                return lost.stop_requested();
            },
            20s, 5ms));
        CHECK(last <= held_before + most);
        CHECK(client.stats().renewals > 0);
        CHECK(std::max(last_end, last_lease_end(redis)) <= end + on_its_way);
        CHECK(watch.elapsed() >= most.count() / 2);
        CHECK(eventually([&] { return events.count(Event::Kind::hold_lost) == 1; }));
        CHECK(events.text().find("orders: it has lasted as long as its acquire allows") != std::string::npos);
        std::error_code ec;
        orders->unlock(ec);
        CHECK(ec == errc::hold_lost);
        CHECK(client.stats().lost_holds == 1);
    }
}

TEST_CASE("at_most: a hold that is given back before is no loss, and the next one is not limited") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    RLock orders{client, "orders"};
    orders.lock(Lease::at_most(short_lease / 2));
    CHECK(lease_left(redis) <= short_lease.count() / 2);
    orders.unlock();
    CHECK_FALSE(redis.exists("orders"));
    orders.lock();
    const Stopwatch watch;
    CHECK(eventually([&] { return watch.elapsed() > short_lease; }, 20s));
    CHECK(orders.is_held());
    orders.unlock();
    CHECK(client.stats().lost_holds == 0);
}

TEST_CASE("at_most: a nested level cannot prolong the hold, and can bring its end nearer") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), unhurried(renewed)};
    RLock orders{client, "orders"};
    orders.lock(Lease::at_most(most));
    const long long end = redis.now() + most.count();
    orders.lock(Lease{60s});
    CHECK(lease_left(redis) <= most.count());
    orders.lock(Lease::at_least(60s));
    CHECK(lease_left(redis) <= most.count());
    CHECK(last_lease_end(redis) <= end + on_its_way);

    Hold outer = orders.hold(Lease{60s});
    Hold inner = outer.again(Lease::at_most(paced(500ms)));
    CHECK(outer.valid_until() <= Clock::now() + paced(500ms));
    CHECK(is_gone(redis));
}

TEST_CASE("at_most and at_least together: the end comes, and not before the minimum") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), unhurried(renewed)};
    RLock orders{client, "orders"};
    ServerStopwatch watch(redis);
    orders.lock(Lease::at_least(most, Lease::at_most(most)));
    const long long end = redis.now() + most.count();
    CHECK(last_lease_end(redis) <= end + on_its_way);
    CHECK(watch.elapsed() >= most.count());
}

// --- errors -------------------------------------------------------------------------------------------------------

TEST_CASE("a lock over several refuses a minimum and a maximum, and sends nothing") {
    Fixture fixture;
    RLock a{fixture.client, "a"}, b{fixture.client, "b"};
    MultiLock both{a, b};
    std::error_code ec;
    both.lock(Lease::at_least(1s), ec);
    CHECK(ec == errc::unsupported);
    CHECK_FALSE(both.try_lock(Lease::at_most(1s), ec));
    CHECK(ec == errc::unsupported);
    CHECK(code_of([&] { both.lock(Lease::at_least(1s)); }) == errc::unsupported);
    Hold hold = both.hold();
    CHECK(code_of([&] { static_cast<void>(hold.again(Lease::at_least(1s))); }) == errc::unsupported);
    CHECK(code_of([&] { static_cast<void>(both.async_lock(Lease::at_most(1s)).future().get()); }) == errc::unsupported);
    REQUIRE_FALSE(hold.unlock());
    CHECK(eventually([&] { return fixture.redis.keys().empty(); }, std::chrono::seconds{20}));
}
