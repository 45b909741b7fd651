// SPDX-License-Identifier: MIT
// Releasing and querying an RLock, with a server that replies late, malformed, or not at all.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "support/scripted_transport.hpp"
#include "support/start.hpp"
#include "support/wait.hpp"
#include "support/without_grants.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

using Sorts = std::vector<std::string>;

struct Bench {
    explicit Bench(ClientOptions options = {})
        : client(redis.transport(), without_grants(heard(std::move(options)))), lock(client, "orders") {}

    ClientOptions heard(ClientOptions options) {
        options.on_event = [this](const Event& event) {
            const std::lock_guard guard(mutex);
            events.push_back(event);
        };
        return options;
    }

    std::string owner(std::uint64_t number = 1) const { return client.id() + ":" + std::to_string(number); }

    bool wait_for_event(Event::Kind kind) {
        return eventually([&] {
            const std::lock_guard guard(mutex);
            return std::any_of(events.begin(), events.end(), [&](const Event& e) { return e.kind == kind; });
        });
    }

    std::mutex mutex;
    std::vector<Event> events;
    ScriptedRedis redis;
    Client client;
    RLock lock;
};

std::error_code unlock(Bench& bench) {
    std::error_code ec = errc::unsupported;
    bench.lock.unlock(ec);
    return ec;
}

ClientOptions impatient() { return {.command_timeout = 20ms, .unreachable_timeout = 60ms}; }

}  // namespace

// A second copy of a release may arrive at any time, even while the same thread holds the lock again by any object.
TEST_CASE("a late release ends no later hold: each hold has its own number, whatever object acquired it") {
    ScriptedRedis redis;
    Client client(redis.transport(), without_grants());
    for (int i = 0; i < 2; ++i) {
        RLock lock(client, "orders");
        lock.lock();
        redis.next("release", lost());
        lock.unlock();
    }
    const auto sent = redis.sent("release");
    REQUIRE(sent.size() == 4);
    CHECK(sent[0].argument(0) == client.id() + ":1");
    CHECK(sent[1].words == sent[0].words);
    CHECK(sent[2].argument(0) == client.id() + ":2");
    CHECK(sent[3].words == sent[2].words);
}

TEST_CASE("a release is one command with the lock, its channel, and the number of the hold") {
    Bench bench;
    for (int i = 0; i < 2; ++i) {
        bench.lock.lock();
        CHECK_FALSE(unlock(bench));
    }
    const auto sent = bench.redis.sent("release");
    REQUIRE(sent.size() == 2);
    CHECK(sent[0].words.size() == 9);
    CHECK(sent[0].key(0) == "orders");
    CHECK(sent[0].key(1) == "redisson_lock__channel:{orders}");
    CHECK(sent[0].argument(0) == bench.owner(1));
    CHECK(sent[1].argument(0) == bench.owner(2));
    CHECK(sent[0].argument(1) == "0");
    CHECK(sent[0].argument(3) == "PUBLISH");
    CHECK(bench.redis.count("renew") == 0);
    CHECK(bench.redis.count("give up") == 0);
}

TEST_CASE("a release whose reply is lost is resent unchanged") {
    Bench bench;
    bench.lock.lock();
    bench.redis.next("release", lost());
    bench.redis.next("release", lost());
    CHECK_FALSE(unlock(bench));
    const auto sent = bench.redis.sent("release");
    REQUIRE(sent.size() == 3);
    CHECK(sent[1].words == sent[0].words);
    CHECK(sent[2].words == sent[0].words);
}

TEST_CASE("a resent release that finds no hold is a success") {
    Bench bench;
    bench.lock.lock();
    bench.redis.next("release", lost());
    bench.redis.next("release", nil());
    CHECK_FALSE(unlock(bench));
    CHECK(bench.client.stats().lost_holds == 0);
}

TEST_CASE("a hold that the server no longer knows: unlock() reports hold_lost, a guard does not throw") {
    Bench bench;
    bench.redis.always("release", nil());
    bench.lock.lock();
    CHECK(unlock(bench) == errc::hold_lost);
    { const std::lock_guard guard(bench.lock); }
    CHECK(bench.client.stats().lost_holds == 2);
    REQUIRE(bench.wait_for_event(Event::Kind::hold_lost));
    const std::lock_guard guard(bench.mutex);
    CHECK(bench.events[0].name == "orders");
}

TEST_CASE("a thread that never acquired the lock cannot release it") {
    Bench bench;
    CHECK_THROWS_AS(bench.lock.unlock(), Error);
    CHECK(unlock(bench) == errc::not_owner);
    bench.lock.lock();
    std::thread([&] {
        CHECK(unlock(bench) == errc::not_owner);
        CHECK_THROWS_AS(bench.lock.unlock(), Error);
    }).join();
    CHECK(bench.redis.count("release") == 0);
    CHECK_FALSE(unlock(bench));
    CHECK(unlock(bench) == errc::not_owner);
    CHECK(bench.redis.count("release") == 1);
}

TEST_CASE("a release without a reply continues in the background, and the caller does not wait for it") {
    Bench bench(impatient());
    bench.lock.lock();
    bench.redis.always("release", ScriptedRedis::hold_back);
    const Stopwatch watch;
    CHECK(unlock(bench) == errc::unreachable);
    CHECK(watch.elapsed() < 10s);
    CHECK(bench.lock.valid_until() == Instant::min());
    REQUIRE(bench.redis.wait_for("give up"));
    const SentCommand posted = bench.redis.sent("give up").at(0);
    CHECK(posted.posted);
    CHECK(posted.argument(2) == bench.owner(1));

    // A copy of it cannot end the next hold of this thread, which has another number. So no thread waits for the reply.
    CHECK(bench.lock.try_lock());
    CHECK(bench.redis.sent("acquire").back().argument(0) == bench.owner(2));
    bench.redis.answer(posted, number(ScriptedRedis::server_now()));
    REQUIRE(bench.redis.publish("until the background has seen the answer"));
    CHECK(bench.lock.valid_until() > Clock::now());
    bench.redis.always("release", number(0));
    CHECK_FALSE(unlock(bench));
    CHECK(bench.redis.count("give up") == 1);
}

TEST_CASE("a release not delivered before its lease is over is reported and dropped") {
    Bench bench({.command_timeout = 5ms});
    bench.lock.lock(Lease(1500ms));
    bench.redis.always("release", lost());
    bench.redis.always("give up", lost());
    CHECK(unlock(bench) == errc::unreachable);
    CHECK(bench.lock.try_lock());
    REQUIRE(bench.wait_for_event(Event::Kind::unlock_not_delivered));
    const std::size_t given_up = bench.redis.count("give up");
    CHECK(given_up >= 1);
    for (const SentCommand& one : bench.redis.sent("give up")) CHECK(one.argument(2) == bench.owner(1));
    CHECK_FALSE(eventually([&] { return bench.redis.count("give up") > given_up; }, 100ms));
    bench.redis.always("release", number(0));
    CHECK_FALSE(unlock(bench));
    CHECK(bench.client.stats().lost_holds == 0);
}

// Such a release counted as still in flight, so no thread of this process asked for the lock again.
TEST_CASE("unlock() without memory returns an error code, and the lock can be acquired again") {
    struct NoMemory : std::exception {};
    Bench bench;
    bench.lock.lock();
    bench.redis.next("release", error("BUSY Redis is busy running a script."));
    // Not std::bad_alloc, which makes the command count as not sent. A pause could throw this.
    bench.redis.next("release", [](const SentCommand&) -> std::optional<Reply> { throw NoMemory(); });
    CHECK(unlock(bench) == errc::unreachable);
    REQUIRE(bench.redis.wait_for("give up"));
    CHECK(bench.redis.sent("give up").at(0).argument(2) == bench.owner(1));
    // This comes before any further unlock(), which would also end the earlier release.
    CHECK(start([&] {
              const bool held = bench.lock.try_lock_for(5s);
              if (held) bench.lock.unlock();
              return held;
          }).get());
    CHECK(bench.lock.try_lock());
    CHECK_FALSE(unlock(bench));
}

TEST_CASE("a release that the server refuses temporarily is resent unchanged until it is accepted") {
    for (const char* trouble :
         {"MISCONF Redis is configured to save RDB snapshots", "NOREPLICAS Not enough good replicas to write.",
          "BUSY Redis is busy running a script.", "LOADING Redis is loading the dataset in memory"}) {
        Bench bench;
        bench.lock.lock();
        bench.redis.next("release", error(trouble));
        bench.redis.next("release", error(trouble));
        CHECK_FALSE(unlock(bench));
        const auto sent = bench.redis.sent("release");
        REQUIRE(sent.size() == 3);
        CHECK(sent[2].words == sent[0].words);
        CHECK(bench.redis.count("give up") == 0);
    }
}

TEST_CASE("a release without permission is reported at once, and delivered when the server permits it again") {
    Bench bench;
    bench.lock.lock();
    const auto denied = error("WRONGPASS invalid username-password pair or user is disabled.");
    bench.redis.always("release", denied);
    bench.redis.always("give up", denied);
    CHECK(unlock(bench) == errc::rejected);
    REQUIRE(bench.redis.wait_for("give up", 3));
    bench.redis.always("give up", number(1'700'000'000'000));
    const auto sent = bench.redis.count("give up");
    REQUIRE(bench.redis.wait_for("give up", sent + 1));
    CHECK(bench.client.stats().lost_holds == 0);
    // Nor does the next hold of this thread wait for it.
    bench.redis.always("release", number(0));
    CHECK(bench.lock.try_lock());
    CHECK_FALSE(unlock(bench));
}

TEST_CASE("a malformed reply to a release is reported by code only, and the hold is released in the background") {
    for (const Reply& reply : {text("OK"), number(-2), array({}), array({number(0)}), malformed()}) {
        Bench bench;
        bench.lock.lock();
        bench.redis.next("release", reply);
        CHECK(unlock(bench) == errc::protocol_error);
        CHECK(bench.lock.valid_until() == Instant::min());
        REQUIRE(bench.redis.wait_for("give up"));
        CHECK(bench.redis.sent("give up").at(0).argument(2) == bench.owner());

        CHECK(bench.lock.try_lock());
        bench.redis.next("release", reply);
        CHECK_NOTHROW(bench.lock.unlock());
    }
}

TEST_CASE("a release refused for good is a lost hold, and the event's detail is escaped and shortened") {
    Bench bench;
    bench.lock.lock();
    bench.redis.next("release", error("WRONGTYPE \x1b[31m\r\n" + std::string(100'000, 'x')));
    CHECK(unlock(bench) == errc::wrong_type);
    REQUIRE(bench.wait_for_event(Event::Kind::hold_lost));
    CHECK(bench.redis.count("release") == 1);
    const std::lock_guard guard(bench.mutex);
    CHECK(bench.events[0].detail.find("WRONGTYPE") != std::string::npos);
    CHECK(bench.events[0].detail.find('\x1b') == std::string::npos);
    CHECK(bench.events[0].detail.find('\n') == std::string::npos);
    CHECK(bench.events[0].detail.size() < 1000);
}

TEST_CASE("releasing one of several levels sends the remaining count") {
    Bench bench;
    bench.lock.lock();
    bench.lock.lock();
    CHECK_FALSE(unlock(bench));
    const auto sent = bench.redis.sent("release");
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].argument(1) == "1");
    CHECK(sent[0].argument(2) == "30000");
    CHECK(bench.lock.valid_until() > Clock::now());
    CHECK_FALSE(unlock(bench));
}

TEST_CASE("releasing one level renews a watched hold only, never one with a lease") {
    Bench bench;
    bench.lock.lock(Lease(10s));
    bench.lock.lock(Lease(20s));
    const Instant valid = bench.lock.valid_until();
    CHECK_FALSE(unlock(bench));
    CHECK(bench.redis.sent("release").at(0).argument(2) == "0");
    CHECK(bench.lock.valid_until() == valid);
    CHECK_FALSE(unlock(bench));
}

TEST_CASE("a level whose release got no reply is corrected by the next command of that hold") {
    Bench bench(impatient());
    bench.lock.lock();
    bench.lock.lock();
    bench.redis.always("release", lost());
    CHECK(unlock(bench) == errc::unreachable);
    CHECK(bench.lock.valid_until() > Clock::now());
    bench.redis.always("release", number(0));
    bench.lock.lock();
    CHECK(bench.redis.sent("acquire").back().argument(1) == "2");
    bench.redis.next("release", number(-1));
    CHECK_FALSE(unlock(bench));
    CHECK_FALSE(unlock(bench));
    CHECK(bench.redis.sent("release").back().argument(1) == "0");
    CHECK(unlock(bench) == errc::not_owner);
}

TEST_CASE("releasing a level of a hold that the server no longer knows loses the levels below it, too") {
    for (const Reply& reply : {nil(), number(0), number(3)}) {
        Bench bench;
        bench.lock.lock();
        bench.lock.lock();
        const std::stop_token lost_token = bench.lock.lost();
        bench.redis.next("release", reply);
        CHECK(unlock(bench) == errc::hold_lost);
        CHECK(bench.lock.valid_until() == Instant::min());
        CHECK(eventually([&] { return lost_token.stop_requested(); }));
        CHECK(bench.wait_for_event(Event::Kind::hold_lost));
        CHECK(unlock(bench) == errc::hold_lost);
        CHECK(unlock(bench) == errc::not_owner);
        CHECK(bench.redis.count("release") == 1);
    }
}

TEST_CASE("a malformed reply to the release of a level is reported by code only, and the hold continues") {
    Bench bench;
    bench.lock.lock();
    bench.lock.lock();
    bench.redis.next("release", text("OK"));
    CHECK(unlock(bench) == errc::protocol_error);
    CHECK(bench.lock.valid_until() > Clock::now());
    bench.lock.lock();
    bench.redis.next("release", array({}));
    CHECK_NOTHROW(bench.lock.unlock());
    CHECK_FALSE(unlock(bench));
    CHECK(bench.redis.sent("release").back().argument(1) == "0");
}

TEST_CASE("unlock() after the end of the lease reports hold_lost") {
    Bench bench;
    bench.lock.lock(Lease(20ms));
    const std::stop_token lost_token = bench.lock.lost();
    CHECK(eventually([&] { return lost_token.stop_requested(); }));
    CHECK(bench.lock.valid_until() == Instant::min());
    CHECK(unlock(bench) == errc::hold_lost);
    CHECK(bench.wait_for_event(Event::Kind::hold_lost));
    CHECK(unlock(bench) == errc::not_owner);
    CHECK(bench.client.stats().lost_holds == 1);
}

// The hold of this thread is lost and the object that locked is destroyed, so the state of the lock is gone.
TEST_CASE("unlock() through another object reports the lost hold, too") {
    Bench bench;
    {
        RLock first(bench.client, "invoices");
        first.lock(Lease(20ms));
        first.lock(Lease(20ms));
        const std::stop_token lost_token = first.lost();
        REQUIRE(eventually([&] { return lost_token.stop_requested(); }));
    }
    RLock second(bench.client, "invoices");
    std::error_code ec;
    second.unlock(ec);
    CHECK(ec == errc::hold_lost);
    CHECK_NOTHROW(second.unlock());
    second.unlock(ec);
    CHECK(ec == errc::not_owner);
    CHECK(bench.redis.count("release") == 0);
}

TEST_CASE("lost levels are recorded by thread, kind of lock and key, up to a limit") {
    LostLevels levels;
    levels.add("rlock ", "orders", 1, 2);
    levels.add("mutex ", "orders", 1, 1);
    levels.add("rlock ", "orders", 1, 1);
    CHECK_FALSE(levels.take("rlock ", "orders", 2));
    CHECK_FALSE(levels.take("rlock ", "invoices", 1));
    for (int i = 0; i < 3; ++i) CHECK(levels.take("rlock ", "orders", 1));
    CHECK_FALSE(levels.take("rlock ", "orders", 1));
    CHECK(levels.take("mutex ", "orders", 1));
    CHECK_FALSE(levels.take("mutex ", "orders", 1));
    for (std::uint64_t owner = 0; owner <= LostLevels::most; ++owner) levels.add("rlock ", "many", owner, 1);
    CHECK_FALSE(levels.take("rlock ", "many", 0));
    CHECK(levels.take("rlock ", "many", 1));
    CHECK(levels.take("rlock ", "many", LostLevels::most));
}

TEST_CASE("force_unlock() names the holder that it has read, returns whether there was one, and ends local holds") {
    Bench bench;
    bench.lock.lock();
    const std::stop_token lost_token = bench.lock.lost();
    bench.redis.next("HKEYS", array({text("somebody:7")}));
    CHECK(bench.lock.force_unlock());
    CHECK(bench.redis.sent("HKEYS").at(0).words == std::vector<std::string>{"HKEYS", "orders"});
    const auto sent = bench.redis.sent("give up");
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].key(0) == "orders");
    CHECK(sent[0].key(1) == "redisson_lock__channel:{orders}");
    CHECK(sent[0].argument(0) == "PUBLISH");
    CHECK(sent[0].argument(2) == "somebody:7");
    CHECK(sent[0].argument_count() == 3);
    CHECK(eventually([&] { return lost_token.stop_requested(); }));
    CHECK(unlock(bench) == errc::hold_lost);

    // Without a holder there is no second command.
    CHECK_FALSE(bench.lock.force_unlock());
    CHECK(bench.redis.count("give up") == 1);
}

// A copy of a command that names no holder would end the next hold.
TEST_CASE("resent commands of force_unlock() name the same holder") {
    Bench bench;
    bench.redis.next("HKEYS", lost());
    bench.redis.next("HKEYS", array({text("somebody:7")}));
    bench.redis.always("HKEYS", array({text("the next one:8")}));
    bench.redis.next("give up", lost());
    bench.redis.next("give up", error("LOADING Redis is loading the dataset in memory"));
    CHECK(bench.lock.force_unlock());
    const auto sent = bench.redis.sent("give up");
    REQUIRE(sent.size() == 3);
    CHECK(sent[0].argument(2) == "somebody:7");
    CHECK(sent[1].words == sent[0].words);
    CHECK(sent[2].words == sent[0].words);
}

// The first sending had no reply, a resend got the hold, and the hold was lost while the first could still arrive. Such
// a copy blocked the lock for a whole lease.
TEST_CASE("a lost hold is released if a copy of its acquire command may still arrive") {
    Bench bench(impatient());
    bench.redis.next("acquire", lost());
    bench.lock.lock();
    bench.redis.next("HKEYS", array({text("somebody:7")}));
    CHECK(bench.lock.force_unlock());
    REQUIRE(bench.redis.wait_for("give up", 2));
    const SentCommand late = bench.redis.sent("give up").at(1);
    CHECK(late.argument(2) == bench.owner());
    CHECK(late.posted);
    CHECK(unlock(bench) == errc::hold_lost);
}

TEST_CASE("force_unlock() does not end a local hold that was acquired after its query") {
    Bench bench;
    bench.redis.next("HKEYS", [&](const SentCommand&) {
        bench.lock.lock();
        return std::optional(array({text("somebody:7")}));
    });
    CHECK(bench.lock.force_unlock());
    CHECK(bench.lock.valid_until() > Clock::now());
    CHECK(bench.client.stats().lost_holds == 0);
}

TEST_CASE("force_unlock() reports errors, and then leaves local holds alone") {
    Bench bench(impatient());
    bench.lock.lock();
    std::error_code ec;
    bench.redis.next("HKEYS", error("NOPERM x"));
    CHECK_FALSE(bench.lock.force_unlock(ec));
    CHECK(ec == errc::rejected);
    for (const Reply& senseless : {number(1), array({number(1)})}) {
        bench.redis.next("HKEYS", senseless);
        CHECK_FALSE(bench.lock.force_unlock(ec));
        CHECK(ec == errc::protocol_error);
    }
    bench.redis.next("HKEYS", array({text("mode"), text("somebody:7")}));
    CHECK_FALSE(bench.lock.force_unlock(ec));
    CHECK(ec == errc::wrong_type);
    bench.redis.always("HKEYS", array({text("somebody:7")}));
    bench.redis.next("give up", text("OK"));
    CHECK_FALSE(bench.lock.force_unlock(ec));
    CHECK(ec == errc::protocol_error);
    bench.redis.always("give up", lost());
    CHECK_FALSE(bench.lock.force_unlock(ec));
    CHECK(ec == errc::unreachable);
    CHECK(bench.lock.valid_until() > Clock::now());
    CHECK_FALSE(unlock(bench));
}

TEST_CASE("is_locked() asks the server") {
    Bench bench;
    bench.redis.next("HLEN", number(1));
    CHECK(bench.lock.is_locked());
    CHECK_FALSE(bench.lock.is_locked());
    CHECK(bench.redis.sent("HLEN").at(0).words == std::vector<std::string>{"HLEN", "orders"});
    bench.redis.next("HLEN", lost());
    bench.redis.next("HLEN", error("LOADING Redis is loading the dataset in memory"));
    bench.redis.next("HLEN", number(1));
    CHECK(bench.lock.is_locked());
}

TEST_CASE("hold_count() and is_held() ask the server") {
    Bench bench;
    bench.lock.lock();
    bench.redis.next("HGET", text("3"));
    CHECK(bench.lock.hold_count() == 3);
    CHECK(bench.lock.hold_count() == 0);
    CHECK_FALSE(bench.lock.is_held());
    bench.redis.next("HGET", text("1"));
    CHECK(bench.lock.is_held());
    CHECK(bench.redis.sent("HGET").at(0).words == std::vector<std::string>{"HGET", "orders", bench.owner()});
}

TEST_CASE("remaining_lease() is one query") {
    Bench bench;
    CHECK(bench.lock.remaining_lease() == std::nullopt);
    bench.redis.next("remaining lease", number(1234));
    CHECK(bench.lock.remaining_lease() == 1234ms);
    bench.redis.next("remaining lease", number(0));
    CHECK(bench.lock.remaining_lease() == 0ms);
    bench.redis.next("remaining lease", number(-1));
    CHECK(bench.lock.remaining_lease() == Milliseconds::max());
    bench.redis.next("remaining lease", number(-2));
    CHECK(bench.lock.remaining_lease() == std::nullopt);
    CHECK(bench.redis.history() == Sorts(5, "remaining lease"));
}

TEST_CASE("a malformed reply to a query is an error") {
    const auto code_of = [](auto&& call) {
        try {
            static_cast<void>(call());
            return std::error_code();
        } catch (const Error& e) {
            CHECK(e.name() == "orders");
            return e.code();
        }
    };
    for (const Reply& reply : {nil(), text("1"), array({number(1)}), number(-1), malformed()}) {
        CAPTURE(static_cast<int>(reply.kind));
        Bench bench;
        bench.redis.next("HLEN", reply);
        CHECK(code_of([&] { return bench.lock.is_locked(); }) == errc::protocol_error);
    }
    for (const Reply& reply :
         {number(1), text("abc"), text(""), text("1x"), text("99999999999"), text("-1"), array({}), malformed()}) {
        CAPTURE(reply.text);
        Bench bench;
        bench.redis.next("HGET", reply);
        CHECK(code_of([&] { return bench.lock.hold_count(); }) == errc::protocol_error);
    }
    for (const Reply& reply : {nil(), text("5"), number(-3), array({}), malformed()}) {
        CAPTURE(static_cast<int>(reply.kind));
        Bench bench;
        bench.redis.next("remaining lease", reply);
        CHECK(code_of([&] { return bench.lock.remaining_lease(); }) == errc::protocol_error);
    }
    Bench bench;
    for (const char* sort : {"HLEN", "HGET"}) bench.redis.next(sort, error("WRONGTYPE x"));
    std::error_code ec;
    CHECK_FALSE(bench.lock.is_locked(ec));
    CHECK(ec == errc::wrong_type);
    CHECK(bench.lock.hold_count(ec) == 0);
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(bench.lock.is_held(ec));
    CHECK_FALSE(ec);
}

TEST_CASE("the destructor of a hold and an assignment to it post the release, and do not wait for the reply") {
    Bench bench;
    bench.redis.always("release", ScriptedRedis::hold_back);
    {
        Hold hold = bench.lock.hold();
        hold = bench.lock.hold();
        CHECK(bench.redis.count("release") == 1);
    }
    const auto sent = bench.redis.sent("release");
    REQUIRE(sent.size() == 2);
    for (const SentCommand& one : sent) {
        CHECK(one.posted);
        bench.redis.answer(one, number(0));
    }
    CHECK(sent[0].argument(0) == bench.owner(1));
    CHECK(sent[1].argument(0) == bench.owner(2));
}
