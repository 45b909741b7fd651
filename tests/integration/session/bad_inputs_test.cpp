// SPDX-License-Identifier: MIT
// ctest: without=thread
// Unexpected input from a program, an operator or another library, as far as it concerns all primitives. Names are
// tested in unit/base/names_test, waits and leases in unit/base/time_test, URLs in unit/base/url_test, and the input of
// a single primitive with that primitive.
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/code_of.hpp"
#include "support/command_monitor.hpp"
#include "support/scripted_server.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

struct Fixture {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};

    std::string dump(const std::string& key) { return redis.exists(key) ? redis.text("DUMP", key) : ""; }
};

/// A call with its name.
struct Named {
    const char* what;
    std::function<void()> call;
};

const char* const token_of_orders = "redisson_lock_token:{orders}";

/// Values that are no valid count. The last ones are numbers, but Lua's numbers are exact only below 2^53, so it reads
/// other values.
const std::vector<std::string> no_counts{"abc",
                                         "",
                                         " 7",
                                         "7 ",
                                         "+7",
                                         "0x10",
                                         "1e3",
                                         "inf",
                                         "nan",
                                         "-",
                                         "1.5",
                                         "7\n",
                                         std::string("7\0", 2),
                                         "9007199254740992",
                                         "9223372036854775807",
                                         "99999999999999999999"};

}  // namespace

// --- names ----------------------------------------------------------------------------------------------------------

TEST_CASE("an invalid name is refused by every primitive, and nothing is sent") {
    Fixture fixture;
    const std::string connections = fixture.redis.info("stats", "total_connections_received");
    for (const std::string& name : {std::string(), std::string(1025, 'x'), std::string(64 << 20, 'x'),
                                    std::string("a{b"), std::string("{}"), std::string("}{"), std::string("{a}{b}")}) {
        CAPTURE(name.substr(0, 20));
        auto& client = fixture.client;
        for (const Named& make : std::initializer_list<Named>{
                 {"RLock",
                  [&] {
                      RLock made{client, name};
                  }},
                 {"FairLock",
                  [&] {
                      FairLock made{client, name};
                  }},
                 {"FencedLock",
                  [&] {
                      FencedLock made{client, name};
                  }},
                 {"SpinLock",
                  [&] {
                      SpinLock made{client, name};
                  }},
                 {"Mutex",
                  [&] {
                      Mutex made{client, name};
                  }},
                 {"ReadWriteLock",
                  [&] {
                      ReadWriteLock made{client, name};
                  }},
                 {"Semaphore",
                  [&] {
                      Semaphore made{client, name};
                  }},
                 {"PermitExpirableSemaphore",
                  [&] {
                      PermitExpirableSemaphore made{client, name};
                  }},
                 {"CountDownLatch",
                  [&] {
                      CountDownLatch made{client, name};
                  }},
             }) {
            CAPTURE(make.what);
            CHECK(code_of(make.call) == errc::invalid_argument);
        }
    }
    CHECK(fixture.redis.info("stats", "total_connections_received") == connections);
}

TEST_CASE("a name of any bytes works with every primitive, unchanged in keys and channels") {
    using namespace std::string_literals;
    for (const std::string& name :
         {"\0\r\n$-1\r\n*1 '\"`%s%n\\\xff\xfe"s, "\r\nPING\r\n"s, "' or redis.call('flushall') --"s,
          "]] .. redis.call('flushall') .. [["s, std::string(1024, '\xc3')}) {
        CAPTURE(in_quotes(name));
        Fixture fixture;
        auto& client = fixture.client;
        Client other{fixture.server.url()};
        const auto passes_on = [&](auto& mine, auto& theirs) {
            mine.lock();
            CHECK(fixture.redis.exists(name));
            auto waiting = start_waiting(other, [&] {
                theirs.lock();
                theirs.unlock();
                return true;
            });
            mine.unlock();
            CHECK(ready(waiting));
        };
        {
            RLock mine{client, name};
            RLock theirs{other, name};
            passes_on(mine, theirs);
        }
        {
            FairLock mine{client, name};
            FairLock theirs{other, name};
            passes_on(mine, theirs);
        }
        {
            FencedLock mine{client, name};
            FencedLock theirs{other, name};
            passes_on(mine, theirs);
        }
        {
            SpinLock mine{client, name};
            SpinLock theirs{other, name};
            passes_on(mine, theirs);
        }
        {
            Mutex mine{client, name};
            Mutex theirs{other, name};
            passes_on(mine, theirs);
        }
        {
            ReadWriteLock mine{client, name};
            ReadWriteLock theirs{other, name};
            passes_on(mine, theirs);
            passes_on(mine.read_lock(), theirs.write_lock());
        }
        {
            Semaphore mine{client, name};
            Semaphore theirs{other, name};
            auto waiting = start_waiting(other, [&] { return theirs.acquire(), true; });
            mine.release();
            CHECK(ready(waiting));
            CHECK(fixture.redis.integer("DEL", name) == 1);
        }
        {
            PermitExpirableSemaphore mine{client, name};
            PermitExpirableSemaphore theirs{other, name};
            mine.set_permits(1);
            const PermitId taken = mine.acquire();
            auto waiting = start_waiting(other, [&] { return theirs.release(theirs.acquire()), true; });
            mine.release(taken);
            CHECK(ready(waiting));
            // The waiter may have asked again meanwhile, and have got a second permit, which it gives back.
            CHECK(eventually([&] { return fixture.redis.text("GET", name) == "1"; }));
            CHECK(fixture.redis.integer("DEL", name) == 1);
        }
        {
            CountDownLatch mine{client, name};
            CountDownLatch theirs{other, name};
            CHECK(mine.try_set_count(1));
            auto waiting = start_waiting(other, [&] { return theirs.wait(), true; });
            mine.count_down();
            CHECK(ready(waiting));
        }
        CHECK_FALSE(fixture.redis.exists(name));
        CHECK(fixture.redis.info("commandstats", "cmdstat_flushall").empty());
        for (const std::string& key : fixture.redis.keys()) CHECK(key.find(name) != std::string::npos);
    }
}

TEST_CASE("a lock whose name is a key of another primitive is refused, and does no harm") {
    Fixture fixture;
    FairLock fair{fixture.client, "orders"};
    fair.lock(Lease{60s});
    Client other{fixture.server.url()};
    FairLock theirs{other, "orders"};
    auto waiting = start_waiting(other, [&] { return theirs.lock(), theirs.unlock(), true; });
    PermitExpirableSemaphore seats{fixture.client, "seats"};
    seats.set_permits(2);
    const PermitId seat = seats.acquire(Lease{60s});
    FencedLock fenced{fixture.client, "paid"};
    fenced.lock(Lease{60s});
    REQUIRE(eventually([&] { return fixture.redis.exists("redisson_lock_queue:{orders}"); }, 20s));

    for (const std::string key : {"redisson_lock_queue:{orders}", "redisson_lock_timeout:{orders}", "{seats}:timeout",
                                  "redisson_lock_token:{paid}"}) {
        CAPTURE(key);
        REQUIRE(fixture.redis.exists(key));
        const std::string kind = fixture.redis.text("TYPE", key);
        RLock lock{fixture.client, key};
        FairLock queue{fixture.client, key};
        ReadWriteLock shared{fixture.client, key};
        CountDownLatch latch{fixture.client, key};
        CHECK(code_of([&] { return lock.try_lock(); }) == errc::wrong_type);
        CHECK(code_of([&] { return queue.try_lock(); }) == errc::wrong_type);
        CHECK(code_of([&] { return shared.try_lock(); }) == errc::wrong_type);
        CHECK(code_of([&] { lock.force_unlock(); }) == errc::wrong_type);
        if (kind != "string") CHECK(code_of([&] { latch.reset(); }) == errc::wrong_type);
        CHECK(fixture.redis.text("TYPE", key) == kind);
    }
    fair.unlock();
    CHECK(ready(waiting));
    seats.release(seat);
    fenced.unlock();
}

// --- numbers on the server ------------------------------------------------------------------------------------------

// Lua reads 'nan', 'inf' and '0x10' as numbers, and returns 2^63 - 1 as -2^63. So draining a semaphore returned a
// negative number. An acquire left the mark of a success before it failed, so its resend was a grant.
TEST_CASE("fault: semaphore whose key is no count: refused, and the key stays unchanged") {
    Fixture fixture;
    Semaphore seats{fixture.client, "seats"};
    for (const std::string& value : no_counts) {
        CAPTURE(in_quotes(value));
        fixture.redis.text("FLUSHALL");
        fixture.redis.text("SET", "seats", value);
        for (const Named& use : std::initializer_list<Named>{
                 {"try_acquire", [&] { static_cast<void>(seats.try_acquire()); }},
                 {"try_acquire_for", [&] { static_cast<void>(seats.try_acquire_for(20s)); }},
                 {"available_permits", [&] { static_cast<void>(seats.available_permits()); }},
                 {"drain_permits", [&] { static_cast<void>(seats.drain_permits()); }},
                 {"release", [&] { seats.release(); }},
                 {"release_if_exists", [&] { static_cast<void>(seats.release_if_exists()); }},
                 {"add_permits", [&] { seats.add_permits(3); }},
             }) {
            CAPTURE(use.what);
            CHECK(code_of(use.call) == errc::wrong_type);
        }
        CHECK_FALSE(seats.try_set_permits(1));  // there is one already
        CHECK(fixture.redis.text("GET", "seats") == value);
        CHECK(fixture.redis.keys() == Words{"seats"});  // and there is no mark of a success
    }
    CHECK(fixture.client.stats().acquisitions == 0);
}

TEST_CASE("fault: semaphore with leases whose key is no count: refused, and the key stays unchanged") {
    Fixture fixture;
    PermitExpirableSemaphore seats{fixture.client, "seats"};
    for (const std::string& value : no_counts) {
        CAPTURE(in_quotes(value));
        fixture.redis.text("FLUSHALL");
        seats.set_permits(3);
        const PermitId seat = seats.acquire(Lease{60s});
        fixture.redis.call("ZADD", "{seats}:timeout", 1, "a permit whose lease is over");
        fixture.redis.text("SET", "seats", value);
        const std::string leases = fixture.dump("{seats}:timeout");
        for (const Named& use : std::initializer_list<Named>{
                 {"try_acquire", [&] { static_cast<void>(seats.try_acquire()); }},
                 {"try_acquire_for", [&] { static_cast<void>(seats.try_acquire_for(20s)); }},
                 {"available_permits", [&] { static_cast<void>(seats.available_permits()); }},
                 {"permits", [&] { static_cast<void>(seats.permits()); }},
                 {"release", [&] { seats.release(seat); }},
                 {"update_lease", [&] { seats.update_lease(seat, Lease{60s}); }},
                 {"set_permits", [&] { seats.set_permits(5); }},
                 {"add_permits", [&] { seats.add_permits(3); }},
             }) {
            CAPTURE(use.what);
            CHECK(code_of(use.call) == errc::wrong_type);
        }
        CHECK(fixture.redis.text("GET", "seats") == value);
        CHECK(fixture.dump("{seats}:timeout") == leases);
        // Repaired by an operator, it works again.
        fixture.redis.text("SET", "seats", 2);
        seats.release(seat);
    }
}

TEST_CASE("fault: latch whose key is no count: refused, and the key stays unchanged") {
    Fixture fixture;
    CountDownLatch start{fixture.client, "start"};
    for (const std::string& value : no_counts) {
        CAPTURE(in_quotes(value));
        fixture.redis.text("FLUSHALL");
        fixture.redis.text("SET", "start", value);
        for (const Named& use : std::initializer_list<Named>{
                 {"count", [&] { static_cast<void>(start.count()); }},
                 {"count_down", [&] { start.count_down(); }},
                 {"try_wait", [&] { static_cast<void>(start.try_wait()); }},
                 {"wait_for", [&] { static_cast<void>(start.wait_for(20s)); }},
                 {"arrive_and_wait", [&] { start.arrive_and_wait(); }},
             }) {
            CAPTURE(use.what);
            CHECK(code_of(use.call) == errc::wrong_type);
        }
        CHECK_FALSE(start.try_set_count(1));  // there is one already
        CHECK(fixture.redis.text("GET", "start") == value);
        CHECK(fixture.redis.keys() == Words{"start"});
    }
}

// Above 2^53 Lua rounds, so two holds had the same token. A value that is no number made the script fail after it had
// stored the hold, or Lua read it as a number.
TEST_CASE("fault: fencing counter that is no token: no hold, no token, and the key stays unchanged") {
    Fixture fixture;
    FencedLock orders{fixture.client, "orders"};
    std::vector<std::string> values = no_counts;
    values.insert(values.end(), {"-1", "-9223372036854775808", "9007199254740991"});
    for (const std::string& value : values) {
        CAPTURE(in_quotes(value));
        fixture.redis.text("FLUSHALL");
        fixture.redis.text("SET", token_of_orders, value);
        for (const Named& use : std::initializer_list<Named>{
                 {"lock", [&] { orders.lock(); }},
                 {"try_lock", [&] { static_cast<void>(orders.try_lock()); }},
                 {"try_lock(Lease)", [&] { static_cast<void>(orders.try_lock(Lease{1s})); }},
                 {"try_lock_and_get_token", [&] { static_cast<void>(orders.try_lock_and_get_token()); }},
             }) {
            CAPTURE(use.what);
            CHECK(code_of(use.call) == errc::wrong_type);
        }
        CHECK(code_of([&] { static_cast<void>(orders.token()); }) == errc::not_owner);
        CHECK(fixture.redis.text("GET", token_of_orders) == value);
        CHECK(fixture.redis.keys() == Words{token_of_orders});
    }
    fixture.redis.text("SET", token_of_orders, "9007199254740990");
    CHECK(orders.lock_and_get_token() == 9007199254740991);  // the last one
    orders.unlock();
    CHECK(code_of([&] { orders.lock(); }) == errc::wrong_type);
    CHECK(fixture.redis.keys() == Words{token_of_orders});
}

TEST_CASE("token counter spoilt during a hold: neither a reentry nor a hand-over returns a wrong token") {
    Fixture fixture;
    FencedLock orders{fixture.client, "orders"};
    const std::int64_t token = orders.lock_and_get_token();
    fixture.redis.text("SET", token_of_orders, "abc");
    CHECK(code_of([&] { orders.lock(); }) == errc::wrong_type);
    CHECK(orders.token() == token);
    CHECK(orders.hold_count() == 1);
    auto waiting = start_waiting(fixture.client, [&] { return code_of([&] { orders.lock(); }); });
    orders.unlock();
    REQUIRE(ready(waiting));
    CHECK(waiting.get() == errc::wrong_type);
    CHECK(eventually([&] { return !fixture.redis.exists("orders"); }, 20s));
    CHECK(fixture.redis.text("GET", token_of_orders) == "abc");
    fixture.redis.integer("DEL", token_of_orders);
    CHECK(orders.lock_and_get_token() > token);
    orders.unlock();
}

// The owner is opaque on the wire, so a foreign hash is like an unknown holder.
TEST_CASE("a foreign hash blocks like a holder, is refused if it has no TTL, and stays unchanged") {
    Fixture fixture;
    fixture.redis.integer("HSET", "orders", "colour", "red", "size", "7");
    const std::string before = fixture.dump("orders");
    RLock lock{fixture.client, "orders"};
    FairLock fair{fixture.client, "orders"};
    FencedLock fenced{fixture.client, "orders"};
    SpinLock spin{fixture.client, "orders"};
    ReadWriteLock shared{fixture.client, "orders"};
    CHECK(code_of([&] { static_cast<void>(lock.try_lock()); }) == errc::wrong_type);
    CHECK(code_of([&] { static_cast<void>(fair.try_lock()); }) == errc::wrong_type);
    CHECK(code_of([&] { static_cast<void>(fenced.try_lock()); }) == errc::wrong_type);
    CHECK(code_of([&] { static_cast<void>(spin.try_lock()); }) == errc::wrong_type);
    CHECK(code_of([&] { lock.lock(); }) == errc::wrong_type);
    CHECK(code_of([&] { fair.lock(); }) == errc::wrong_type);
    CHECK(code_of([&] { fenced.lock(); }) == errc::wrong_type);
    CHECK(code_of([&] { spin.lock(); }) == errc::wrong_type);
    CHECK(fixture.redis.pttl("orders") == -1);
    fixture.redis.integer("PEXPIRE", "orders", 600'000);
    CHECK_FALSE(lock.try_lock());
    CHECK_FALSE(fair.try_lock());
    CHECK_FALSE(fenced.try_lock());
    CHECK_FALSE(spin.try_lock());
    CHECK(code_of([&] { static_cast<void>(shared.try_lock()); }) == errc::wrong_type);
    CHECK(code_of([&] { static_cast<void>(shared.try_lock_shared()); }) == errc::wrong_type);
    CHECK(code_of([&] { lock.unlock(); }) == errc::not_owner);
    CHECK(fixture.dump("orders") == before);
}

// --- releasing without a hold ---------------------------------------------------------------------------------------

// It would never become free.
TEST_CASE(
    "a read-write lock that is held without a TTL: every way to acquire it is refused at once, and changes nothing") {
    Fixture fixture;
    const std::string stranger = "b983c153-7421-469a-addb-44fb92259a1b:42";
    const auto hold = [&](bool write) {
        fixture.redis.text("FLUSHALL");
        fixture.redis.call("HSET", "orders", "mode", write ? "write" : "read", write ? stranger + ":write" : stranger,
                           "1");
        if (!write) fixture.redis.text("SET", "{orders}:" + stranger + ":rwlock_timeout:1", "1");
    };
    using Shared = ReadWriteLock;
    struct Way {
        std::string what;
        bool as_writer;
        std::function<void(Shared&)> call;
    };
    const std::vector<Way> ways{
        {"try_lock", true, [](Shared& lock) { static_cast<void>(lock.try_lock()); }},
        {"try_lock_for", true, [](Shared& lock) { static_cast<void>(lock.try_lock_for(600s)); }},
        {"lock", true, [](Shared& lock) { lock.lock(); }},
        {"try_lock_shared", false, [](Shared& lock) { static_cast<void>(lock.try_lock_shared()); }},
        {"try_lock_shared_for", false, [](Shared& lock) { static_cast<void>(lock.try_lock_shared_for(600s)); }},
        {"lock_shared", false, [](Shared& lock) { lock.lock_shared(); }},
    };
    for (const bool held_by_writer : {true, false}) {
        for (const Way& way : ways) {
            if (!held_by_writer && !way.as_writer) continue;  // readers join a reader
            CAPTURE(held_by_writer);
            CAPTURE(way.what);
            hold(held_by_writer);
            const std::string before = fixture.dump("orders");
            Client client{fixture.server.url()};
            Shared lock{client, "orders"};
            auto call = start([&] { return code_of([&] { way.call(lock); }); });
            const bool at_once = ready(call, patient(5s));
            CHECK(at_once);
            CHECK(fixture.dump("orders") == before);
            fixture.redis.text("FLUSHALL");
            fixture.redis.integer("PUBLISH", "redisson_rwlock:{orders}", "1");
            CHECK(call.get() == errc::wrong_type);
        }
    }
}

TEST_CASE("every lock throws not_owner to a thread without a hold, also after its unlock(), and other holds stay") {
    Fixture fixture;
    auto& client = fixture.client;
    RLock lock{client, "a"};
    FairLock fair{client, "b"};
    FencedLock fenced{client, "c"};
    SpinLock spin{client, "d"};
    Mutex mutex{client, "e"};
    ReadWriteLock shared{client, "f"};
    const auto check = [](auto& one) {
        CHECK(code_of([&] { one.unlock(); }) == errc::not_owner);
        one.lock();
        CHECK(elsewhere([&] { return code_of([&] { one.unlock(); }); }) == errc::not_owner);
        CHECK(one.is_held());
        one.unlock();
        CHECK(code_of([&] { one.unlock(); }) == errc::not_owner);
        std::error_code ec;
        one.unlock(ec);
        CHECK(ec == errc::not_owner);
        CHECK_FALSE(one.is_locked());
    };
    check(lock);
    check(fair);
    check(fenced);
    check(spin);
    check(mutex);
    check(shared.write_lock());
    check(shared.read_lock());
    MultiLock all{lock, fair};
    check(all);
}

TEST_CASE("a permit of another semaphore, or of none, is unknown, and has no effect") {
    Fixture fixture;
    PermitExpirableSemaphore seats{fixture.client, "seats"};
    PermitExpirableSemaphore tables{fixture.client, "tables"};
    seats.set_permits(2);
    tables.set_permits(2);
    const PermitId seat = seats.acquire(Lease{60s});
    for (const PermitId& id : {seat, PermitId::random()}) {
        CHECK(code_of([&] { tables.release(id); }) == errc::unknown_permit);
        CHECK_FALSE(tables.try_release(id));
        CHECK(code_of([&] { tables.update_lease(id, Lease{60s}); }) == errc::unknown_permit);
    }
    CHECK(tables.available_permits() == 2);
    CHECK(tables.acquired_permits() == 0);
    seats.release(seat);
    CHECK(code_of([&] { seats.release(seat); }) == errc::unknown_permit);
    CHECK(seats.available_permits() == 2);
}

// --- URLs -----------------------------------------------------------------------------------------------------------

TEST_CASE("a password of any bytes logs in unchanged, and injects no command") {
    RedisServer server{{.tcp = true}};
    RawRedis redis{server};
    const auto encoded = [](const std::string& text) {
        std::string out;
        for (const char c : text) {
            const char* const digits = "0123456789abcdef";
            out += {'%', digits[static_cast<unsigned char>(c) >> 4], digits[static_cast<unsigned char>(c) & 15]};
        }
        return out;
    };
    for (const std::string& password :
         {std::string("two words"), std::string("a:b@c/d%e?f#g"), std::string("x\r\nFLUSHALL\r\n"),
          std::string("\"'\\%s%n"), std::string("nul\0nul", 7), std::string("\xff\xfe\x01"), std::string(4000, 'p')}) {
        CAPTURE(in_quotes(password));
        redis.text("SET", "witness", "here");
        REQUIRE_FALSE(
            redis.call("ACL", "SETUSER", "seller", "reset", "on", ">" + password, "~*", "&*", "+@all").is_error());
        const std::string at = "@127.0.0.1:" + std::to_string(server.port());
        Client good{"redis://seller:" + encoded(password) + at};
        RLock orders{good, "orders"};
        orders.lock();
        orders.unlock();
        Client bad{"redis://seller:" + encoded(password + "x") + at};
        RLock theirs{bad, "orders"};
        const std::string text = text_of_error([&] { theirs.lock(); });
        CHECK(code_of([&] { theirs.lock(); }) == errc::rejected);
        CHECK(text.find(escaped(password).substr(0, 6)) == std::string::npos);
        CHECK(redis.text("GET", "witness") == "here");
    }
}

TEST_CASE("a database that does not exist is rejected at once, with the server's error") {
    Fixture fixture;
    Client client{fixture.server.url() + "?db=9999"};
    RLock orders{client, "orders"};
    CHECK(code_of([&] { orders.lock(); }) == errc::rejected);
    CHECK(text_of_error([&] { orders.lock(); }).find("DB index") != std::string::npos);
}

// --- callbacks ------------------------------------------------------------------------------------------------------

TEST_CASE("an event handler may destroy the lock and the client that the event is about") {
    Fixture fixture;
    struct Held {
        std::unique_ptr<HiredisClient> client;
        std::unique_ptr<HiredisRLock> lock;
        std::atomic<bool> gone{false};
    } held;
    ClientOptions options = with_watchdog(short_lease);
    options.on_event = [&](const Event& event) {
        if (event.kind != Event::Kind::hold_lost) return;
        held.lock.reset();
        held.client.reset();
        held.gone = true;
        throw 7;
    };
    held.client = std::make_unique<HiredisClient>(fixture.server.url(), options);
    held.lock = std::make_unique<HiredisRLock>(*held.client, "orders");
    held.lock->lock();
    fixture.redis.integer("DEL", "orders");
    CHECK(eventually([&] { return held.gone.load(); }, short_lease + 20s));
    CHECK(fixture.redis.keys().empty());
}

// --- tokens of an untrusted server
// -------------------------------------------------------------------------------------

TEST_CASE("a grant without a token, or with an impossible one, is no hold") {
    for (const std::string token :
         {":0", ":-1", ":-9223372036854775808", ":9007199254740992", ":9223372036854775807", "$1\r\n7", "$-1"}) {
        CAPTURE(token);
        std::atomic<int> acquires{0};
        ScriptedServer hostile{telling_time([&](const CommandWords& command) -> ScriptedReply {
            const bool acquire = command.size() > 1 && command[1] == digested<scripts::fenced_queue_acquire>.digest();
            acquires += acquire ? 1 : 0;
            return acquire ? "*2\r\n:1\r\n" + token + "\r\n" : ":0\r\n";
        })};
        Client client{hostile.url()};
        FencedLock orders{client, "orders"};
        CHECK(code_of([&] { static_cast<void>(orders.try_lock()); }) == errc::protocol_error);
        CHECK(acquires == 1);
        CHECK(code_of([&] { static_cast<void>(orders.token()); }) == errc::not_owner);
        CHECK(client.stats().acquisitions == 0);
    }
}
