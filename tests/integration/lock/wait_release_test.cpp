// SPDX-License-Identifier: MIT
// wait_release(): callers that wait for the end of another's hold, and acquire nothing.
// ctest: in_memory
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <latch>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"
#include "support/coroutine.hpp"
#include "support/process.hpp"

#include "support/any_server.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

/// A thread of Redisson that holds a lock.
const std::string java = "b983c153-7421-469a-addb-44fb92259a1b:42";

struct Fixture {
    // Lets somebody else hold the lock for this time, or without an end.
    void hold_as(const std::string& owner, std::optional<std::chrono::milliseconds> lease = std::nullopt) {
        redis.integer("HSET", "orders", owner, 1);
        if (lease) redis.integer("PEXPIRE", "orders", lease->count());
    }

    // Begins to wait in a new thread. Returns when that thread waits.
    std::future<bool> wait(std::chrono::milliseconds limit = 60s) {
        return start_waiting(client, [this, limit] { return orders.wait_release_for(limit); });
    }

    // Waits until a caller has looked, subscribed and looked once more. `before`: the commands until its wait.
    bool has_looked_again(std::uint64_t before) {
        return eventually([&] { return client.stats().commands >= before + 3; });
    }

    RedisServer server{};
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    RLock orders{client, "orders"};
    RLock theirs{other, "orders"};
};

struct Kind {
    const char* name;
    std::function<std::shared_ptr<NamedLock>(Client&)> make;
};

template <class Lock>
Kind kind(const char* name) {
    return {name, [](Client& client) { return std::make_shared<Lock>(client, "orders"); }};
}

template <class Side>
Kind side(const char* name, Side& (ReadWriteLock::*of)()) {
    return {name, [of](Client& client) {
                auto whole = std::make_shared<ReadWriteLock>(client, "orders");
                return std::shared_ptr<NamedLock>(whole, &((*whole).*of)());
            }};
}

const std::vector<Kind> kinds{kind<RLock>("RLock"),
                              kind<FairLock>("FairLock"),
                              kind<FencedLock>("FencedLock"),
                              kind<SpinLock>("SpinLock"),
                              kind<Mutex>("Mutex"),
                              kind<NonReentrantLock>("NonReentrantLock"),
                              kind<NonReentrantFairLock>("NonReentrantFairLock"),
                              side("ReadLock", &ReadWriteLock::read_lock),
                              side("WriteLock", &ReadWriteLock::write_lock)};

#ifndef REDLATCH_TEST_IN_MEMORY
const Role holding{"hold a lock until killed", [](std::span<const std::string> args) {
                       Client client{args[0], with_watchdog(short_lease)};
                       RLock lock{client, "orders"};
                       lock.lock();
                       std::this_thread::sleep_for(60s);
                       return 0;
                   }};
#endif

}  // namespace

TEST_CASE("the wait for a release ends when another client releases the lock, of each kind, and takes nothing") {
    for (const Kind& kind : kinds) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto mine = kind.make(fixture.client);
        const auto theirs = kind.make(fixture.other);
        theirs->lock();
        auto waiting = start_waiting(fixture.client, [&] { return mine->wait_release_for(60s); });
        CHECK_FALSE(ready(waiting, 30ms));
        theirs->unlock();
        REQUIRE(ready(waiting));
        CHECK(waiting.get());
        CHECK_FALSE(mine->is_locked());
        CHECK(theirs->try_lock());
        theirs->unlock();
        CHECK(fixture.client.stats().acquisitions == 0);
        CHECK(fixture.client.stats().waiting == 0);
    }
}

TEST_CASE("no wait for a release if the lock is free, and one look if there is no time") {
    for (const Kind& kind : kinds) {
        CAPTURE(kind.name);
        Fixture fixture;
        const auto mine = kind.make(fixture.client);
        mine->wait_release();  // the first sends the text of the script, too
        const auto before = fixture.client.stats().commands;
        mine->wait_release();
        CHECK(mine->wait_release_for(0s));
        CHECK(fixture.client.stats().commands == before + 2);
        const auto theirs = kind.make(fixture.other);
        theirs->lock();
        CHECK_FALSE(mine->wait_release_for(0s));
        CHECK_FALSE(mine->wait_release_until(Clock::now()));
        CHECK(fixture.client.stats().waits == 0);
        theirs->unlock();
    }
}

TEST_CASE("a wait for a release ends at its deadline, by a stop request, and at once if that came before") {
    Fixture fixture;
    fixture.theirs.lock();
    const Stopwatch watch;
    CHECK_FALSE(fixture.orders.wait_release_for(50ms));
    CHECK_FALSE(fixture.orders.wait_release_until(std::chrono::system_clock::now() + 50ms));
    CHECK(watch.elapsed() >= 100ms);
    std::stop_source stop;
    auto waiting = start_waiting(fixture.client, [&] { return fixture.orders.wait_release(stop.get_token()); });
    stop.request_stop();
    REQUIRE(ready(waiting));
    CHECK_FALSE(waiting.get());
    CHECK_FALSE(fixture.orders.wait_release(stop.get_token()));
    std::error_code ec = errc::unreachable;
    CHECK_FALSE(fixture.orders.wait_release_for(1ms, ec));
    CHECK_FALSE(ec);
}

TEST_CASE(
    "the hold of the calling thread itself is refused; those of other threads, Owners and objects are waited for") {
    Fixture fixture;
    fixture.orders.lock();
    CHECK(code_of([&] { fixture.orders.wait_release(); }) == errc::would_deadlock);
    CHECK(code_of([&] { return fixture.orders.wait_release_for(1h); }) == errc::would_deadlock);
    CHECK_FALSE(fixture.orders.wait_release_for(0s));
    auto other_thread = fixture.wait();
    auto operation = fixture.orders.async_wait_release().future();
    fixture.orders.unlock();
    CHECK(ready(other_thread));
    CHECK(ready(operation));
    CHECK(operation.get());

    fixture.orders.lock(Owner{7});
    Hold hold;
    auto both = start([&] {
        fixture.orders.wait_release();
        hold = fixture.orders.hold();
        return true;
    });
    CHECK(has_waiters(fixture.client, 3));
    fixture.orders.unlock(Owner{7});
    CHECK(ready(both));
    auto object = fixture.wait();
    CHECK_FALSE(hold.unlock());
    REQUIRE(ready(object));
    CHECK(object.get());
}

TEST_CASE("a lease that ends without a message ends the wait, and so does the end of a lock without a lease") {
    Fixture fixture;
    const Stopwatch watch;
    fixture.hold_as(java, 300ms);
    CHECK(fixture.orders.wait_release_for(60s));
    CHECK(watch.elapsed() >= 290ms);
    CHECK(watch.elapsed() < patient(5s));

    fixture.hold_as(java);
    auto waiting = fixture.wait();
    fixture.redis.integer("DEL", "orders");
    REQUIRE(ready(waiting, 40s));
    CHECK(waiting.get());
}

TEST_CASE("a lease that is renewed costs one look, when it would have ended") {
    Fixture fixture;
    fixture.orders.wait_release();  // the first sends the text of the script, too
    std::future<bool> waiting;
    std::uint64_t looks = 0;
    // Again if the lease ended before it could be renewed: the machine is busy.
    REQUIRE(eventually(
        [&] {
            fixture.hold_as(java, 5s);
            const std::uint64_t before = fixture.client.stats().commands;
            waiting = fixture.wait();
            if (!fixture.has_looked_again(before)) return false;
            looks = fixture.client.stats().commands;
            return fixture.redis.integer("PEXPIRE", "orders", 10'000) == 1;
        },
        60s));
    CHECK_FALSE(ready(waiting, 6s));
    CHECK(fixture.client.stats().commands <= looks + 1);
    REQUIRE(ready(waiting));
    CHECK(waiting.get());
    CHECK(fixture.client.stats().commands <= looks + 3);
}

TEST_CASE("a message is a reason to look, and nothing else: garbage ends no wait") {
    Fixture fixture;
    fixture.theirs.lock();
    auto waiting = fixture.wait();
    REQUIRE(is_listened_to(fixture.redis, "orders"));
    for (const char* const payload : {"0", "1", "-7", "", "released!"})
        fixture.redis.integer("PUBLISH", channel_of("orders"), payload);
    CHECK_FALSE(ready(waiting, 200ms));
    fixture.theirs.unlock();
    REQUIRE(ready(waiting));
    CHECK(waiting.get());
}

TEST_CASE("the wait is for the holds that were there: it ends when others have the lock") {
    Fixture fixture;
    fixture.hold_as(java, 100s);
    auto waiting = fixture.wait();
    REQUIRE(is_listened_to(fixture.redis, "orders"));
    fixture.redis.integer("DEL", "orders");
    fixture.hold_as("b983c153-7421-469a-addb-44fb92259a1b:43", 100s);
    fixture.redis.integer("PUBLISH", channel_of("orders"), "0");
    REQUIRE(ready(waiting));
    CHECK(waiting.get());
    CHECK(fixture.orders.is_locked());
}

TEST_CASE("threads that wait share their looks, and each waits for the holds that it found") {
    Fixture fixture;
    fixture.orders.wait_release();  // the first sends the text of the script, too
    fixture.hold_as(java, 100s);
    std::vector<std::future<bool>> waiting;
    const std::uint64_t begun = fixture.client.stats().commands;
    waiting.push_back(fixture.wait());
    REQUIRE(fixture.has_looked_again(begun));  // the representative has looked once more after the subscription
    for (int i = 1; i < 20; ++i) waiting.push_back(fixture.wait());
    const std::uint64_t before = commands_when_quiet(fixture.client);
    fixture.redis.integer("HDEL", "orders", java);  // and so the key, which has no other field
    fixture.hold_as("b983c153-7421-469a-addb-44fb92259a1b:43", 100s);
    auto late = fixture.wait();
    fixture.redis.integer("PUBLISH", channel_of("orders"), "0");
    CHECK(ready(waiting[19]));
    for (auto& one : waiting) CHECK(one.get());
    CHECK(fixture.client.stats().commands <= before + 6);
    CHECK_FALSE(ready(late, 50ms));
    fixture.redis.integer("DEL", "orders");
    fixture.redis.integer("PUBLISH", channel_of("orders"), "0");
    REQUIRE(ready(late));
    CHECK(late.get());
}

TEST_CASE("two sides of a ReadWriteLock: each wait is for the holders of its side") {
    Fixture fixture;
    ReadWriteLock mine{fixture.client, "pages"};
    ReadWriteLock theirs{fixture.other, "pages"};
    theirs.lock_shared();
    CHECK(mine.write_lock().wait_release_for(1h));
    auto waiting = start_waiting(fixture.client, [&] { return mine.read_lock().wait_release_for(60s); });
    CHECK_FALSE(ready(waiting, 30ms));
    theirs.unlock_shared();
    REQUIRE(ready(waiting));
    CHECK(waiting.get());
    // Waiting for the writer does not need the write side, so a reader may do it.
    mine.lock_shared();
    mine.write_lock().wait_release();
    mine.unlock_shared();
}

TEST_CASE(
    "an operation waits without a thread: by a callback, a coroutine and a future; cancelled, it completes at once") {
    Fixture fixture;
    fixture.theirs.lock();
    std::promise<std::pair<std::error_code, bool>> called;
    fixture.orders.async_wait_release().start([&](std::error_code ec, bool ended) { called.set_value({ec, ended}); });
    std::promise<bool> awaited;
    const auto fiber = [&]() -> Fiber { awaited.set_value(co_await fixture.orders.async_wait_release()); };
    const Fiber running = fiber();
    auto timed = fixture.orders.async_wait_release_for(50ms).future();
    std::stop_source stop;
    std::promise<std::error_code> stopped;
    // The operation needs no object that it was made from.
    std::make_unique<RLock>(fixture.client, "orders")
        ->async_wait_release(stop.get_token())
        .start([&](std::error_code ec, bool) { stopped.set_value(ec); });
    CHECK_FALSE(timed.get());
    stop.request_stop();
    CHECK(stopped.get_future().get() == errc::cancelled);
    // The others wait.
    REQUIRE(eventually([&] { return fixture.client.stats().waiting == 2; }));
    fixture.theirs.unlock();
    CHECK(called.get_future().get() == std::pair(std::error_code(), true));
    CHECK(awaited.get_future().get());
    CHECK(fixture.orders.async_wait_release().get());
    CHECK(eventually([&] { return fixture.client.stats().waiting == 0; }));
}

TEST_CASE("a callback that blocks delays no renewal and no other wake-up") {
    Fixture fixture;
    Client client{fixture.server.url(), with_watchdog(short_lease)};
    RLock orders{client, "orders"};
    RLock mine{client, "mine"};
    mine.lock();
    const auto until = mine.valid_until();
    fixture.theirs.lock();
    std::latch inside{1}, may_leave{1}, left{1};
    orders.async_wait_release().start([&](std::error_code, bool) {
        inside.count_down();
        may_leave.wait();
        left.count_down();
    });
    REQUIRE(has_waiters(client, 1));
    fixture.theirs.unlock();
    inside.wait();
    CHECK(eventually([&] { return mine.valid_until() > until + short_lease; }, 60s));
    fixture.theirs.lock();
    auto waiting = start_waiting(client, [&] { return orders.wait_release_for(60s); });
    fixture.theirs.unlock();
    CHECK(ready(waiting));
    may_leave.count_down();
    left.wait();
    CHECK_FALSE(mine.lost().stop_requested());
    mine.unlock();
}

TEST_CASE("a callback may begin the next wait, and so hear of every hold in turn") {
    Fixture fixture;
    std::atomic<int> times{0};
    std::function<void()> again = [&] {
        fixture.orders.async_wait_release().start([&](std::error_code ec, bool ended) {
            if (ec || !ended || ++times == 3) return;
            fixture.hold_as("b983c153-7421-469a-addb-44fb92259a1b:" + std::to_string(times), 50ms);
            again();
        });
    };
    again();
    CHECK(eventually([&] { return times == 3; }, 20s));
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("a waiting thread sends nothing until it has a reason") {
    Fixture fixture;
    fixture.hold_as(java, 100s);
    CommandMonitor monitor{fixture.server};
    auto waiting = fixture.wait();
    CHECK(monitor.take_until({{"evalsha", 2}, {"subscribe", 1}}, 20s));
    CHECK(falls_silent(monitor));
    fixture.redis.integer("DEL", "orders");
    fixture.redis.integer("PUBLISH", channel_of("orders"), "0");
    REQUIRE(ready(waiting));
    CHECK(monitor.take_until({{"evalsha", 1}}, 20s));
}

TEST_CASE("a holder that is killed ends the wait when its last lease is over") {
    Fixture fixture;
    ChildProcess child = spawn_self("hold a lock until killed", {fixture.server.url()});
    REQUIRE(eventually([&] { return fixture.redis.exists("orders"); }, 20s));
    auto waiting = fixture.wait();
    // Renewed while it lives.
    CHECK_FALSE(ready(waiting, short_lease + short_lease / 2));
    child.kill();
    REQUIRE(ready(waiting, 10 * short_lease));
    CHECK(waiting.get());
}

TEST_CASE("a message that is lost with its connection is made up for by a look after the reconnect") {
    Fixture fixture;
    fixture.hold_as(java, 100s);
    CommandMonitor monitor{fixture.server};
    auto waiting = fixture.wait();
    REQUIRE(monitor.take_until({{"evalsha", 2}, {"subscribe", 1}}, 20s));  // it has looked since it listens
    fixture.redis.integer("DEL", "orders");
    CHECK_FALSE(ready(waiting, 50ms));
    fixture.redis.integer("CLIENT", "KILL", "TYPE", "pubsub");
    REQUIRE(ready(waiting));
    CHECK(waiting.get());
}

TEST_CASE("without the right to the channel the wait fails, unless the lock polls") {
    Fixture fixture;
    fixture.redis.call("ACL", "SETUSER", "deaf", "on", "nopass", "~*", "resetchannels", "+@all");
    Client deaf{"unix://deaf:x@" + fixture.server.socket_path()};
    RLock orders{deaf, "orders"};
    SpinLock spinning{deaf, "orders"};
    fixture.hold_as(java, 100s);
    CHECK(code_of([&] { orders.wait_release(); }) == errc::rejected);
    auto waiting = start_waiting(deaf, [&] { return spinning.wait_release_for(60s); });
    fixture.redis.integer("DEL", "orders");
    REQUIRE(ready(waiting));
    CHECK(waiting.get());
}

TEST_CASE("a key of another type and a server that is gone are errors, as for every query") {
    Fixture fixture;
    fixture.redis.integer("RPUSH", "orders", "x");
    CHECK(code_of([&] { fixture.orders.wait_release(); }) == errc::wrong_type);
    fixture.redis.integer("DEL", "orders");
    Client client{fixture.server.url(), {.command_timeout = 2s, .unreachable_timeout = 4s}};
    RLock orders{client, "orders"};
    fixture.hold_as(java, 6s);
    auto waiting = start_waiting(client, [&] { return code_of([&] { orders.wait_release(); }); });
    fixture.server.kill();
    REQUIRE(ready(waiting));
    CHECK(waiting.get() == errc::unreachable);
}
#endif
