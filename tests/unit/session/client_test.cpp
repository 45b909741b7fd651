// SPDX-License-Identifier: MIT
// Client: options, identity, and lifetime.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>

#include "support/scripted_transport.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

bool is_refused(const ClientOptions& options) {
    ScriptedRedis redis;
    try {
        Client client(redis.transport(), options);
        return false;
    } catch (const Error& e) {
        return e.code() == errc::invalid_argument;
    }
}

static_assert(!std::is_copy_constructible_v<Client>);
static_assert(!std::is_move_constructible_v<Client>);
static_assert(!std::is_copy_constructible_v<RLock>);
static_assert(!std::is_move_constructible_v<RLock>);

}  // namespace

TEST_CASE("the default options are valid") { CHECK_FALSE(is_refused({})); }

TEST_CASE("invalid options are refused by the constructor") {
    CHECK(is_refused({.watchdog_timeout = 0ms}));
    CHECK(is_refused({.watchdog_timeout = -1s}));
    CHECK(is_refused({.watchdog_timeout = 29ms}));
    CHECK(is_refused({.watchdog_timeout = Milliseconds::max()}));
    CHECK(is_refused({.command_timeout = 0ms}));
    CHECK(is_refused({.command_timeout = -1ms}));
    CHECK(is_refused({.command_timeout = Milliseconds::max()}));
    CHECK(is_refused({.unreachable_timeout = -1ms}));
    CHECK(is_refused({.key_prefix = "a{b"}));
    CHECK(is_refused({.key_prefix = std::string(1024, 'p')}));

    CHECK_FALSE(is_refused({.watchdog_timeout = 30ms}));
    CHECK_FALSE(is_refused({.unreachable_timeout = 0ms}));
    CHECK_FALSE(is_refused({.unreachable_timeout = Milliseconds::max()}));
    CHECK_FALSE(is_refused({.key_prefix = "{app}:"}));
    CHECK_FALSE(is_refused({.local_handoff_limit = 0}));
}

TEST_CASE("each client has its own id, which does not change") {
    ScriptedRedis redis;
    ScriptedRedis other;
    Client a(redis.transport());
    Client b(other.transport());
    CHECK(a.id().size() == 36);
    CHECK(a.id() == a.id());
    CHECK(a.id() != b.id());
}

TEST_CASE("constructing clients and locks sends nothing") {
    ScriptedRedis redis;
    Client client(redis.transport());
    RLock lock(client, "x");
    CHECK(lock.name() == "x");
    CHECK(lock.valid_until() == Instant::min());
    CHECK(lock.lost().stop_requested());
    CHECK(redis.history().empty());
    CHECK(client.stats().commands == 0);
}

TEST_CASE("a key prefix is part of every key, but not of name()") {
    ScriptedRedis redis;
    Client client(redis.transport(), {.key_prefix = "shop:"});
    RLock lock(client, "orders");
    lock.lock();
    lock.unlock();
    CHECK(lock.name() == "orders");
    CHECK(redis.sent("acquire").at(0).key(0) == "shop:orders");
    CHECK(redis.sent("release").at(0).key(0) == "shop:orders");
    CHECK(redis.sent("release").at(0).key(1) == "redisson_lock__channel:{shop:orders}");
}

TEST_CASE("a prefix and a name that are invalid only together are refused") {
    ScriptedRedis redis;
    Client client(redis.transport(), {.key_prefix = "{app}:"});
    CHECK_THROWS_AS(RLock(client, "{orders}"), Error);
    CHECK_THROWS_AS(RLock(client, std::string(1020, 'n')), Error);
    CHECK_THROWS_AS(RLock(client, ""), Error);
    RLock fine(client, "orders");
    CHECK(redis.history().empty());
}

TEST_CASE("a lock may outlive the client that it was made from") {
    ScriptedRedis redis;
    std::optional<Client> client(std::in_place, redis.transport());
    RLock lock(*client, "x");
    client.reset();
    lock.lock();
    CHECK(lock.valid_until() > Clock::now());
    lock.unlock();
    CHECK(redis.count("release") == 1);
}

TEST_CASE("a hold outlives the object that acquired it, and is released through another one") {
    ScriptedRedis redis;
    Client client(redis.transport());
    std::optional<RLock> first(std::in_place, client, "x");
    first->lock();
    first.reset();
    RLock second(client, "x");
    CHECK(second.valid_until() > Clock::now());
    second.unlock();
    CHECK(redis.sent("release").at(0).argument(1) == "0");
}

TEST_CASE("two objects with one name are the same lock, two names are two locks") {
    ScriptedRedis redis;
    Client client(redis.transport());
    RLock a(client, "x");
    RLock b(client, "x");
    RLock c(client, "y");
    a.lock();
    CHECK(b.valid_until() == a.valid_until());
    CHECK(c.valid_until() == Instant::min());
    b.unlock();
    CHECK(a.valid_until() == Instant::min());
}

TEST_CASE("a client may be destroyed while locks are held and releases are pending") {
    ScriptedRedis redis;
    redis.always("release", ScriptedRedis::hold_back);
    redis.always("give up", ScriptedRedis::hold_back);
    {
        Client client(redis.transport(), {.command_timeout = 10ms});
        RLock held(client, "held");
        RLock pending(client, "pending");
        held.lock();
        pending.lock();
        std::error_code ec;
        pending.unlock(ec);
        CHECK(ec == errc::unreachable);
        CHECK(redis.wait_for("give up"));
    }
    CHECK_FALSE(redis.history().empty());
}

TEST_CASE("stats() counts commands, resends and acquisitions") {
    ScriptedRedis redis;
    Client client(redis.transport());
    RLock lock(client, "x");
    redis.next("acquire", lost());
    lock.lock();
    lock.lock();
    lock.unlock();
    lock.unlock();
    redis.next("acquire", number(5000));
    CHECK_FALSE(lock.try_lock());
    const Stats stats = client.stats();
    CHECK(stats.commands == 8);  // includes the query for the server's time, and its repetition after the lost reply
    CHECK(stats.resends == 1);
    CHECK(stats.acquisitions == 1);
    CHECK(stats.waits == 0);
    CHECK(stats.lost_holds == 0);
}

TEST_CASE("an exception of an event handler is swallowed, and the next event is delivered") {
    ScriptedRedis redis;
    std::atomic<int> events = 0;
    Client client(redis.transport(), {.on_event = [&](const Event&) {
                      ++events;
                      throw std::runtime_error("on purpose");
                  }});
    RLock lock(client, "x");
    for (int i = 0; i < 2; ++i) {
        lock.lock();
        redis.next("release", nil());
        lock.unlock();
    }
    CHECK(eventually([&] { return events == 2; }));
}

TEST_CASE("an event handler may use the library") {
    ScriptedRedis redis;
    std::atomic<bool> done = false;
    std::function<void()> handler;
    Client client(redis.transport(), {.on_event = [&](const Event&) { handler(); }});
    RLock lock(client, "x");
    handler = [&] {
        lock.lock();
        lock.unlock();
        done = true;
    };
    lock.lock();
    redis.next("release", nil());
    lock.unlock();
    CHECK(eventually([&] { return done.load(); }));
}

TEST_CASE("a lost connection and its return are reported once each") {
    ScriptedRedis redis;
    std::mutex mutex;
    std::vector<Event::Kind> kinds;
    Client client(redis.transport(), {.on_event = [&](const Event& event) {
                      const std::lock_guard lock(mutex);
                      kinds.push_back(event.kind);
                      CHECK(event.name.empty());
                  }});
    RLock lock(client, "x");
    redis.next("acquire", lost());
    redis.next("acquire", lost());
    redis.next("acquire", lost());
    lock.lock();
    lock.unlock();
    CHECK(eventually([&] {
        const std::lock_guard guard(mutex);
        return kinds == std::vector{Event::Kind::disconnected, Event::Kind::reconnected};
    }));
}
