// SPDX-License-Identifier: MIT
// ctest: long
// ClientOptions::require_replicas: an unconfirmed grant counts as none, and nothing is left of it.
#include "faults/fault_kit.hpp"
#include "support/replicated.hpp"
#include "support/scripted_transport.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

// ReplicaAcks wait a quarter of the timeout: ample if replicas are to confirm, short if they cannot.
ClientOptions requiring(unsigned replicas, std::chrono::milliseconds timeout = 8s) {
    ClientOptions options;
    options.command_timeout = timeout;
    options.require_replicas = replicas;
    return options;
}

// Expects a refusal, and that the key is released soon.
template <class Take>
void check_refused(RawRedis& redis, const char* name, Take take) {
    CAPTURE(std::string{name});
    CHECK(code_of(take) == errc::not_replicated);
    CHECK(eventually([&] { return !redis.exists(name); }));
}

// A try before the last release is answered may only find the lock held.
template <class Lock>
void check_try_refused(RawRedis& redis, Lock& lock) {
    bool taken = false;
    CHECK(eventually([&] { return code_of([&] { taken = taken || lock.try_lock(); }) == errc::not_replicated; }));
    CHECK_FALSE(taken);
    CHECK(eventually([&] { return !redis.exists(lock.name()); }));
}

}  // namespace

TEST_CASE("a grant is on the required replica when the call returns, for every kind of lock and permit") {
    Replicated setup;
    RawRedis redis{setup.master()}, replica{setup.replica()};
    Client client{setup.master().url(), requiring(1)};
    const auto check = [&](auto&& lock) {
        lock.lock();
        CHECK(replica.exists(lock.name()));
        lock.unlock();
    };
    with_each_lock(client, check);
    const auto waits = redis.command_calls()["wait"];
    CHECK(waits >= 7);
    Semaphore permits{client, "permits"};
    permits.try_set_permits(2);
    permits.acquire();
    CHECK(replica.text("GET", "permits") == "1");
    PermitExpirableSemaphore slots{client, "slots"};
    slots.try_set_permits(2);
    const PermitId id = slots.acquire();
    CHECK(replica.text("GET", "slots") == "1");
    slots.release(id);
    RLock member{client, "member"};
    MultiLock multi{member};
    multi.lock();
    CHECK(replica.exists("member"));
    multi.unlock();
    CHECK(redis.command_calls()["wait"] >= waits + 3);
}

TEST_CASE("without the required replica nothing is granted and nothing is left, for every kind of lock and permit") {
    Replicated setup;
    setup.cut_replication();
    RawRedis redis{setup.master()};
    Client client{setup.master().url(), requiring(1, 1s)};
    RLock rlock{client, "rlock"};
    FairLock fair{client, "fair"};
    FencedLock fenced{client, "fenced"};
    SpinLock spin{client, "spin"};
    Mutex mutex{client, "mutex"};
    ReadWriteLock both{client, "both"};
    check_refused(redis, "rlock", [&] { rlock.lock(); });
    check_try_refused(redis, rlock);
    check_refused(redis, "fair", [&] { fair.lock(); });
    check_try_refused(redis, fair);
    check_refused(redis, "fenced", [&] { return fenced.lock_and_get_token(); });
    check_refused(redis, "spin", [&] { spin.lock(Lease{60s}); });
    check_refused(redis, "mutex", [&] { mutex.lock(); });
    check_refused(redis, "both", [&] { both.lock_shared(); });
    check_refused(redis, "both", [&] { both.lock(); });
    Semaphore permits{client, "permits"};
    permits.try_set_permits(2);
    CHECK(code_of([&] { permits.acquire(2); }) == errc::not_replicated);
    CHECK(eventually([&] { return redis.text("GET", "permits") == "2"; }));
    PermitExpirableSemaphore slots{client, "slots"};
    slots.try_set_permits(1);
    CHECK(code_of([&] { return slots.acquire(); }) == errc::not_replicated);
    CHECK(eventually([&] { return redis.text("GET", "slots") == "1"; }));
    RLock member{client, "member"};
    MultiLock multi{member};
    // Its last round may only find the lock held by the round before.
    bool refused = false;
    for (int tries = 0; tries < 3 && !refused; ++tries)
        refused = code_of([&] { CHECK_FALSE(multi.try_lock_for(20s)); }) == errc::not_replicated;
    CHECK(refused);
    CHECK(eventually([&] { return !redis.exists("member"); }));
    CHECK(redis.command_calls()["wait"] > 10);
}

TEST_CASE("a reentry that is not replicated fails, and the hold stays as it was") {
    Replicated setup;
    RawRedis redis{setup.master()};
    Client client{setup.master().url(), requiring(1)};
    RLock orders{client, "orders"};
    orders.lock();
    setup.cut_replication();
    CHECK(code_of([&] { orders.lock(); }) == errc::not_replicated);
    CHECK(orders.is_held());
    orders.unlock();
    CHECK_FALSE(redis.exists("orders"));
}

TEST_CASE("a hand-over within the process that is not replicated gives the successor nothing") {
    Replicated setup;
    RawRedis redis{setup.master()};
    Client client{setup.master().url(), requiring(1)};
    RLock orders{client, "orders"};
    orders.lock();
    auto waiting = start([&] { return code_of([&] { orders.lock(); }); });
    REQUIRE(eventually([&] { return client.stats().waits == 1 && listeners(redis, "orders") == 1; }));
    setup.cut_replication();
    orders.unlock();
    REQUIRE(ready(waiting, 20s));
    CHECK(waiting.get() == errc::not_replicated);
    CHECK(client.stats().handoffs == 0);
    CHECK(eventually([&] { return !redis.exists("orders"); }));
}

TEST_CASE("a renewal that is not replicated prolongs nothing: hold and permit are lost at the end of their lease") {
    Replicated setup;
    EventLog log;
    ClientOptions options = log.in(requiring(1, 4s));
    options.watchdog_timeout = 4s;
    Client client{setup.master().url(), options};
    RLock orders{client, "orders"};
    PermitExpirableSemaphore slots{client, "slots"};
    slots.try_set_permits(1);
    orders.lock();
    static_cast<void>(slots.acquire());
    REQUIRE(eventually([&] { return client.stats().renewals >= 2; }, 10s));
    CHECK(log.count(Event::Kind::hold_lost) == 0);
    const std::stop_token lost = orders.lost();
    setup.cut_replication();
    const Instant cut = Clock::now();
    CHECK(eventually([&] { return lost.stop_requested() && log.count(Event::Kind::hold_lost) == 2; }, 20s));
    CHECK(Clock::now() - cut > 1s);
    std::error_code ec;
    orders.unlock(ec);
    CHECK(ec == errc::hold_lost);
}

TEST_CASE("all_replicas means as many as the master has had, even after one of them is gone") {
    Replicated setup{2};
    Client client{setup.master().url(), requiring(all_replicas)};
    RLock orders{client, "orders"};
    orders.lock();
    CHECK(RawRedis{setup.replica(0)}.exists("orders"));
    CHECK(RawRedis{setup.replica(1)}.exists("orders"));
    orders.unlock();
    setup.replica(1).kill();
    REQUIRE(eventually([&] { return Replicated::replicas_of(setup.master()) == 1; }, 10s));
    CHECK(code_of([&] { orders.lock(); }) == errc::not_replicated);
    Client one{setup.master().url(), requiring(1)};
    RLock others{one, "others"};
    others.lock();
    others.unlock();
}

TEST_CASE("all_replicas with a server that has no replicas is an error") {
    RedisServer server;
    Client client{server.url(), requiring(all_replicas, 1s)};
    RLock orders{client, "orders"};
    CHECK(code_of([&] { orders.lock(); }) == errc::not_replicated);
}

TEST_CASE("require_replicas with a transport that cannot post several commands together is refused") {
    ScriptedRedis redis;
    CHECK(code_of([&] { redlatch::Client client(redis.transport(), requiring(1)); }) == errc::unsupported);
    redlatch::Client client{redis.transport()};
    redlatch::RLock orders{client, "orders"};
    orders.lock();
    orders.unlock();
}
