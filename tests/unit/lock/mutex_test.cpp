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

struct Bench {
    explicit Bench(const ClientOptions& options = {}, SpinOptions pauses = {})
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

std::error_code unlock(Bench& bench) {
    std::error_code ec = errc::unsupported;
    bench.lock.unlock(ec);
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
    Bench bench({.key_prefix = "shop:"});
    const std::int64_t begun = ScriptedRedis::server_now();
    bench.lock.lock();
    const auto sent = bench.redis.sent("SET");
    REQUIRE(sent.size() == 1);
    const std::string over = sent[0].words.back();
    CHECK(sent[0].words == Words{"SET", "shop:orders", bench.owner(1), "NX", "PXAT", over});
    // Not later than requested, although the server's clock is not known exactly.
    const auto lasts = [&](const std::string& end, Milliseconds lease) {
        const std::int64_t limit = ScriptedRedis::server_now() + lease.count();
        const std::int64_t instant = std::stoll(end);
        const Milliseconds slow = Milliseconds(ScriptedRedis::server_now() - begun);
        return instant <= limit && instant >= begun + lease.count() - slow.count() - 10;
    };
    CHECK(lasts(over, 30s));
    CHECK(bench.redis.history() == Sorts{"SET"});
    CHECK(bench.lock.valid_until() > Clock::now() + 20s);
    CHECK(bench.lock.valid_until() < sent[0].at + 30s);
    CHECK_FALSE(bench.lock.lost().stop_requested());
    bench.lock.unlock();
    CHECK(bench.is_free());

    CHECK(bench.lock.try_lock(Lease(5'000'999us)));
    CHECK(lasts(bench.redis.sent("SET").at(1).words.at(5), 5s));
    bench.lock.unlock();
}

TEST_CASE("server without SET PXAT: this and later commands send the lease as a duration") {
    Bench bench;
    bench.redis.next("SET", error("ERR syntax error"));
    bench.lock.lock();
    bench.lock.unlock();
    CHECK(bench.lock.try_lock(Lease(5'000'999us)));
    const auto sent = bench.redis.sent("SET");
    REQUIRE(sent.size() == 3);
    CHECK(sent[0].words.at(4) == "PXAT");
    CHECK(sent[1].words == Words{"SET", "orders", bench.owner(1), "NX", "PX", "30000"});
    CHECK(sent[2].words == Words{"SET", "orders", bench.owner(2), "NX", "PX", "5000"});
    CHECK(bench.redis.count("mutex acquire") == 0);
    bench.lock.unlock();
}

TEST_CASE("each hold has its own value, which names the client") {
    Bench bench;
    std::set<std::string> values;
    for (std::size_t round = 0; round < 3; ++round) {
        Mutex another(bench.client, "orders");  // a new object continues the numbering
        another.lock();
        another.unlock();
        values.insert(bench.value(round));
        REQUIRE(bench.redis.count("mutex release") == round + 1);
        CHECK(bench.redis.sent("mutex release").back().argument(0) == bench.value(round));
    }
    CHECK(values.size() == 3);
    for (const std::uint64_t number : {1U, 2U, 3U}) CHECK(values.contains(bench.owner(number)));
}

TEST_CASE("an acquire whose reply is lost is resent as a script with the same value") {
    Bench bench;
    const std::int64_t begun = ScriptedRedis::server_now();
    bench.redis.next("SET", lost());
    bench.redis.next("mutex acquire", lost());
    bench.lock.lock();
    CHECK(bench.redis.history() == Sorts{"SET", "mutex acquire", "mutex acquire"});
    for (const SentCommand& again : bench.redis.sent("mutex acquire")) {
        CHECK(again.key(0) == "orders");
        CHECK(again.argument(0) == bench.value());
        CHECK(again.argument(1) == "30000");
        CHECK(reaches(again.instant(2), 3000ms, begun));
    }
    CHECK_FALSE(unlock(bench));
    CHECK(bench.redis.sent("mutex release").at(0).argument(0) == bench.value());
}

TEST_CASE("a plain command that took no effect is resent with the same value") {
    Bench bench;
    bench.redis.next("SET", error("LOADING Redis is loading the dataset in memory"));
    bench.redis.next("SET", error("OOM command not allowed when used memory > 'maxmemory'."));
    bench.lock.lock();
    const auto sent = bench.redis.sent("SET");
    REQUIRE(sent.size() == 3);
    for (std::size_t i = 0; i < 5; ++i) CHECK(sent[0].words.at(i) == sent[2].words.at(i));
    CHECK(std::stoll(sent[0].words.at(5)) <= std::stoll(sent[2].words.at(5)));
    CHECK(bench.redis.count("mutex acquire") == 0);
    bench.lock.unlock();
}

TEST_CASE("an acquire by script that arrived too late is resent, by the server time that the reply reported") {
    Bench bench;
    const std::int64_t ahead = ScriptedRedis::server_now() + 3'600'000;
    bench.redis.always("SET", nil());
    bench.redis.next("mutex acquire", ScriptedRedis::late(ahead));
    bench.lock.lock();
    const auto sent = bench.redis.sent("mutex acquire");
    REQUIRE(sent.size() == 2);
    CHECK(sent[0].instant(2) < ahead);
    CHECK(sent[1].instant(2) > ahead + 3000);
    CHECK(sent[1].argument(0) == bench.value());
    bench.lock.unlock();
    CHECK(bench.redis.count("mutex give up") == 0);
}

TEST_CASE("nil reply to the plain command: a script finds out about the holder") {
    Bench bench;
    bench.redis.always("SET", nil());
    bench.redis.next("mutex acquire", number(1000));
    CHECK_FALSE(bench.lock.try_lock());
    CHECK(bench.redis.history() == Sorts{"SET", "mutex acquire"});
    CHECK(bench.redis.sent("mutex acquire").at(0).argument(0) == bench.value());
    CHECK(bench.is_free());

    // The lock may have become free meanwhile.
    CHECK(bench.lock.try_lock());
    bench.lock.unlock();

    bench.redis.next("mutex acquire", error("WRONGTYPE Operation against a key holding the wrong kind of value"));
    CHECK(code_of([&] { bench.lock.lock(); }) == errc::wrong_type);
    CHECK(bench.is_free());
    CHECK(bench.redis.count("mutex release") == 1);
}

TEST_CASE("an acquire of unknown outcome is released under the value that was sent") {
    Bench bench(impatient());
    bench.redis.always("SET", lost());
    bench.redis.always("mutex acquire", lost());
    CHECK(code_of([&] { bench.lock.lock(); }) == errc::unreachable);
    CHECK(bench.is_free());
    REQUIRE(bench.redis.wait_for("mutex give up"));
    CHECK(bench.redis.sent("mutex give up").at(0).argument(0) == bench.value());
    CHECK(bench.redis.sent("mutex give up").at(0).key(0) == "orders");
    for (const SentCommand& again : bench.redis.sent("mutex acquire")) CHECK(again.argument(0) == bench.value());
    CHECK(bench.redis.count("mutex release") == 0);
}

TEST_CASE("a malformed reply is a protocol_error, and the possible hold is released") {
    for (const Reply& reply : {text("QUEUED"), number(1'000'000), array({}), malformed()}) {
        Bench bench;
        if (reply.is_integer()) {
            bench.redis.next("SET", nil());
            bench.redis.next("mutex acquire", number(-2));
        } else {
            bench.redis.next("SET", reply);
        }
        CAPTURE(static_cast<int>(reply.kind));
        CHECK(code_of([&] { bench.lock.lock(); }) == errc::protocol_error);
        CHECK(bench.is_free());
        REQUIRE(bench.redis.wait_for("mutex give up"));
        CHECK(bench.redis.sent("mutex give up").at(0).argument(0) == bench.value());
    }
}

TEST_CASE("a waiting thread sends the script with a new value at each try, and does not subscribe") {
    Bench bench({}, {.initial_delay = 1ms, .max_delay = 2ms});
    bench.redis.next("SET", nil());
    for (int i = 0; i < 4; ++i) bench.redis.next("mutex acquire", number(10'000));
    bench.lock.lock();
    CHECK(bench.redis.count("SET") == 1);
    const auto asked = bench.redis.sent("mutex acquire");
    REQUIRE(asked.size() == 5);
    CHECK(asked[0].argument(0) == bench.value());
    CHECK(asked[1].argument(0) != asked[2].argument(0));
    CHECK_FALSE(bench.redis.is_wanted(""));
    bench.lock.unlock();
    CHECK(bench.redis.sent("mutex release").at(0).argument(0) == asked[4].argument(0));
}

TEST_CASE("a waiting thread sleeps no longer than the holder's lease") {
    Bench bench({}, {.initial_delay = 1h, .max_delay = 1h});
    bench.redis.next("SET", nil());
    bench.redis.next("mutex acquire", number(30));
    bench.redis.next("mutex acquire", number(20));
    const Stopwatch watch;
    bench.lock.lock();
    CHECK(watch.elapsed() >= 50ms);
    CHECK(bench.redis.count("mutex acquire") == 3);
    bench.lock.unlock();
}

TEST_CASE("invalid delays are refused") {
    Bench bench;
    CHECK(code_of([&] { Mutex bad(bench.client, "orders", SpinOptions{0ms, 1ms}); }) == errc::invalid_argument);
    CHECK(code_of([&] { Mutex bad(bench.client, "orders", SpinOptions{2ms, 1ms}); }) == errc::invalid_argument);
}

// --- not reentrant --------------------------------------------------------------------------------------------

TEST_CASE("a holder that acquires again gets would_deadlock, and nothing is sent") {
    Bench bench;
    bench.lock.lock();
    Mutex same(bench.client, "orders");
    std::stop_source stop;
    std::error_code ec;
    CHECK(code_of([&] { bench.lock.lock(); }) == errc::would_deadlock);
    CHECK(code_of([&] { return bench.lock.lock(Lease(1s), stop.get_token()); }) == errc::would_deadlock);
    CHECK(code_of([&] { return bench.lock.try_lock(); }) == errc::would_deadlock);
    CHECK(code_of([&] { return bench.lock.try_lock_for(1h); }) == errc::would_deadlock);
    CHECK(code_of([&] { return bench.lock.try_lock_until(Clock::now()); }) == errc::would_deadlock);
    CHECK(code_of([&] { same.lock(); }) == errc::would_deadlock);
    CHECK_FALSE(bench.lock.try_lock(ec));
    CHECK(ec == errc::would_deadlock);
    CHECK(ec == std::errc::resource_deadlock_would_occur);
    CHECK(bench.redis.history() == Sorts{"SET"});
    CHECK(bench.lock.valid_until() > Clock::now());
    CHECK_FALSE(unlock(bench));
    CHECK(unlock(bench) == errc::not_owner);
}

TEST_CASE("after a loss a thread can acquire the lock again, and each lost hold still needs its unlock()") {
    Bench bench;
    bench.lock.lock(Lease(20ms));
    const std::stop_token lost_token = bench.lock.lost();
    REQUIRE(eventually([&] { return lost_token.stop_requested(); }));
    const std::size_t before = bench.redis.count("SET");  // 0 if the server's clock was not known well enough
    bench.lock.lock();
    CHECK(bench.redis.count("SET") == before + 1);
    CHECK_FALSE(unlock(bench));
    CHECK(bench.redis.sent("mutex release").at(0).argument(0) == bench.value(before));
    CHECK(unlock(bench) == errc::hold_lost);
    CHECK(unlock(bench) == errc::not_owner);
}

// --- releasing ------------------------------------------------------------------------------------------------

TEST_CASE("server without a compare-and-delete command: a client tries it once only") {
    Bench bench;
    for (int round = 0; round < 2; ++round) {
        bench.lock.lock();
        CHECK_FALSE(unlock(bench));
    }
    Mutex other(bench.client, "invoices");
    other.lock();
    other.unlock();
    CHECK(bench.redis.history() ==
          Sorts{"SET", "DELEX", "DELIFEQ", "mutex release", "SET", "mutex release", "SET", "mutex release"});
    CHECK(bench.redis.sent("mutex release").at(2).key(0) == "invoices");
}

TEST_CASE("server with DELEX: a release uses it") {
    Bench bench;
    bench.redis.always("DELEX", number(1));
    for (int round = 0; round < 2; ++round) {
        bench.lock.lock();
        CHECK_FALSE(unlock(bench));
    }
    CHECK(bench.redis.history() == Sorts{"SET", "DELEX", "SET", "DELEX"});
    CHECK(bench.redis.sent("DELEX").at(1).words == Words{"DELEX", "orders", "IFEQ", bench.value(1)});
    bench.lock.lock();
    bench.redis.next("DELEX", number(0));
    CHECK(unlock(bench) == errc::hold_lost);
    CHECK(bench.client.stats().lost_holds == 1);
}

TEST_CASE("server with DELIFEQ instead of DELEX: a release uses it") {
    Bench bench;
    bench.redis.always("DELIFEQ", number(1));
    for (int round = 0; round < 2; ++round) {
        bench.lock.lock();
        CHECK_FALSE(unlock(bench));
    }
    CHECK(bench.redis.history() == Sorts{"SET", "DELEX", "DELIFEQ", "SET", "DELIFEQ"});
    CHECK(bench.redis.sent("DELIFEQ").at(1).words == Words{"DELIFEQ", "orders", bench.value(1)});
}

TEST_CASE("server without the command after a failover: a release falls back to the script") {
    Bench bench;
    bench.redis.next("DELEX", number(1));
    for (int round = 0; round < 3; ++round) {
        bench.lock.lock();
        CHECK_FALSE(unlock(bench));
    }
    CHECK(bench.redis.history() ==
          Sorts{"SET", "DELEX", "SET", "DELEX", "DELIFEQ", "mutex release", "SET", "mutex release"});
}

TEST_CASE("a release that the server refuses temporarily is resent unchanged") {
    Bench bench;
    bench.redis.next("DELEX", error("MISCONF Redis is configured to save RDB snapshots"));
    bench.redis.next("DELEX", error("LOADING Redis is loading the dataset in memory"));
    bench.redis.next("DELEX", number(1));
    bench.lock.lock();
    CHECK_FALSE(unlock(bench));
    CHECK(bench.redis.history() == Sorts{"SET", "DELEX", "DELEX", "DELEX"});
}

TEST_CASE("a release whose reply is lost is resent as a script, and succeeds if that finds nothing") {
    Bench bench;
    bench.redis.next("DELEX", lost());
    bench.redis.next("mutex release", number(0));
    bench.lock.lock();
    CHECK_FALSE(unlock(bench));
    CHECK(bench.redis.sent("mutex release").at(0).argument(0) == bench.value());
    CHECK(bench.client.stats().lost_holds == 0);

    bench.find_no_native_delete();
    bench.lock.lock();
    bench.redis.next("mutex release", lost());
    bench.redis.next("mutex release", number(0));
    CHECK_FALSE(unlock(bench));
    CHECK(bench.client.stats().lost_holds == 0);
}

TEST_CASE("a release of unknown outcome continues in the background with that value") {
    for (const Reply& reply : {malformed(), text("OK"), number(2), number(-1)}) {
        Bench bench;
        bench.redis.next("DELEX", reply);
        bench.lock.lock();
        CHECK(unlock(bench) == errc::protocol_error);
        REQUIRE(bench.redis.wait_for("mutex give up"));
        CHECK(bench.redis.sent("mutex give up").at(0).argument(0) == bench.value());
        CHECK(bench.redis.sent("mutex give up").at(0).posted);
        CHECK(bench.redis.count("DELIFEQ") == 0);
        CHECK(bench.client.stats().lost_holds == 0);
    }
}

TEST_CASE("a key of another type means a lost hold") {
    Bench bench;
    bench.redis.next("DELEX", error("ERR Key should be of string type if conditions are specified"));
    bench.redis.next("mutex release", error("WRONGTYPE Operation against a key holding the wrong kind of value"));
    bench.lock.lock();
    CHECK(unlock(bench) == errc::wrong_type);
    CHECK(bench.client.stats().lost_holds == 1);
}

TEST_CASE("release of a hold that the server no longer knows: unlock() reports hold_lost, a guard does not throw") {
    Bench bench;
    bench.redis.always("mutex release", number(0));
    bench.lock.lock();
    CHECK(unlock(bench) == errc::hold_lost);
    { const std::lock_guard guard(bench.lock); }
    CHECK(bench.client.stats().lost_holds == 2);
}

TEST_CASE("a hold is handed to the next thread of the process by one command, under its own value") {
    Bench bench;
    const std::int64_t begun = ScriptedRedis::server_now();
    for (int round = 0; round < 100 && bench.client.stats().handoffs == 0; ++round) {
        const std::uint64_t waits = bench.client.stats().waits;
        bench.redis.always("SET", text("OK"));
        bench.lock.lock();
        auto heir = start([&] {
            bench.lock.lock(Lease(7s));
            const bool held = bench.lock.valid_until() <= Clock::now() + 7s;
            bench.lock.unlock();
            return held;
        });
        REQUIRE(eventually([&] { return bench.client.stats().waits > waits; }));
        bench.lock.unlock();
        CHECK(heir.get());
    }
    REQUIRE(bench.client.stats().handoffs == 1);
    const SentCommand handed = bench.redis.sent("mutex hand over").at(0);
    CHECK(handed.key(0) == "orders");
    CHECK(handed.argument(0) == bench.redis.sent("SET").back().words.at(2));
    CHECK(handed.argument(1).starts_with(bench.client.id() + ":"));
    CHECK(handed.argument(1) != handed.argument(0));
    CHECK(handed.argument(2) == "7000");
    CHECK(reaches(handed.instant(3), 3000ms, begun));
    CHECK(bench.redis.sent("mutex release").back().argument(0) == handed.argument(1));
}

// --- the watchdog ---------------------------------------------------------------------------------------------

TEST_CASE("a renewal contains the value of this hold") {
    Bench bench({.watchdog_timeout = 900ms});
    const std::int64_t begun = ScriptedRedis::server_now();
    bench.find_no_native_delete();
    bench.lock.lock();
    REQUIRE(bench.redis.wait_for("mutex renew"));
    const SentCommand renewal = bench.redis.sent("mutex renew").at(0);
    CHECK(renewal.key(0) == "orders");
    CHECK(renewal.argument(0) == "900");
    CHECK(reaches(renewal.instant(1), 3000ms, begun));
    CHECK(renewal.argument(2) == bench.value(1));
    bench.redis.always("mutex renew", array({number(0)}));
    const std::stop_token lost_token = bench.lock.lost();
    CHECK(eventually([&] { return lost_token.stop_requested(); }));
    CHECK(unlock(bench) == errc::hold_lost);
}

TEST_CASE("a lost hold that a late renewal prolonged is released, even if the lock was acquired again since") {
    Bench bench({.watchdog_timeout = 3s});
    bench.redis.next("mutex renew", ScriptedRedis::hold_back);
    bench.lock.lock();
    REQUIRE(bench.redis.wait_for("mutex renew"));
    bench.redis.next("GET", text(bench.owner(1)));
    CHECK(bench.lock.force_unlock());
    bench.lock.lock();
    bench.redis.answer(bench.redis.sent("mutex renew").at(0), array({number(1)}));
    REQUIRE(bench.redis.wait_for("mutex give up", 2));
    CHECK(bench.redis.sent("mutex give up").at(1).argument(0) == bench.owner(1));
    CHECK(bench.lock.valid_until() > Clock::now());
    CHECK_FALSE(unlock(bench));
    CHECK(bench.redis.sent("mutex release").back().argument(0) == bench.owner(2));
}

// --- queries --------------------------------------------------------------------------------------------------

TEST_CASE("is_locked(), is_held() and hold_count() compare the value of the key") {
    Bench bench;
    CHECK_FALSE(bench.lock.is_locked());
    CHECK_FALSE(bench.lock.is_held());
    CHECK(bench.redis.history() == Sorts{"GET"});
    bench.redis.next("GET", text("somebody else's"));
    CHECK(bench.lock.is_locked());

    bench.lock.lock();
    bench.redis.next("GET", text(bench.value()));
    CHECK(bench.lock.hold_count() == 1);
    bench.redis.next("GET", text(bench.value() + "1"));
    CHECK_FALSE(bench.lock.is_held());
    CHECK_FALSE(bench.lock.is_held());
    bench.redis.next("GET", error("WRONGTYPE Operation against a key holding the wrong kind of value"));
    CHECK(code_of([&] { bench.lock.is_held(); }) == errc::wrong_type);
    bench.redis.next("GET", number(1));
    CHECK(code_of([&] { bench.lock.is_locked(); }) == errc::protocol_error);
    CHECK_FALSE(unlock(bench));
}

TEST_CASE("remaining_lease() is one query, and force_unlock() releases the value that it has read") {
    Bench bench;
    CHECK(bench.lock.remaining_lease() == std::nullopt);
    bench.redis.next("mutex remaining lease", number(1234));
    CHECK(bench.lock.remaining_lease() == 1234ms);
    bench.redis.next("mutex remaining lease", number(-1));
    CHECK(bench.lock.remaining_lease() == Milliseconds::max());
    CHECK_FALSE(bench.lock.force_unlock());
    CHECK(bench.redis.count("mutex give up") == 0);
    bench.redis.next("GET", text("somebody's value"));
    CHECK(bench.lock.force_unlock());
    const SentCommand forced = bench.redis.sent("mutex give up").at(0);
    CHECK(forced.key(0) == "orders");
    CHECK(forced.argument(0) == "somebody's value");
    CHECK(forced.argument_count() == 1);
}
