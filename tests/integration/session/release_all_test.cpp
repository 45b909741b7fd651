// SPDX-License-Identifier: MIT
// Client::release_all(): what a client gives back at the end of a service, and what its owners notice.
#include <doctest/doctest.h>

#include <chrono>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using namespace redlatch;

TEST_CASE("holds of threads and objects, of every kind of lock, are given back in one command each") {
    RedisServer server;
    RawRedis redis{server};
    EventLog events;
    ClientOptions options;
    options.on_event = events.handler();
    Client client{server.url(), options};
    Client other{server.url()};
    CHECK(client.release_all() == 0);
    RLock a{client, "a"};
    FairLock b{client, "b"};
    FencedLock c{client, "c"};
    SpinLock d{client, "d"};
    Mutex e{client, "e"};
    ReadWriteLock f{client, "f"}, g{client, "g"};
    a.lock();
    a.lock();
    b.lock(Lease{60s});
    c.lock();
    d.lock();
    Hold mutex = e.hold();
    f.lock();
    Hold first_reader = g.hold_shared();
    Hold second_reader = g.hold_shared();
    RLock theirs{other, "theirs"};
    theirs.lock();
    const std::stop_token lost = a.lost();
    const std::stop_token lost_reader = second_reader.lost();

    CommandMonitor monitor{server};
    CHECK(client.release_all() == 8);
    auto commands = monitor.take();
    // Some are new to the server, which is then sent their text.
    CHECK(commands["evalsha"] == 8);
    CHECK(commands["evalsha"] + commands["eval"] <= 16);

    for (const std::string key : {"a", "b", "c", "d", "e", "f", "g"}) {
        CAPTURE(key);
        CHECK_FALSE(redis.exists(key));
    }
    CHECK(theirs.is_held());
    CHECK(eventually([&] { return lost.stop_requested() && lost_reader.stop_requested(); }));
    CHECK(eventually([&] { return events.count(Event::Kind::hold_lost) == 8; }));
    CHECK(client.release_all() == 0);

    monitor.take();
    std::error_code ec;
    for (int level = 0; level < 2; ++level) {
        a.unlock(ec);
        CHECK(ec == errc::hold_lost);
    }
    a.unlock(ec);
    CHECK(ec == errc::not_owner);
    b.unlock(ec);
    CHECK(ec == errc::hold_lost);
    c.unlock();
    d.unlock();
    CHECK(mutex.unlock() == errc::hold_lost);
    f.unlock();
    first_reader = Hold();
    CHECK(second_reader.unlock() == errc::hold_lost);
    CHECK(monitor.take_total() == 0);

    a.lock();
    CHECK(a.is_held());
    a.unlock();
    theirs.unlock();
}

TEST_CASE("waiters of other processes get what is given back at once") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    RLock mine{client, "orders"};
    RLock theirs{other, "orders"};
    mine.lock();
    auto waiter = start_waiting(other, [&] { return theirs.try_lock_for(20s) ? (theirs.unlock(), true) : false; });
    REQUIRE(is_listened_to(redis, "orders"));
    const Stopwatch watch;
    CHECK(client.release_all() == 1);
    CHECK(waiter.get());
    CHECK(watch.within(patient(5s)));
    std::error_code ec;
    mine.unlock(ec);
    CHECK(ec == errc::hold_lost);
}

TEST_CASE("permits under the watchdog are given back, those with a lease of their own stay") {
    RedisServer server;
    RawRedis redis{server};
    EventLog events;
    ClientOptions options;
    options.on_event = events.handler();
    Client client{server.url(), options};
    PermitExpirableSemaphore slots{client, "slots"};
    CHECK(slots.try_set_permits(3000));
    const std::vector<PermitId> watched = slots.acquire(1100);
    const PermitId limited = slots.acquire(Lease{60s});
    const PermitId endless = slots.acquire(Lease::forever());
    CHECK(client.release_all() == 1100);
    CHECK(slots.acquired_permits() == 2);
    CHECK(slots.available_permits() == 2998);
    CHECK(slots.remaining_lease(limited));
    CHECK_FALSE(slots.try_release(watched.front()));
    CHECK(eventually([&] { return events.count(Event::Kind::hold_lost) == 1100; }));
    CHECK(client.stats().lost_holds == 1100);
    slots.release(endless);
}

TEST_CASE("what no server takes back in time is reported, and delivered later") {
    RedisServer server;
    RawRedis redis{server};
    ClientOptions options;
    options.command_timeout = 500ms;
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    PermitExpirableSemaphore slots{client, "slots"};
    CHECK(slots.try_set_permits(1));
    const PermitId id = slots.acquire();
    orders.lock();
    server.stop();
    const Stopwatch watch;
    std::error_code ec;
    CHECK(client.release_all(ec) == 0);
    CHECK(ec == errc::unreachable);
    CHECK(watch.elapsed() >= 400ms);
    CHECK(watch.within(patient(5s)));
    orders.unlock(ec);
    CHECK(ec == errc::hold_lost);
    server.cont();
    CHECK(eventually([&] { return !redis.exists("orders") && redis.integer("GET", "slots") == 1; }, 20s));
    CHECK_FALSE(slots.try_release(id));

    orders.lock();
    server.stop();
    const std::string text = text_of_error([&] { client.release_all(); });
    CHECK(text.find("1 of 1 holds") != std::string::npos);
    server.cont();
    orders.unlock();
    CHECK(eventually([&] { return !redis.exists("orders"); }, 20s));
}

TEST_CASE("a refusal by the server is reported as it is: access rights, a key of another type") {
    RedisServer server{{.tcp = true}};
    RawRedis redis{server};
    redis.text("ACL", "SETUSER", "locker", "on", ">secret", "~*", "&*", "+@all");
    Client client{"redis://locker:secret@127.0.0.1:" + std::to_string(server.port())};
    RLock orders{client, "orders"};
    RLock gone{client, "gone"};
    orders.lock();
    redis.text("ACL", "SETUSER", "locker", "-evalsha", "-eval");
    std::error_code ec;
    CHECK(client.release_all(ec) == 0);
    CHECK(ec == errc::rejected);
    redis.text("ACL", "SETUSER", "locker", "+evalsha", "+eval");
    CHECK(eventually([&] { return !redis.exists("orders"); }, 20s));

    orders.unlock();
    orders.lock();
    gone.lock();
    redis.integer("DEL", "gone");
    redis.integer("RPUSH", "gone", "x");
    CHECK(client.release_all(ec) == 1);
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(redis.exists("orders"));
    CHECK(redis.exists("gone"));
    orders.unlock();
    gone.unlock();
}

TEST_CASE("a lock over several loses its hold with the members") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), {.watchdog_timeout = 1h}};  // by itself it looks once a minute
    RLock a{client, "a"}, b{client, "b"};
    MultiLock both{a, b};
    both.lock();
    const std::stop_token lost = both.lost();
    CHECK(client.release_all() == 2);
    // Nobody asks it.
    CHECK(eventually([&] { return lost.stop_requested(); }, 5s));
    CHECK(both.valid_until() <= std::chrono::steady_clock::now());
    CHECK_FALSE(redis.exists("a"));
    CHECK_FALSE(redis.exists("b"));
    std::error_code ec;
    both.unlock(ec);
    CHECK(ec == errc::hold_lost);
}

TEST_CASE("holds and permits whose objects are gone are given back, too, also of operations that begin later") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    const auto lock_later = [&] {
        RLock orders{client, "orders"};
        return orders.async_lock();
    };
    const auto acquire_later = [&] {
        PermitExpirableSemaphore seats{client, "seats"};
        static_cast<void>(seats.try_set_permits(1));
        return seats.async_acquire(1);
    };
    const Hold hold = lock_later().future().get();
    const Permits permit = acquire_later().future().get();
    CHECK(client.release_all() == 2);
    CHECK_FALSE(redis.exists("orders"));
    PermitExpirableSemaphore seats{client, "seats"};
    CHECK(seats.available_permits() == 1);
    CHECK(eventually([&] { return hold.lost().stop_requested() && permit.lost().stop_requested(); }));
}

TEST_CASE("the hold of an Owner is the same one for all objects of the name, whichever are left") {
    RedisServer server;
    Client client{server.url()};
    const auto lock_later = [&] {
        RLock orders{client, "orders"};
        return orders.async_lock(Owner{7});
    };
    Hold hold = lock_later().future().get();
    RLock orders{client, "orders"};
    CHECK(orders.try_lock(Owner{7}));
    CHECK(orders.hold_count(Owner{7}) == 2);
    orders.unlock(Owner{7});
    CHECK(hold.unlock() == std::error_code());
    CHECK_FALSE(orders.is_locked());
}
