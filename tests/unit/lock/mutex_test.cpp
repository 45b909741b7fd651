// SPDX-License-Identifier: MIT
// Mutex: its commands, their order, and late, malformed or missing replies.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdint>
#include <future>
#include <set>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "support/scripted_transport.hpp"
#include "support/start.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

using Sorts = std::vector<std::string>;
using Words = std::vector<std::string>;

ClientOptions impatient() { return {.command_timeout = 20ms, .unreachable_timeout = 60ms}; }

struct Fixture {
    explicit Fixture(const ClientOptions& options = {}, SpinOptions pauses = {})
        : client(redis.transport(), options), lock(client, "orders", pauses) {}

    // The owner of a hold, as it is written on the wire.
    std::string owner(std::uint64_t number) const { return client.id() + ":" + std::to_string(number); }

    // The value of the n-th acquire that began with the plain command.
    std::string value(std::size_t n = 0) const { return redis.sent("SET").at(n).words.at(2); }

    bool is_free() { return lock.valid_until() == Instant::min() && lock.lost().stop_requested(); }

    // Lets the client learn that the server has no such command.
    void find_no_native_delete() {
        lock.lock();
        lock.unlock();
    }

    ScriptedRedis redis;
    Client client;
    Mutex lock;
};

std::error_code unlock(Fixture& fixture) {
    std::error_code ec = errc::unsupported;
    fixture.lock.unlock(ec);
    return ec;
}

std::error_code code_of(auto&& call) {
    try {
        call();
        return {};
    } catch (const Error& e) {
        CHECK(e.name() == "orders");
        return e.code();
    }
}

}  // namespace

// --- acquiring ------------------------------------------------------------------------------------------------

TEST_CASE("acquiring a free mutex is the plain SET NX of the Redis documentation") {
    Fixture fixture({.key_prefix = "shop:"});
    const std::int64_t begun = ScriptedRedis::server_now();
    fixture.lock.lock();
    const auto sent = fixture.redis.sent("SET");
    REQUIRE(sent.size() == 1);
    const std::string over = sent[0].words.back();
    CHECK(sent[0].words == Words{"SET", "shop:orders", fixture.owner(1), "NX", "PXAT", over});
    // Not later than requested, although the server's clock is not known exactly.
    const auto lasts = [&](const std::string& end, Milliseconds lease) {
        const std::int64_t limit = ScriptedRedis::server_now() + lease.count();
        const std::int64_t instant = std::stoll(end);
        const Milliseconds slow = Milliseconds(ScriptedRedis::server_now() - begun);
        return instant <= limit && instant >= begun + lease.count() - slow.count() - 10;
    };
    CHECK(lasts(over, 30s));
    CHECK(fixture.redis.history() == Sorts{"SET"});
    CHECK(fixture.lock.valid_until() > Clock::now() + 20s);
    CHECK(fixture.lock.valid_until() < sent[0].at + 30s);
    CHECK_FALSE(fixture.lock.lost().stop_requested());
    fixture.lock.unlock();
    CHECK(fixture.is_free());

    CHECK(fixture.lock.try_lock(Lease(5'000'999us)));
    CHECK(lasts(fixture.redis.sent("SET").at(1).words.at(5), 5s));
    fixture.lock.unlock();
}

TEST_CASE("server without SET PXAT: this and later commands send the lease as a duration") {
    Fixture fixture;
    fixture.redis.next("SET", error("ERR syntax error"));
    fixture.lock.lock();
    fixture.lock.unlock();
    CHECK(fixture.lock.try_lock(Lease(5'000'999us)));
    const auto sent = fixture.redis.sent("SET");
    REQUIRE(sent.size() == 3);
    CHECK(sent[0].words.at(4) == "PXAT");
    CHECK(sent[1].words == Words{"SET", "orders", fixture.owner(1), "NX", "PX", "30000"});
    CHECK(sent[2].words == Words{"SET", "orders", fixture.owner(2), "NX", "PX", "5000"});
    CHECK(fixture.redis.count("mutex acquire") == 0);
    fixture.lock.unlock();
}

TEST_CASE("each hold has its own value, which names the client") {
    Fixture fixture;
    std::set<std::string> values;
    for (std::size_t round = 0; round < 3; ++round) {
        Mutex another(fixture.client, "orders");  // a new object continues the numbering
        another.lock();
        another.unlock();
        values.insert(fixture.value(round));
        REQUIRE(fixture.redis.count("mutex release") == round + 1);
        CHECK(fixture.redis.sent("mutex release").back().argument(0) == fixture.value(round));
    }
    CHECK(values.size() == 3);
    for (const std::uint64_t number : {1U, 2U, 3U}) CHECK(values.contains(fixture.owner(number)));
}

TEST_CASE("an acquire whose reply is lost is resent as a script with the same value") {
    Fixture fixture;
    const std::int64_t begun = ScriptedRedis::server_now();
    fixture.redis.next("SET", lost());
    fixture.redis.next("mutex acquire", lost());
    fixture.lock.lock();
    CHECK(fixture.redis.history() == Sorts{"SET", "mutex acquire", "mutex acquire"});
    for (const SentCommand& again : fixture.redis.sent("mutex acquire")) {
        CHECK(again.key(0) == "orders");
        CHECK(again.argument(0) == fixture.value());
        CHECK(again.argument(1) == "30000");
        CHECK(reaches(again.instant(2), 3000ms, begun));
    }
    CHECK_FALSE(unlock(fixture));
    CHECK(fixture.redis.sent("mutex release").at(0).argument(0) == fixture.value());
}

TEST_CASE("a plain command that took no effect is resent with the same value") {
    Fixture fixture;
    fixture.redis.next("SET", error("LOADING Redis is loading the dataset in memory"));
    fixture.redis.next("SET", error("OOM command not allowed when used memory > 'maxmemory'."));
    fixture.lock.lock();
    const auto sent = fixture.redis.sent("SET");
    REQUIRE(sent.size() == 3);
    for (std::size_t i = 0; i < 5; ++i) CHECK(sent[0].words.at(i) == sent[2].words.at(i));
    CHECK(std::stoll(sent[0].words.at(5)) <= std::stoll(sent[2].words.at(5)));
    CHECK(fixture.redis.count("mutex acquire") == 0);
    fixture.lock.unlock();
}

TEST_CASE("an acquire by script that arrived too late is resent, by the server time that the reply reported") {
    Fixture fixture;
    const std::int64_t ahead = ScriptedRedis::server_now() + 3'600'000;
    fixture.redis.always("SET", nil());
    fixture.redis.next("mutex acquire", ScriptedRedis::late(ahead));
    fixture.lock.lock();
    const auto sent = fixture.redis.sent("mutex acquire");
    REQUIRE(sent.size() == 2);
    CHECK(sent[0].instant(2) < ahead);
    CHECK(sent[1].instant(2) > ahead + 3000);
    CHECK(sent[1].argument(0) == fixture.value());
    fixture.lock.unlock();
    CHECK(fixture.redis.count("mutex give up") == 0);
}

TEST_CASE("nil reply to the plain command: a script finds out about the holder") {
    Fixture fixture;
    fixture.redis.always("SET", nil());
    fixture.redis.next("mutex acquire", number(1000));
    CHECK_FALSE(fixture.lock.try_lock());
    CHECK(fixture.redis.history() == Sorts{"SET", "mutex acquire"});
    CHECK(fixture.redis.sent("mutex acquire").at(0).argument(0) == fixture.value());
    CHECK(fixture.is_free());

    // The lock may have become free meanwhile.
    CHECK(fixture.lock.try_lock());
    fixture.lock.unlock();

    fixture.redis.next("mutex acquire", error("WRONGTYPE Operation against a key holding the wrong kind of value"));
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::wrong_type);
    CHECK(fixture.is_free());
    CHECK(fixture.redis.count("mutex release") == 1);
}

TEST_CASE("an acquire of unknown outcome is released under the value that was sent") {
    Fixture fixture(impatient());
    fixture.redis.always("SET", lost());
    fixture.redis.always("mutex acquire", lost());
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::unreachable);
    CHECK(fixture.is_free());
    REQUIRE(fixture.redis.wait_for("mutex give up"));
    CHECK(fixture.redis.sent("mutex give up").at(0).argument(0) == fixture.value());
    CHECK(fixture.redis.sent("mutex give up").at(0).key(0) == "orders");
    for (const SentCommand& again : fixture.redis.sent("mutex acquire")) CHECK(again.argument(0) == fixture.value());
    CHECK(fixture.redis.count("mutex release") == 0);
}

TEST_CASE("a malformed reply is a protocol_error, and the possible hold is released") {
    for (const Reply& reply : {text("QUEUED"), number(1'000'000), array({}), malformed()}) {
        Fixture fixture;
        if (reply.is_integer()) {
            fixture.redis.next("SET", nil());
            fixture.redis.next("mutex acquire", number(-2));
        } else {
            fixture.redis.next("SET", reply);
        }
        CAPTURE(static_cast<int>(reply.kind));
        CHECK(code_of([&] { fixture.lock.lock(); }) == errc::protocol_error);
        CHECK(fixture.is_free());
        REQUIRE(fixture.redis.wait_for("mutex give up"));
        CHECK(fixture.redis.sent("mutex give up").at(0).argument(0) == fixture.value());
    }
}

TEST_CASE("a waiting thread sends the script with a new value at each try, and does not subscribe") {
    Fixture fixture({}, {.initial_delay = 1ms, .max_delay = 2ms});
    fixture.redis.next("SET", nil());
    for (int i = 0; i < 4; ++i) fixture.redis.next("mutex acquire", number(10'000));
    fixture.lock.lock();
    CHECK(fixture.redis.count("SET") == 1);
    const auto asked = fixture.redis.sent("mutex acquire");
    REQUIRE(asked.size() == 5);
    CHECK(asked[0].argument(0) == fixture.value());
    CHECK(asked[1].argument(0) != asked[2].argument(0));
    CHECK_FALSE(fixture.redis.is_wanted(""));
    fixture.lock.unlock();
    CHECK(fixture.redis.sent("mutex release").at(0).argument(0) == asked[4].argument(0));
}

TEST_CASE("a waiting thread sleeps no longer than the holder's lease") {
    Fixture fixture({}, {.initial_delay = 1h, .max_delay = 1h});
    fixture.redis.next("SET", nil());
    fixture.redis.next("mutex acquire", number(30));
    fixture.redis.next("mutex acquire", number(20));
    const Stopwatch watch;
    fixture.lock.lock();
    CHECK(watch.elapsed() >= 50ms);
    CHECK(fixture.redis.count("mutex acquire") == 3);
    fixture.lock.unlock();
}

TEST_CASE("invalid delays are refused") {
    Fixture fixture;
    CHECK(code_of([&] { Mutex bad(fixture.client, "orders", SpinOptions{0ms, 1ms}); }) == errc::invalid_argument);
    CHECK(code_of([&] { Mutex bad(fixture.client, "orders", SpinOptions{2ms, 1ms}); }) == errc::invalid_argument);
}

// --- not reentrant --------------------------------------------------------------------------------------------

TEST_CASE("a holder that acquires again gets would_deadlock, and nothing is sent") {
    Fixture fixture;
    fixture.lock.lock();
    Mutex same(fixture.client, "orders");
    std::stop_source stop;
    std::error_code ec;
    CHECK(code_of([&] { fixture.lock.lock(); }) == errc::would_deadlock);
    CHECK(code_of([&] { return fixture.lock.lock(Lease(1s), stop.get_token()); }) == errc::would_deadlock);
    CHECK(code_of([&] { return fixture.lock.try_lock(); }) == errc::would_deadlock);
    CHECK(code_of([&] { return fixture.lock.try_lock_for(1h); }) == errc::would_deadlock);
    CHECK(code_of([&] { return fixture.lock.try_lock_until(Clock::now()); }) == errc::would_deadlock);
    CHECK(code_of([&] { same.lock(); }) == errc::would_deadlock);
    CHECK_FALSE(fixture.lock.try_lock(ec));
    CHECK(ec == errc::would_deadlock);
    CHECK(ec == std::errc::resource_deadlock_would_occur);
    CHECK(fixture.redis.history() == Sorts{"SET"});
    CHECK(fixture.lock.valid_until() > Clock::now());
    CHECK_FALSE(unlock(fixture));
    CHECK(unlock(fixture) == errc::not_owner);
}

TEST_CASE("after a loss a thread can acquire the lock again, and each lost hold still needs its unlock()") {
    Fixture fixture;
    fixture.lock.lock(Lease(20ms));
    const std::stop_token lost_token = fixture.lock.lost();
    REQUIRE(eventually([&] { return lost_token.stop_requested(); }));
    const std::size_t before = fixture.redis.count("SET");  // 0 if the server's clock was not known well enough
    fixture.lock.lock();
    CHECK(fixture.redis.count("SET") == before + 1);
    CHECK_FALSE(unlock(fixture));
    CHECK(fixture.redis.sent("mutex release").at(0).argument(0) == fixture.value(before));
    CHECK(unlock(fixture) == errc::hold_lost);
    CHECK(unlock(fixture) == errc::not_owner);
}

// --- releasing ------------------------------------------------------------------------------------------------

TEST_CASE("server without a compare-and-delete command: a client tries it once only") {
    Fixture fixture;
    for (int round = 0; round < 2; ++round) {
        fixture.lock.lock();
        CHECK_FALSE(unlock(fixture));
    }
    Mutex other(fixture.client, "invoices");
    other.lock();
    other.unlock();
    CHECK(fixture.redis.history() ==
          Sorts{"SET", "DELEX", "DELIFEQ", "mutex release", "SET", "mutex release", "SET", "mutex release"});
    CHECK(fixture.redis.sent("mutex release").at(2).key(0) == "invoices");
}

TEST_CASE("server with DELEX: a release uses it") {
    Fixture fixture;
    fixture.redis.always("DELEX", number(1));
    for (int round = 0; round < 2; ++round) {
        fixture.lock.lock();
        CHECK_FALSE(unlock(fixture));
    }
    CHECK(fixture.redis.history() == Sorts{"SET", "DELEX", "SET", "DELEX"});
    CHECK(fixture.redis.sent("DELEX").at(1).words == Words{"DELEX", "orders", "IFEQ", fixture.value(1)});
    fixture.lock.lock();
    fixture.redis.next("DELEX", number(0));
    CHECK(unlock(fixture) == errc::hold_lost);
    CHECK(fixture.client.stats().lost_holds == 1);
}

TEST_CASE("server with DELIFEQ instead of DELEX: a release uses it") {
    Fixture fixture;
    fixture.redis.always("DELIFEQ", number(1));
    for (int round = 0; round < 2; ++round) {
        fixture.lock.lock();
        CHECK_FALSE(unlock(fixture));
    }
    CHECK(fixture.redis.history() == Sorts{"SET", "DELEX", "DELIFEQ", "SET", "DELIFEQ"});
    CHECK(fixture.redis.sent("DELIFEQ").at(1).words == Words{"DELIFEQ", "orders", fixture.value(1)});
}

TEST_CASE("server without the command after a failover: a release falls back to the script") {
    Fixture fixture;
    fixture.redis.next("DELEX", number(1));
    for (int round = 0; round < 3; ++round) {
        fixture.lock.lock();
        CHECK_FALSE(unlock(fixture));
    }
    CHECK(fixture.redis.history() ==
          Sorts{"SET", "DELEX", "SET", "DELEX", "DELIFEQ", "mutex release", "SET", "mutex release"});
}

TEST_CASE("a release that the server refuses temporarily is resent unchanged") {
    Fixture fixture;
    fixture.redis.next("DELEX", error("MISCONF Redis is configured to save RDB snapshots"));
    fixture.redis.next("DELEX", error("LOADING Redis is loading the dataset in memory"));
    fixture.redis.next("DELEX", number(1));
    fixture.lock.lock();
    CHECK_FALSE(unlock(fixture));
    CHECK(fixture.redis.history() == Sorts{"SET", "DELEX", "DELEX", "DELEX"});
}

TEST_CASE("a release whose reply is lost is resent as a script, and succeeds if that finds nothing") {
    Fixture fixture;
    fixture.redis.next("DELEX", lost());
    fixture.redis.next("mutex release", number(0));
    fixture.lock.lock();
    CHECK_FALSE(unlock(fixture));
    CHECK(fixture.redis.sent("mutex release").at(0).argument(0) == fixture.value());
    CHECK(fixture.client.stats().lost_holds == 0);

    fixture.find_no_native_delete();
    fixture.lock.lock();
    fixture.redis.next("mutex release", lost());
    fixture.redis.next("mutex release", number(0));
    CHECK_FALSE(unlock(fixture));
    CHECK(fixture.client.stats().lost_holds == 0);
}

TEST_CASE("a release of unknown outcome continues in the background with that value") {
    for (const Reply& reply : {malformed(), text("OK"), number(2), number(-1)}) {
        Fixture fixture;
        fixture.redis.next("DELEX", reply);
        fixture.lock.lock();
        CHECK(unlock(fixture) == errc::protocol_error);
        REQUIRE(fixture.redis.wait_for("mutex give up"));
        CHECK(fixture.redis.sent("mutex give up").at(0).argument(0) == fixture.value());
        CHECK(fixture.redis.sent("mutex give up").at(0).posted);
        CHECK(fixture.redis.count("DELIFEQ") == 0);
        CHECK(fixture.client.stats().lost_holds == 0);
    }
}

TEST_CASE("a key of another type means a lost hold") {
    Fixture fixture;
    fixture.redis.next("DELEX", error("ERR Key should be of string type if conditions are specified"));
    fixture.redis.next("mutex release", error("WRONGTYPE Operation against a key holding the wrong kind of value"));
    fixture.lock.lock();
    CHECK(unlock(fixture) == errc::wrong_type);
    CHECK(fixture.client.stats().lost_holds == 1);
}

TEST_CASE("release of a hold that the server no longer knows: unlock() reports hold_lost, a guard does not throw") {
    Fixture fixture;
    fixture.redis.always("mutex release", number(0));
    fixture.lock.lock();
    CHECK(unlock(fixture) == errc::hold_lost);
    { const std::lock_guard guard(fixture.lock); }
    CHECK(fixture.client.stats().lost_holds == 2);
}

TEST_CASE("a hold is handed to the next thread of the process by one command, under its own value") {
    Fixture fixture;
    const std::int64_t begun = ScriptedRedis::server_now();
    for (int round = 0; round < 100 && fixture.client.stats().handoffs == 0; ++round) {
        const std::uint64_t waits = fixture.client.stats().waits;
        fixture.redis.always("SET", text("OK"));
        fixture.lock.lock();
        auto successor = start([&] {
            fixture.lock.lock(Lease(7s));
            const bool held = fixture.lock.valid_until() <= Clock::now() + 7s;
            fixture.lock.unlock();
            return held;
        });
        REQUIRE(eventually([&] { return fixture.client.stats().waits > waits; }));
        fixture.lock.unlock();
        CHECK(successor.get());
    }
    REQUIRE(fixture.client.stats().handoffs == 1);
    const SentCommand handed = fixture.redis.sent("mutex hand over").at(0);
    CHECK(handed.key(0) == "orders");
    CHECK(handed.argument(0) == fixture.redis.sent("SET").back().words.at(2));
    CHECK(handed.argument(1).starts_with(fixture.client.id() + ":"));
    CHECK(handed.argument(1) != handed.argument(0));
    CHECK(handed.argument(2) == "7000");
    CHECK(reaches(handed.instant(3), 3000ms, begun));
    CHECK(fixture.redis.sent("mutex release").back().argument(0) == handed.argument(1));
}

// --- the watchdog ---------------------------------------------------------------------------------------------

TEST_CASE("a renewal contains the value of this hold") {
    Fixture fixture({.watchdog_timeout = 900ms});
    const std::int64_t begun = ScriptedRedis::server_now();
    fixture.find_no_native_delete();
    fixture.lock.lock();
    REQUIRE(fixture.redis.wait_for("mutex renew"));
    const SentCommand renewal = fixture.redis.sent("mutex renew").at(0);
    CHECK(renewal.key(0) == "orders");
    CHECK(renewal.argument(0) == "900");
    CHECK(reaches(renewal.instant(1), 3000ms, begun));
    CHECK(renewal.argument(2) == fixture.value(1));
    fixture.redis.always("mutex renew", array({number(0)}));
    const std::stop_token lost_token = fixture.lock.lost();
    CHECK(eventually([&] { return lost_token.stop_requested(); }));
    CHECK(unlock(fixture) == errc::hold_lost);
}

TEST_CASE("a lost hold that a late renewal prolonged is released, even if the lock was acquired again since") {
    Fixture fixture({.watchdog_timeout = 3s});
    fixture.redis.next("mutex renew", ScriptedRedis::hold_back);
    fixture.lock.lock();
    REQUIRE(fixture.redis.wait_for("mutex renew"));
    fixture.redis.next("GET", text(fixture.owner(1)));
    CHECK(fixture.lock.force_unlock());
    fixture.lock.lock();
    fixture.redis.answer(fixture.redis.sent("mutex renew").at(0), array({number(1)}));
    REQUIRE(fixture.redis.wait_for("mutex give up", 2));
    CHECK(fixture.redis.sent("mutex give up").at(1).argument(0) == fixture.owner(1));
    CHECK(fixture.lock.valid_until() > Clock::now());
    CHECK_FALSE(unlock(fixture));
    CHECK(fixture.redis.sent("mutex release").back().argument(0) == fixture.owner(2));
}

// --- queries --------------------------------------------------------------------------------------------------

TEST_CASE("is_locked(), is_held() and hold_count() compare the value of the key") {
    Fixture fixture;
    CHECK_FALSE(fixture.lock.is_locked());
    CHECK_FALSE(fixture.lock.is_held());
    CHECK(fixture.redis.history() == Sorts{"GET"});
    fixture.redis.next("GET", text("somebody else's"));
    CHECK(fixture.lock.is_locked());

    fixture.lock.lock();
    fixture.redis.next("GET", text(fixture.value()));
    CHECK(fixture.lock.hold_count() == 1);
    fixture.redis.next("GET", text(fixture.value() + "1"));
    CHECK_FALSE(fixture.lock.is_held());
    CHECK_FALSE(fixture.lock.is_held());
    fixture.redis.next("GET", error("WRONGTYPE Operation against a key holding the wrong kind of value"));
    CHECK(code_of([&] { fixture.lock.is_held(); }) == errc::wrong_type);
    fixture.redis.next("GET", number(1));
    CHECK(code_of([&] { fixture.lock.is_locked(); }) == errc::protocol_error);
    CHECK_FALSE(unlock(fixture));
}

TEST_CASE("remaining_lease() is one query, and force_unlock() releases the value that it has read") {
    Fixture fixture;
    CHECK(fixture.lock.remaining_lease() == std::nullopt);
    fixture.redis.next("mutex remaining lease", number(1234));
    CHECK(fixture.lock.remaining_lease() == 1234ms);
    fixture.redis.next("mutex remaining lease", number(-1));
    CHECK(fixture.lock.remaining_lease() == Milliseconds::max());
    CHECK_FALSE(fixture.lock.force_unlock());
    CHECK(fixture.redis.count("mutex give up") == 0);
    fixture.redis.next("GET", text("somebody's value"));
    CHECK(fixture.lock.force_unlock());
    const SentCommand forced = fixture.redis.sent("mutex give up").at(0);
    CHECK(forced.key(0) == "orders");
    CHECK(forced.argument(0) == "somebody's value");
    CHECK(forced.argument_count() == 1);
}
