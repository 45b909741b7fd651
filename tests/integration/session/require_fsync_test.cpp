// SPDX-License-Identifier: MIT
// ctest: long
// ClientOptions::require_fsync: a grant that the server does not confirm on its disk counts as none, and nothing is left
// of it. Redis has had the command since 7.2; for an older server the error says so.
#include "faults/fault_kit.hpp"
#include "support/replicated.hpp"
#include "support/scripted_transport.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

// The disk has half of the timeout: ample if it is to confirm, short if it cannot.
ClientOptions requiring_fsync(std::chrono::milliseconds timeout = 16s, unsigned replicas = 0) {
    ClientOptions options;
    options.command_timeout = timeout;
    options.require_fsync = true;
    options.require_replicas = replicas;
    return options;
}

bool has_waitaof(RawRedis& redis) { return !redis.call("WAITAOF", 0, 0, 1).is_error(); }

// A server that never says that it has written to its disk, or does so again.
void confirm_nothing(RawRedis& redis) { redis.text("CONFIG", "SET", "appendfsync", "no"); }
void confirm_again(RawRedis& redis) { redis.text("CONFIG", "SET", "appendfsync", "always"); }

// Expects a refusal with this code and words, and that the key is released soon.
template <class Take>
void check_refused(RawRedis& redis, const char* name, Take take, errc code, std::string_view words) {
    CAPTURE(std::string{name});
    try {
        take();
        FAIL("it was granted");
    } catch (const Error& error) {
        CHECK(error.code() == code);
        CHECK(std::string_view(error.what()).starts_with(std::string(name) + ": "));
        CHECK(std::string_view(error.what()).find(words) != std::string_view::npos);
    }
    CHECK(eventually([&] { return !redis.exists(name); }));
}

// Expects that each kind of lock and permit is refused like this, and that nothing is left.
void check_all_refused(RawRedis& redis, Client& client, errc code, std::string_view words) {
    const auto check = [&](auto&& lock) {
        check_refused(
            redis, lock.name().c_str(), [&] { lock.lock(); }, code, words);
        check_refused(
            redis, lock.name().c_str(), [&] { static_cast<void>(lock.async_lock().future().get()); }, code, words);
        std::error_code ec;
        lock.lock(ec);
        CHECK(ec == code);
        CHECK(eventually([&] { return !redis.exists(lock.name()); }));
    };
    with_each_lock(client, check);
    Semaphore permits{client, "permits"};
    permits.try_set_permits(2);
    CHECK(code_of([&] { permits.acquire(2); }) == code);
    CHECK(eventually([&] { return redis.text("GET", "permits") == "2"; }));
    PermitExpirableSemaphore slots{client, "slots"};
    slots.try_set_permits(1);
    CHECK(code_of([&] { static_cast<void>(slots.acquire()); }) == code);
    CHECK(eventually([&] { return redis.text("GET", "slots") == "1"; }));
}

bool warns_of(Client& client, std::string_view words) {
    for (const std::string& one : client.check_server())
        if (one.find(words) != std::string::npos) return true;
    return false;
}

}  // namespace

TEST_CASE("a server without WAITAOF: every acquire fails with an error that says so, and nothing is left") {
    RedisServer server{{.appendonly = true}};
    RawRedis redis{server};
    if (has_waitaof(redis)) return;
    Client client{server.url(), requiring_fsync()};
    check_all_refused(redis, client, errc::rejected, "require_fsync needs WAITAOF, which this server does not have");
    CHECK(warns_of(client, "the server does not have WAITAOF"));
}

TEST_CASE("a server that keeps no append-only file: every acquire fails with an error that says so") {
    RedisServer server;
    RawRedis redis{server};
    if (!has_waitaof(redis)) return;
    Client client{server.url(), requiring_fsync()};
    check_all_refused(redis, client, errc::rejected, "set appendonly yes");
    CHECK(warns_of(client, "appendonly is off, which require_fsync needs"));
}

TEST_CASE("a user without the right to WAITAOF: every acquire fails with an error that says so") {
    RedisServer server{{.appendonly = true}};
    RawRedis redis{server};
    if (!has_waitaof(redis)) return;
    redis.text("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all", "-waitaof");
    Client client{"unix://app:secret@" + server.socket_path(), requiring_fsync()};
    check_all_refused(redis, client, errc::rejected, "which this user may not call");
    CHECK(warns_of(client, "this user may not call WAITAOF"));
}

TEST_CASE("a disk that confirms nothing in time: nothing is granted and nothing is left") {
    RedisServer server{{.appendonly = true}};
    RawRedis redis{server};
    if (!has_waitaof(redis)) return;
    confirm_nothing(redis);
    Client client{server.url(), requiring_fsync(paced(600ms))};
    check_all_refused(redis, client, errc::not_on_disk, "check the server's disk and its appendfsync");
    CHECK(warns_of(client, "appendfsync is no"));
}

TEST_CASE("a grant is confirmed by the disk when the call returns, for every kind of lock and permit") {
    RedisServer server{{.appendonly = true}};
    RawRedis redis{server};
    if (!has_waitaof(redis)) return;
    Client client{server.url(), requiring_fsync()};
    unsigned grants = 0;
    const auto check = [&](auto&& lock) {
        CAPTURE(std::string{lock.name()});
        lock.lock();
        CHECK(redis.command_calls()["waitaof"] >= ++grants);
        lock.unlock();
    };
    redis.text("CONFIG", "RESETSTAT");
    with_each_lock(client, check);
    Semaphore permits{client, "permits"};
    permits.try_set_permits(2);
    permits.acquire();
    CHECK(redis.command_calls()["waitaof"] >= ++grants);
    PermitExpirableSemaphore slots{client, "slots"};
    slots.try_set_permits(2);
    slots.release(slots.acquire());
    CHECK(redis.command_calls()["waitaof"] >= ++grants);
    CHECK(redis.command_calls()["wait"] == 0);
    CHECK_FALSE(warns_of(client, "require_fsync"));
}

TEST_CASE("with appendfsync everysec the confirmation comes within the time that the disk has") {
    RedisServer server{{.appendonly = true}};
    RawRedis redis{server};
    if (!has_waitaof(redis)) return;
    redis.text("CONFIG", "SET", "appendfsync", "everysec");
    Client client{server.url(), requiring_fsync()};
    RLock orders{client, "orders"};
    for (int round = 0; round < 2; ++round) {
        orders.lock();
        orders.unlock();
    }
}

TEST_CASE("a reentry that the disk does not confirm fails, and the hold stays as it was") {
    RedisServer server{{.appendonly = true}};
    RawRedis redis{server};
    if (!has_waitaof(redis)) return;
    Client client{server.url(), requiring_fsync(paced(2000ms))};
    RLock orders{client, "orders"};
    orders.lock();
    confirm_nothing(redis);
    CHECK(code_of([&] { orders.lock(); }) == errc::not_on_disk);
    CHECK(orders.is_held());
    orders.unlock();
    CHECK_FALSE(redis.exists("orders"));
}

TEST_CASE(
    "a renewal that the disk does not confirm prolongs nothing: hold and permit are lost at the end of their lease") {
    RedisServer server{{.appendonly = true}};
    RawRedis redis{server};
    if (!has_waitaof(redis)) return;
    EventLog log;
    ClientOptions options = log.in(requiring_fsync(paced(1000ms)));
    options.watchdog_timeout = paced(3000ms);
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    PermitExpirableSemaphore slots{client, "slots"};
    slots.try_set_permits(1);
    orders.lock();
    static_cast<void>(slots.acquire());
    REQUIRE(eventually([&] { return client.stats().renewals >= 2; }, 20s));
    CHECK(log.count(Event::Kind::hold_lost) == 0);
    const std::stop_token lost = orders.lost();
    confirm_nothing(redis);
    CHECK(eventually([&] { return lost.stop_requested() && log.count(Event::Kind::hold_lost) == 2; }, 20s));
    std::error_code ec;
    orders.unlock(ec);
    CHECK(ec == errc::hold_lost);
}

TEST_CASE("the option of an object: only its own grants are confirmed, or none if it says so") {
    RedisServer server{{.appendonly = true}};
    RawRedis redis{server};
    if (!has_waitaof(redis)) return;
    confirm_nothing(redis);
    Client client{server.url(), unhurried()};
    RLock plain{client, "orders"};
    RLock safe{client, "orders", {.command_timeout = paced(600ms), .require_fsync = true}};
    CHECK(code_of([&] { safe.lock(); }) == errc::not_on_disk);
    CHECK(eventually([&] { return !redis.exists("orders"); }));
    plain.lock();
    // A hold that is handed over is confirmed as its new owner requires.
    auto waiting = start([&] { return code_of([&] { safe.lock(); }); });
    REQUIRE(eventually([&] { return client.stats().waiting == 1; }));
    plain.unlock();
    REQUIRE(ready(waiting, 20s));
    CHECK(waiting.get() == errc::not_on_disk);
    CHECK(eventually([&] { return !redis.exists("orders"); }));

    Client strict{server.url(), requiring_fsync(paced(600ms))};
    RLock free{strict, "others", {.require_fsync = false}};
    free.lock();
    free.unlock();
}

TEST_CASE("callers of one semaphore share no request if only one of them requires the disk") {
    RedisServer server{{.appendonly = true}};
    RawRedis redis{server};
    if (!has_waitaof(redis)) return;
    confirm_nothing(redis);
    Client client{server.url(), unhurried()};
    Semaphore plain{client, "permits"};
    Semaphore safe{client, "permits", {.command_timeout = paced(600ms), .require_fsync = true}};
    plain.try_set_permits(0);
    auto first = start([&] { return code_of([&] { plain.acquire(); }); });
    REQUIRE(eventually([&] { return client.stats().waiting == 1; }));
    auto second = start([&] { return code_of([&] { safe.acquire(); }); });
    REQUIRE(eventually([&] { return client.stats().waiting == 2; }));
    plain.release(2);
    REQUIRE(ready(first, 20s));
    REQUIRE(ready(second, 20s));
    CHECK_FALSE(first.get());
    CHECK(second.get() == errc::not_on_disk);
    CHECK(eventually([&] { return plain.available_permits() == 1; }));
}

TEST_CASE("with require_replicas the disks of that many replicas must confirm it, too") {
    Replicated setup;
    RawRedis master{setup.master()}, replica{setup.replica()};
    if (!has_waitaof(master)) return;
    master.text("CONFIG", "SET", "appendfsync", "always");
    master.text("CONFIG", "SET", "appendonly", "yes");
    Client strict{setup.master().url(), requiring_fsync(paced(2000ms), 1)};
    RLock orders{strict, "orders"};
    // The master may still be writing the first file. After that only the disk of the replica is missing.
    CHECK(eventually([&] { return code_of([&] { orders.lock(); }) == errc::not_replicated; }, 30s));
    CHECK(eventually([&] { return !master.exists("orders"); }));
    replica.text("CONFIG", "SET", "appendfsync", "always");
    replica.text("CONFIG", "SET", "appendonly", "yes");
    CHECK(eventually([&] { return !code_of([&] { orders.lock(); }); }, 30s));
    CHECK(replica.exists("orders"));
    orders.unlock();
    Client all{setup.master().url(), requiring_fsync(paced(8000ms), all_replicas)};
    RLock others{all, "others"};
    others.lock();
    CHECK(replica.exists("others"));
    others.unlock();
}

TEST_CASE("a RedLock does without the member whose disk confirms nothing") {
    std::vector<std::unique_ptr<RedisServer>> servers;
    std::vector<std::unique_ptr<Client>> clients;
    std::vector<std::unique_ptr<RLock>> locks;
    for (int i = 0; i < 3; ++i) {
        servers.push_back(std::make_unique<RedisServer>(RedisServerOptions{.appendonly = true}));
        RawRedis redis{*servers.back()};
        if (!has_waitaof(redis)) return;
        clients.push_back(std::make_unique<Client>(servers.back()->url(), requiring_fsync(paced(2000ms))));
        locks.push_back(std::make_unique<RLock>(*clients.back(), "orders"));
    }
    RawRedis first{*servers[0]};
    confirm_nothing(first);
    RedLock red{*locks[0], *locks[1], *locks[2]};
    CHECK(eventually([&] { return red.try_lock_for(20s); }, 60s));  // once the servers are old enough
    red.unlock();
    confirm_again(first);
}

TEST_CASE("require_fsync with a transport that cannot post several commands together is refused") {
    ScriptedRedis redis;
    CHECK(code_of([&] { redlatch::Client client(redis.transport(), requiring_fsync()); }) == errc::unsupported);
    redlatch::Client client{redis.transport()};
    CHECK(code_of([&] { redlatch::RLock(client, "orders", {.require_fsync = true}); }) == errc::unsupported);
    redlatch::RLock orders{client, "orders"};
    orders.lock();
    orders.unlock();
}
