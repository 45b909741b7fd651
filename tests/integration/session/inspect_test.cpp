// SPDX-License-Identifier: MIT
// inspect(): what each primitive reports about its state on the server, by whichever client it was made.
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <system_error>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using namespace redlatch;

namespace {

/// A thread of Redisson.
const std::string java_client = "b983c153-7421-469a-addb-44fb92259a1b";
const std::string java = java_client + ":42";

bool is_about(std::chrono::milliseconds lease, std::chrono::milliseconds whole) {
    return lease <= whole && lease > whole - 10s;
}

/// Returns the server's clock in milliseconds, and a bit more.
std::string server_time(RawRedis& redis, long long more) { return std::to_string(redis.now() + more); }

std::vector<std::string> owners(const std::vector<Holder>& holders) {
    std::vector<std::string> texts;
    for (const Holder& holder : holders) texts.push_back(holder.owner);
    std::sort(texts.begin(), texts.end());
    return texts;
}

}  // namespace

TEST_CASE("an RLock reports its owner, client, number, level and lease, in one command that changes nothing") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    RLock orders{client, "orders"};
    RLock seen{other, "orders"};
    CHECK(seen.inspect().holders.empty());
    Hold hold = orders.hold();
    Hold again = hold.again(Lease{60s});
    const auto fields = redis.hgetall("orders");
    CommandMonitor monitor{server};
    const Inspection found = seen.inspect();
    CHECK(monitor.take() == std::map<std::string, long long>{{"evalsha", 1}});
    REQUIRE(found.holders.size() == 1);
    const Holder& holder = found.holders[0];
    CHECK(holder.owner == client.id() + ":" + std::to_string(hold.owner()));
    CHECK(holder.client == client.id());
    CHECK(holder.number == hold.owner());
    CHECK(holder.level == 2);
    CHECK(is_about(holder.lease, 60s));
    CHECK_FALSE(holder.shared);
    CHECK(found.waiting.empty());
    CHECK_FALSE(found.token);
    CHECK(redis.hgetall("orders") == fields);
}

TEST_CASE("a hold of Redisson is reported like one of ours; one without a TTL has the longest lease") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    redis.integer("HSET", "orders", java, 3);
    std::vector<Holder> holders = orders.inspect().holders;
    REQUIRE(holders.size() == 1);
    CHECK(holders[0].lease == std::chrono::milliseconds::max());
    redis.integer("PEXPIRE", "orders", 60'000);
    holders = orders.inspect().holders;
    REQUIRE(holders.size() == 1);
    CHECK(holders[0].owner == java);
    CHECK(holders[0].client == java_client);
    CHECK(holders[0].number == 42);
    CHECK(holders[0].level == 3);
    CHECK(is_about(holders[0].lease, 60s));
}

TEST_CASE("a FairLock reports the queue in the order of service, without dead waiters, which stay where they are") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    FairLock mine{client, "fair"};
    FairLock theirs{client, "fair"};
    mine.lock();
    const std::string queue = "redisson_lock_queue:{fair}", timeouts = "redisson_lock_timeout:{fair}";
    const auto enqueue = [&](const std::string& owner, long long alive_for) {
        redis.integer("RPUSH", queue, owner);
        redis.integer("ZADD", timeouts, server_time(redis, alive_for), owner);
    };
    enqueue(java_client + ":7", 60'000);
    enqueue(java_client + ":8", -1000);
    redis.integer("RPUSH", queue, java_client + ":9");  // without a time
    auto waiter = start_waiting(client, [&] { return theirs.try_lock_for(20s) ? (theirs.unlock(), true) : false; });
    REQUIRE(eventually([&] { return redis.integer("LLEN", queue) == 4; }));

    Inspection found = theirs.inspect();
    CHECK(owners(found.holders) == std::vector<std::string>{owner_of(client, mine)});
    REQUIRE(found.waiting.size() == 2);
    CHECK(found.waiting[0].owner == java_client + ":7");
    CHECK(found.waiting[0].client == java_client);
    CHECK(found.waiting[0].number == 7);
    CHECK(is_about(found.waiting[0].expires_in, 60s));
    CHECK(found.waiting[1].client == client.id());
    CHECK(found.waiting[1].expires_in <= 5s);
    CHECK(redis.integer("LLEN", queue) == 4);
    redis.integer("LREM", queue, 0, java_client + ":7");
    mine.unlock();
    CHECK(waiter.get());
    CHECK(theirs.inspect().waiting.empty());
}

TEST_CASE("a FencedLock reports the last token, also while it is free") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    FencedLock orders{client, "orders"};
    CHECK_FALSE(orders.inspect().token);
    const std::int64_t token = orders.lock_and_get_token();
    CHECK(orders.inspect().token == token);
    CHECK(owners(orders.inspect().holders) == std::vector<std::string>{owner_of(client, orders)});
    orders.unlock();
    CHECK(orders.inspect().token == token);
    CHECK(orders.inspect().holders.empty());
    redis.text("SET", "redisson_lock_token:{orders}", "17");
    CHECK(orders.inspect().token == 17);
    redis.text("SET", "redisson_lock_token:{orders}", "none");
    CHECK(code_of([&] { orders.inspect(); }) == errc::wrong_type);
}

TEST_CASE("a ReadWriteLock reports both sides, each side its own, and no expired reader") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    ReadWriteLock lock{client, "shared"};
    Hold reader = lock.hold_shared(Lease{60s});
    Hold second = reader.again(Lease{120s});
    redis.integer("HSET", "shared", java, 1);
    redis.text("SET", "{shared}:" + java + ":rwlock_timeout:1", "1", "PX", 30'000);
    redis.integer("HSET", "shared", java_client + ":43", 1);  // its lease is over
    const std::string mine = client.id() + ":" + std::to_string(reader.owner());

    Inspection found = lock.inspect();
    std::vector<std::string> both{mine, java};
    std::sort(both.begin(), both.end());
    CHECK(owners(found.holders) == both);
    for (const Holder& holder : found.holders) {
        CHECK(holder.shared);
        CHECK(holder.level == (holder.owner == mine ? 2 : 1));
        CHECK(is_about(holder.lease, holder.owner == mine ? 120s : 30s));
    }
    CHECK(redis.integer("HLEN", "shared") == 4);
    CHECK(lock.read_lock().inspect().holders.size() == 2);
    CHECK(lock.write_lock().inspect().holders.empty());

    CHECK(redis.integer("DEL", "shared") == 1);
    lock.lock();
    lock.lock_shared();
    found = lock.inspect();
    REQUIRE(found.holders.size() == 2);
    const Holder& writer = found.holders[found.holders[0].shared ? 1 : 0];
    CHECK(writer.owner == owner_of(client, lock.write_lock()));
    CHECK(writer.client == client.id());
    CHECK_FALSE(writer.shared);
    CHECK(owners(lock.read_lock().inspect().holders) == std::vector<std::string>{owner_of(client, lock.read_lock())});
    CHECK(owners(lock.write_lock().inspect().holders) == std::vector<std::string>{writer.owner});
    lock.unlock_shared();
    lock.unlock();
    CHECK(lock.inspect().holders.empty());
}

TEST_CASE("a Mutex reports the value of its key, whatever its form") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Mutex mutex{client, "mutex"};
    Hold hold = mutex.hold();
    std::vector<Holder> holders = mutex.inspect().holders;
    REQUIRE(holders.size() == 1);
    CHECK(holders[0].client == client.id());
    CHECK(holders[0].number == hold.owner());
    CHECK(holders[0].level == 1);
    CHECK_FALSE(hold.unlock());
    for (const std::string value : {"", "some host, some thread", "b983c153-7421-469a-addb-44fb92259a1b:4x"}) {
        redis.text("SET", "mutex", value, "PX", 60'000);
        holders = mutex.inspect().holders;
        REQUIRE(holders.size() == 1);
        CHECK(holders[0].owner == value);
        CHECK(holders[0].client.empty());
        CHECK(holders[0].number == 0);
        CHECK(is_about(holders[0].lease, 60s));
    }
    redis.integer("DEL", "mutex");
    CHECK(mutex.inspect().holders.empty());
}

TEST_CASE("a lock over several reports each member in order; only if none replies, it fails") {
    RedisServer one, two, three;
    ClientOptions options;
    options.command_timeout = 1s;
    Client first{one.url(), options}, second{two.url(), options}, third{three.url(), options};
    RLock a{first, "a"}, b{second, "b"}, c{third, "c"};
    RedLock lock{b, a, c};
    Hold held = a.hold();
    std::vector<MemberInspection> found = lock.inspect();
    REQUIRE(found.size() == 3);
    CHECK(found[0].name == "b");
    CHECK(found[0].state.holders.empty());
    CHECK(found[1].name == "a");
    CHECK(owners(found[1].state.holders) == std::vector<std::string>{first.id() + ":" + std::to_string(held.owner())});

    one.kill();
    found = lock.inspect();
    REQUIRE(found.size() == 3);
    CHECK(found[1].error == errc::unreachable);
    CHECK(found[1].state.holders.empty());
    CHECK_FALSE(found[0].error);
    CHECK_FALSE(found[2].error);
    two.kill();
    three.kill();
    CHECK(code_of([&] { lock.inspect(); }) == errc::unreachable);
    std::error_code ec;
    CHECK(lock.inspect(ec).empty());
    CHECK(ec == errc::unreachable);
}

TEST_CASE("a Semaphore reports its permits and when its key expires") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Semaphore seats{client, "seats"};
    CHECK_FALSE(seats.inspect().exists);
    CHECK(seats.try_set_permits(3));
    CHECK(seats.try_acquire(2));
    SemaphoreInspection found = seats.inspect();
    CHECK(found.exists);
    CHECK(found.available == 1);
    CHECK(found.permits.empty());
    CHECK_FALSE(found.expires_in);
    redis.integer("PEXPIRE", "seats", 60'000);
    found = seats.inspect();
    REQUIRE(found.expires_in);
    CHECK(is_about(*found.expires_in, 60s));
    redis.text("SET", "seats", "-2");
    CHECK(seats.inspect().available == -2);
}

TEST_CASE("a PermitExpirableSemaphore reports who could release what; an expired permit is available and stays") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    PermitExpirableSemaphore slots{client, "slots"};
    CHECK_FALSE(slots.inspect().exists);
    CHECK(slots.try_set_permits(5));
    const PermitId limited = slots.acquire(Lease{60s});
    const PermitId endless = slots.acquire(Lease::forever());
    // A permit of Redisson, whose lease is over.
    redis.integer("DECR", "slots");
    redis.integer("ZADD", "{slots}:timeout", server_time(redis, -1000), "0123456789abcdef");

    SemaphoreInspection found = slots.inspect();
    CHECK(found.exists);
    CHECK(found.available == 3);
    CHECK(found.acquired == 2);
    REQUIRE(found.permits.size() == 2);
    CHECK(PermitId::parse(found.permits[0].id) == limited);
    CHECK(is_about(found.permits[0].lease, 60s));
    CHECK(PermitId::parse(found.permits[1].id) == endless);
    CHECK(found.permits[1].lease == std::chrono::milliseconds::max());
    CHECK(redis.integer("ZCARD", "{slots}:timeout") == 3);
    CHECK(redis.integer("GET", "slots") == 2);
    CHECK(slots.available_permits() == 3);
    slots.release(PermitId::parse(found.permits[1].id));
}

TEST_CASE("a reply of inspect() has a limit: a client refuses larger ones") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    PermitExpirableSemaphore slots{client, "slots"};
    CHECK(slots.try_set_permits(1500));
    CHECK(slots.acquire(1500, Lease{60s}).size() == 1500);
    const SemaphoreInspection found = slots.inspect();
    CHECK(found.acquired == 1500);
    CHECK(found.permits.size() == 1000);

    ReadWriteLock lock{client, "shared"};
    redis.text("EVAL",
               "redis.call('hset', 'shared', 'mode', 'read') for i = 1, 1500 do local owner = ARGV[1] .. ':' .. i "
               "redis.call('hset', 'shared', owner, 1) "
               "redis.call('set', '{shared}:' .. owner .. ':rwlock_timeout:1', 1, 'px', 60000) end return 'done'",
               "0", java_client);
    CHECK(lock.inspect().holders.size() == 1000);
}

TEST_CASE("a CountDownLatch reports its count") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    CountDownLatch gate{client, "gate"};
    CHECK_FALSE(gate.inspect().exists);
    CHECK(gate.try_set_count(2));
    CHECK(gate.inspect().exists);
    CHECK(gate.inspect().count == 2);
    CHECK_FALSE(gate.inspect().expires_in);
    redis.integer("PEXPIRE", "gate", 60'000);
    CHECK(gate.inspect().expires_in);
}

TEST_CASE("inspect() refuses a key of another type, and one that another kind of lock uses") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    redis.integer("RPUSH", "list", "x");
    const auto refuses = [](auto&& primitive) {
        std::error_code ec;
        static_cast<void>(primitive.inspect(ec));
        CHECK(ec == errc::wrong_type);
        CHECK(code_of([&] { primitive.inspect(); }) == errc::wrong_type);
    };
    refuses(RLock{client, "list"});
    refuses(FairLock{client, "list"});
    refuses(FencedLock{client, "list"});
    refuses(SpinLock{client, "list"});
    refuses(Mutex{client, "list"});
    refuses(NonReentrantLock{client, "list"});
    refuses(NonReentrantFairLock{client, "list"});
    refuses(ReadWriteLock{client, "list"});
    refuses(Semaphore{client, "list"});
    refuses(PermitExpirableSemaphore{client, "list"});
    refuses(CountDownLatch{client, "list"});

    ReadWriteLock shared{client, "shared"};
    shared.lock();
    refuses(RLock{client, "shared"});
    refuses(FairLock{client, "shared"});
    redis.integer("HSET", "hash", java, 1);
    refuses(ReadWriteLock{client, "hash"});
    redis.integer("HSET", "hash", "color", 2);
    refuses(RLock{client, "hash"});
    redis.text("SET", "text", "many");
    refuses(Semaphore{client, "text"});
    refuses(PermitExpirableSemaphore{client, "text"});
    refuses(CountDownLatch{client, "text"});
    shared.unlock();
}
