// SPDX-License-Identifier: MIT
// ctest: long
// ObjectOptions: what an object has of its own, beside an object of the same name that goes by its client's options.
#include <array>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "faults/fault_kit.hpp"
#include "support/replicated.hpp"
#include "support/scripted_transport.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

constexpr auto own_lease = paced(4000ms);
constexpr auto own_time = paced(300ms);

// How much later a call may return that goes by own_time. The client's own times are ten seconds or more.
constexpr auto much_later = 5s;

std::chrono::milliseconds lease_of(RawRedis& redis, const char* key) {
    return std::chrono::milliseconds(redis.integer("PTTL", key));
}

// Returns true if the key gets a longer lease again, and never one above `lease`.
bool is_renewed(RawRedis& redis, const char* key, std::chrono::milliseconds lease) {
    auto last = lease_of(redis, key);
    bool in_bounds = last.count() > 0;
    const bool renewed = eventually(
        [&] {
            const auto now = lease_of(redis, key);
            in_bounds = in_bounds && now.count() > 0 && now <= lease;
            return std::exchange(last, now) < now;
        },
        lease * 3, 5ms);
    return renewed && in_bounds;
}

// A key of each object whose constructor takes options.
template <class Each>
void with_each_kind(Client& client, const ObjectOptions& options, Each each) {
    each([&] { RLock{client, "a", options}; });
    each([&] { FairLock{client, "b", options}; });
    each([&] { FencedLock{client, "c", options}; });
    each([&] { NonReentrantLock{client, "a", options}; });
    each([&] { NonReentrantFairLock{client, "b", options}; });
    each([&] { SpinLock{client, "a", {}, options}; });
    each([&] { Mutex{client, "d", {}, options}; });
    each([&] { ReadWriteLock{client, "e", {}, options}; });
    each([&] { Semaphore{client, "f", options}; });
    each([&] { PermitExpirableSemaphore{client, "g", options}; });
    each([&] { CountDownLatch{client, "h", options}; });
}

}  // namespace

// --- watchdog_timeout ---------------------------------------------------------------------------------------------

TEST_CASE("watchdog_timeout: a hold has the lease of the object that acquired it, and is renewed, for every kind") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), unhurried()};
    const ObjectOptions own{.watchdog_timeout = own_lease};
    const auto check = [&](auto& plain, auto& brief) {
        CAPTURE(plain.name());
        plain.lock();
        CHECK(plain.remaining_lease() > own_lease);
        plain.unlock();
        brief.lock();
        CHECK(brief.remaining_lease() <= own_lease);
        CHECK(is_renewed(redis, brief.name().c_str(), own_lease));
        CHECK(brief.valid_until() <= Clock::now() + own_lease);
        brief.unlock();
        Hold hold = brief.hold();
        CHECK(lease_of(redis, brief.name().c_str()) <= own_lease);
        REQUIRE_FALSE(hold.unlock());
        Hold later = brief.async_lock().future().get();
        CHECK(lease_of(redis, brief.name().c_str()) <= own_lease);
        REQUIRE_FALSE(later.unlock());
    };
    const auto check_kind = [&]<class Lock>(std::type_identity<Lock>, const char* name, auto... defaults) {
        Lock plain{client, name}, brief{client, name, defaults..., own};
        check(plain, brief);
    };
    check_kind(std::type_identity<RLock>(), "rlock");
    check_kind(std::type_identity<FairLock>(), "fair");
    check_kind(std::type_identity<FencedLock>(), "fenced");
    check_kind(std::type_identity<NonReentrantLock>(), "non_reentrant");
    check_kind(std::type_identity<NonReentrantFairLock>(), "non_reentrant_fair");
    check_kind(std::type_identity<SpinLock>(), "spin", SpinOptions());
    check_kind(std::type_identity<Mutex>(), "mutex", SpinOptions());
    ReadWriteLock plain{client, "both"}, brief{client, "both", {}, own};
    check(plain.read_lock(), brief.read_lock());
    check(plain.write_lock(), brief.write_lock());
    CHECK(client.stats().lost_holds == 0);
}

TEST_CASE("watchdog_timeout: a hold keeps its lease when another object adds a level or ends one") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), unhurried()};
    RLock plain{client, "orders"}, brief{client, "orders", {.watchdog_timeout = own_lease}};
    brief.lock();
    plain.lock();
    CHECK(lease_of(redis, "orders") <= own_lease);
    plain.unlock();
    CHECK(lease_of(redis, "orders") <= own_lease);
    CHECK(is_renewed(redis, "orders", own_lease));
    plain.unlock();
    CHECK_FALSE(redis.exists("orders"));

    plain.lock();
    brief.lock();
    CHECK(lease_of(redis, "orders") > own_lease);
    brief.unlock();
    brief.unlock();
    Hold first = brief.hold();
    Hold second = first.again();
    CHECK(lease_of(redis, "orders") <= own_lease);
}

TEST_CASE("watchdog_timeout: a permit has the lease of the object that acquired it, and is renewed") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), unhurried()};
    PermitExpirableSemaphore plain{client, "slots"}, brief{client, "slots", {.watchdog_timeout = own_lease}};
    plain.try_set_permits(3);
    const PermitId longer = plain.acquire(), shorter = brief.acquire();
    CHECK(*plain.remaining_lease(longer) > own_lease);
    CHECK(*plain.remaining_lease(shorter) <= own_lease);
    const Permits object = brief.async_acquire(1).future().get();
    // Each third of the lease renews two permits.
    CHECK(eventually([&] { return client.stats().renewals >= 10; }, own_lease * 6));
    CHECK(client.stats().lost_holds == 0);
    CHECK(object.valid_until() > Clock::now());
    CHECK(object.valid_until() <= Clock::now() + own_lease);
    CHECK_FALSE(object.lost().stop_requested());
    CHECK(*plain.remaining_lease(shorter) <= own_lease);
    CHECK(*plain.remaining_lease(longer) > own_lease);
    CHECK(plain.acquired_permits() == 3);
    plain.release(longer);
    plain.release(shorter);
}

TEST_CASE("watchdog_timeout: the members of a MultiLock keep their own") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), unhurried()};
    RLock plain{client, "plain"}, brief{client, "brief", {.watchdog_timeout = own_lease}};
    MultiLock both{plain, brief};
    both.lock();
    CHECK(lease_of(redis, "plain") > own_lease);
    CHECK(lease_of(redis, "brief") <= own_lease);
    CHECK(is_renewed(redis, "brief", own_lease));
    CHECK_FALSE(both.lost().stop_requested());
    both.unlock();
    RLock longer{client, "longer", {.watchdog_timeout = 60s}};
    CHECK(code_of([&] { RedLock(RedLockOptions{.longest_lease = 30s}, longer); }) == errc::invalid_argument);
}

// --- command_timeout and unreachable_timeout ------------------------------------------------------------------------

TEST_CASE("command_timeout: one try of a server that does not reply takes no longer, by the object's own time") {
    RedisServer server;
    Client client{server.url(), unhurried()};
    RLock plain{client, "orders"}, hasty{client, "orders", {.command_timeout = own_time}};
    Semaphore permits{client, "permits", {.command_timeout = own_time}};
    permits.try_set_permits(1);
    plain.lock();
    plain.unlock();
    server.stop();
    Stopwatch watch;
    CHECK(code_of([&] { static_cast<void>(hasty.try_lock()); }) == errc::unreachable);
    CHECK(code_of([&] { static_cast<void>(permits.try_acquire()); }) == errc::unreachable);
    CHECK(code_of([&] { static_cast<void>(hasty.async_try_lock().future().get()); }) == errc::unreachable);
    CHECK(code_of([&] { static_cast<void>(hasty.try_hold()); }) == errc::unreachable);
    CHECK(code_of([&] { static_cast<void>(hasty.wait_release_for(0ms)); }) == errc::unreachable);
    CHECK(watch.within(own_time * 5 + much_later));
    // The connection stays open, and the other object still waits for its reply.
    watch.restart();
    auto waiting = start([&] { return plain.try_lock_for(20s); });
    CHECK_FALSE(ready(waiting, own_time * 2));
    server.cont();
    REQUIRE(ready(waiting, 20s));
    CHECK(waiting.get());
    CHECK(client.stats().reconnects == 0);
    plain.force_unlock();
}

TEST_CASE("command_timeout: a release goes by the options of the object that acquired the hold") {
    RedisServer server;
    Client client{server.url(), unhurried()};
    RLock plain{client, "orders"}, hasty{client, "orders", {.command_timeout = own_time}};
    hasty.lock();
    server.stop();
    const Stopwatch watch;
    std::error_code ec;
    plain.unlock(ec);
    CHECK(ec == errc::unreachable);
    CHECK(watch.within(own_time + much_later));
    server.cont();
    CHECK(eventually([&] { return !plain.is_locked(); }));
}

TEST_CASE("command_timeout: queries, changes and levels go by the options of the object that they are made through") {
    RedisServer server;
    ClientOptions options = unhurried();
    options.unreachable_timeout = 15s;
    Client client{server.url(), options};
    const ObjectOptions own{.command_timeout = own_time, .unreachable_timeout = own_time};
    RLock plain{client, "orders"}, hasty{client, "orders", own};
    CountDownLatch latch{client, "latch", own};
    Semaphore permits{client, "permits", own};
    PermitExpirableSemaphore slots{client, "slots", own};
    ReadWriteLock both{client, "both", {}, own};
    plain.lock();
    server.stop();
    const auto check = [&](auto call) {
        const Stopwatch watch;
        CHECK(code_of(call) == errc::unreachable);
        CHECK(watch.within(own_time * 2 + much_later));
    };
    check([&] { hasty.is_locked(); });
    check([&] { hasty.inspect(); });
    check([&] { hasty.force_unlock(); });
    check([&] { hasty.lock(); });
    check([&] { latch.try_set_count(1); });
    check([&] { latch.count(); });
    check([&] { permits.release(); });
    check([&] { slots.available_permits(); });
    check([&] { both.inspect(); });
    check([&] { both.lock_shared(); });
    server.cont();
    std::error_code ec;
    plain.unlock(ec);
}

TEST_CASE("unreachable_timeout: a call gives up a dead server by the object's own time, for every kind") {
    RedisServer server;
    Client client{server.url(), unhurried()};
    const ObjectOptions own{.unreachable_timeout = own_time};
    RLock plain{client, "orders"}, hasty{client, "orders", own};
    FairLock fair{client, "fair", own};
    Mutex mutex{client, "mutex", {}, own};
    Semaphore permits{client, "permits", own};
    CountDownLatch latch{client, "latch", own};
    MultiLock multi{hasty};
    plain.lock();
    plain.unlock();
    server.kill();
    const auto check = [&](auto call) {
        const Stopwatch watch;
        CHECK(code_of(call) == errc::unreachable);
        CHECK(watch.within(own_time + much_later));
        CHECK_FALSE(watch.within(own_time - 50ms));
    };
    check([&] { hasty.lock(); });
    check([&] { static_cast<void>(hasty.hold()); });
    check([&] { static_cast<void>(hasty.async_lock().future().get()); });
    check([&] { hasty.wait_release(); });
    check([&] { hasty.async_wait_release().future().get(); });
    check([&] { fair.lock(); });
    check([&] { mutex.lock(); });
    check([&] { permits.acquire(); });
    check([&] { latch.wait(); });
    check([&] { multi.lock(); });
    auto waiting = start([&] { return plain.try_lock_for(20s); });
    CHECK_FALSE(ready(waiting, own_time * 2));
    server.restart();
    REQUIRE(ready(waiting, 20s));
    CHECK(waiting.get());
    plain.force_unlock();
}

// --- require_replicas -----------------------------------------------------------------------------------------------

TEST_CASE("require_replicas: on a server without replicas only the object that requires one is refused") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), unhurried()};
    const ObjectOptions own{.command_timeout = paced(1000ms), .require_replicas = 1};
    const auto check = [&]<class Lock>(std::type_identity<Lock>, const char* name, auto... defaults) {
        Lock plain{client, name}, safe{client, name, defaults..., own};
        CAPTURE(plain.name());
        CHECK(code_of([&] { safe.lock(); }) == errc::not_replicated);
        CHECK(code_of([&] { static_cast<void>(safe.async_lock().future().get()); }) == errc::not_replicated);
        CHECK(eventually([&] { return !redis.exists(name); }));
        plain.lock();
        CHECK(redis.exists(name));
        plain.unlock();
    };
    check(std::type_identity<RLock>(), "rlock");
    check(std::type_identity<FairLock>(), "fair");
    check(std::type_identity<Mutex>(), "mutex", SpinOptions());
    check(std::type_identity<ReadWriteLock>(), "both", ReadWriteOptions());
    Semaphore plain{client, "permits"}, safe{client, "permits", own};
    plain.try_set_permits(1);
    CHECK(code_of([&] { safe.acquire(); }) == errc::not_replicated);
    CHECK(eventually([&] { return plain.available_permits() == 1; }));
    plain.acquire();
    PermitExpirableSemaphore slots{client, "slots", own};
    slots.try_set_permits(1);
    CHECK(code_of([&] { static_cast<void>(slots.acquire()); }) == errc::not_replicated);
    RLock member{client, "member", own};
    MultiLock multi{member};
    CHECK(code_of([&] { static_cast<void>(multi.try_lock()); }) == errc::not_replicated);
}

TEST_CASE("require_replicas: zero asks none for this object, whatever the client requires") {
    RedisServer server;
    ClientOptions options = unhurried();
    options.command_timeout = paced(1000ms);
    options.require_replicas = 1;
    Client client{server.url(), options};
    RLock plain{client, "orders"}, free{client, "orders", {.require_replicas = 0}};
    CHECK(code_of([&] { plain.lock(); }) == errc::not_replicated);
    CHECK(eventually([&] { return !free.is_locked(); }));
    free.lock();
    CHECK(code_of([&] { plain.lock(); }) == errc::not_replicated);
    free.unlock();
}

TEST_CASE("require_replicas: a hold that is handed over is confirmed as its new owner requires") {
    Replicated setup;
    RawRedis redis{setup.master()};
    Client client{setup.master().url(), unhurried()};
    RLock plain{client, "orders"}, safe{client, "orders", {.command_timeout = paced(1000ms), .require_replicas = 1}};
    plain.lock();
    auto waiting = start([&] { return code_of([&] { safe.lock(); }); });
    REQUIRE(eventually([&] { return client.stats().waiting == 1 && listeners(redis, "orders") == 1; }));
    setup.cut_replication();
    // A waiter that is asking the server gets nothing handed over.
    std::uint64_t commands = 0;
    const auto is_quiet = [&] {
        const std::uint64_t before = std::exchange(commands, client.stats().commands);
        return before == commands && redis.info("clients", "blocked_clients") == "0";
    };
    REQUIRE(eventually(is_quiet, 10s, 50ms));
    plain.unlock();
    REQUIRE(ready(waiting, 20s));
    CHECK(waiting.get() == errc::not_replicated);
    CHECK(client.stats().handoffs == 0);
    CHECK(eventually([&] { return !redis.exists("orders"); }));
}

TEST_CASE("require_replicas: renewals that no replica confirms prolong only what requires none") {
    Replicated setup;
    Client client{setup.master().url(), unhurried(paced(4000ms))};
    const ObjectOptions own{.command_timeout = paced(4000ms), .require_replicas = 1};
    RLock plain{client, "plain"}, safe{client, "safe", own};
    PermitExpirableSemaphore slots{client, "slots", own}, others{client, "slots"};
    slots.try_set_permits(4);
    plain.lock();
    safe.lock();
    static_cast<void>(slots.acquire());
    const Permits object = slots.async_acquire(1).future().get(), kept_object = others.async_acquire(1).future().get();
    const PermitId kept_one = others.acquire();
    const std::stop_token lost = safe.lost(), object_lost = object.lost();
    setup.cut_replication();
    CHECK(eventually([&] { return lost.stop_requested() && client.stats().lost_holds == 3; }, 30s));
    CHECK(eventually([&] { return object_lost.stop_requested(); }));
    CHECK_FALSE(plain.lost().stop_requested());
    CHECK_FALSE(kept_object.lost().stop_requested());
    CHECK(others.remaining_lease(kept_one).has_value());
    CHECK(client.stats().lost_holds == 3);
    plain.unlock();
}

TEST_CASE("require_replicas: callers of one semaphore that require another number do not share a request") {
    RedisServer server;
    Client client{server.url(), unhurried()};
    Semaphore plain{client, "permits"},
        safe{client, "permits", {.command_timeout = paced(1000ms), .require_replicas = 1}};
    plain.try_set_permits(0);
    auto first = start([&] { return code_of([&] { plain.acquire(); }); });
    REQUIRE(eventually([&] { return client.stats().waiting == 1; }));
    auto second = start([&] { return code_of([&] { safe.acquire(); }); });
    REQUIRE(eventually([&] { return client.stats().waiting == 2; }));
    plain.release(2);
    REQUIRE(ready(first, 20s));
    REQUIRE(ready(second, 20s));
    CHECK_FALSE(first.get());
    CHECK(second.get() == errc::not_replicated);
    CHECK(eventually([&] { return plain.available_permits() == 1; }));
}

// --- local_handoff_limit --------------------------------------------------------------------------------------------

TEST_CASE("local_handoff_limit: zero hands no hold of this object over; those of another object are") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), unhurried()};
    RLock plain{client, "orders"}, never_handed{client, "orders", {.local_handoff_limit = 0}};
    const auto handoffs_after = [&](RLock& releasing) {
        const auto before = client.stats().handoffs;
        releasing.lock();
        auto waiting = start([&] { return plain.lock(), plain.unlock(), true; });
        REQUIRE(eventually([&] { return client.stats().waiting == 1 && listeners(redis, "orders") == 1; }));
        releasing.unlock();
        CHECK(waiting.get());
        return client.stats().handoffs - before;
    };
    CHECK(handoffs_after(never_handed) == 0);
    CHECK(handoffs_after(plain) == 1);
}

// --- the object -----------------------------------------------------------------------------------------------------

TEST_CASE("bad values are refused by every kind of object, before anything is sent") {
    RedisServer server;
    Client client{server.url(), unhurried()};
    const std::array bad{ObjectOptions{.watchdog_timeout = 29ms},
                         ObjectOptions{.watchdog_timeout = -1s},
                         ObjectOptions{.watchdog_timeout = std::chrono::hours(24 * 365 * 101)},
                         ObjectOptions{.command_timeout = 0ms},
                         ObjectOptions{.command_timeout = 10s + 1ms},
                         ObjectOptions{.unreachable_timeout = -1ms}};
    for (const ObjectOptions& options : bad)
        with_each_kind(client, options, [](auto make) { CHECK(code_of(make) == errc::invalid_argument); });
    const ObjectOptions good{.watchdog_timeout = 30ms,
                             .command_timeout = 10s,
                             .unreachable_timeout = 0ms,
                             .local_handoff_limit = 0,
                             .require_replicas = all_replicas};
    with_each_kind(client, good, [](auto make) { CHECK_FALSE(code_of(make)); });
    CHECK(client.stats().commands == 0);
}

TEST_CASE("require_replicas of an object with a transport that cannot post several commands together is refused") {
    ScriptedRedis redis;
    Client client{redis.transport()};
    CHECK(code_of([&] { RLock(client, "orders", {.require_replicas = 1}); }) == errc::unsupported);
    RLock orders{client, "orders", {.watchdog_timeout = 10s}};
    orders.lock();
    orders.unlock();
}

TEST_CASE("an operation and a hold keep the options of an object that is gone") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), unhurried()};
    auto brief = std::make_unique<RLock>(client, "orders", ObjectOptions{.watchdog_timeout = own_lease});
    auto operation = brief->async_lock();
    brief.reset();
    Hold hold = std::move(operation).future().get();
    CHECK(lease_of(redis, "orders") <= own_lease);
    CHECK(is_renewed(redis, "orders", own_lease));
    Hold again = hold.again();
    CHECK(lease_of(redis, "orders") <= own_lease);
}
