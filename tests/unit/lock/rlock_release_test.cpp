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

struct Fixture {
    explicit Fixture(ClientOptions options = {})
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

std::error_code unlock(Fixture& fixture) {
    std::error_code ec = errc::unsupported;
    fixture.lock.unlock(ec);
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
    Fixture fixture;
    for (int i = 0; i < 2; ++i) {
        fixture.lock.lock();
        CHECK_FALSE(unlock(fixture));
    }
    const auto sent = fixture.redis.sent("release");
    REQUIRE(sent.size() == 2);
    CHECK(sent[0].words.size() == 9);
    CHECK(sent[0].key(0) == "orders");
    CHECK(sent[0].key(1) == "redisson_lock__channel:{orders}");
    CHECK(sent[0].argument(0) == fixture.owner(1));
    CHECK(sent[1].argument(0) == fixture.owner(2));
    CHECK(sent[0].argument(1) == "0");
    CHECK(sent[0].argument(3) == "PUBLISH");
    CHECK(fixture.redis.count("renew") == 0);
    CHECK(fixture.redis.count("give up") == 0);
}

TEST_CASE("a release whose reply is lost is resent unchanged") {
    Fixture fixture;
    fixture.lock.lock();
    fixture.redis.next("release", lost());
    fixture.redis.next("release", lost());
    CHECK_FALSE(unlock(fixture));
    const auto sent = fixture.redis.sent("release");
    REQUIRE(sent.size() == 3);
    CHECK(sent[1].words == sent[0].words);
    CHECK(sent[2].words == sent[0].words);
}

TEST_CASE("a resent release that finds no hold is a success") {
    Fixture fixture;
    fixture.lock.lock();
    fixture.redis.next("release", lost());
    fixture.redis.next("release", nil());
    CHECK_FALSE(unlock(fixture));
    CHECK(fixture.client.stats().lost_holds == 0);
}

TEST_CASE("a hold that the server no longer knows: unlock() reports hold_lost, a guard does not throw") {
    Fixture fixture;
    fixture.redis.always("release", nil());
    fixture.lock.lock();
    CHECK(unlock(fixture) == errc::hold_lost);
    { const std::lock_guard guard(fixture.lock); }
    CHECK(fixture.client.stats().lost_holds == 2);
    REQUIRE(fixture.wait_for_event(Event::Kind::hold_lost));
    const std::lock_guard guard(fixture.mutex);
    CHECK(fixture.events[0].name == "orders");
}

TEST_CASE("a thread that never acquired the lock cannot release it") {
    Fixture fixture;
    CHECK_THROWS_AS(fixture.lock.unlock(), Error);
    CHECK(unlock(fixture) == errc::not_owner);
    fixture.lock.lock();
    std::thread([&] {
        CHECK(unlock(fixture) == errc::not_owner);
        CHECK_THROWS_AS(fixture.lock.unlock(), Error);
    }).join();
    CHECK(fixture.redis.count("release") == 0);
    CHECK_FALSE(unlock(fixture));
    CHECK(unlock(fixture) == errc::not_owner);
    CHECK(fixture.redis.count("release") == 1);
}

TEST_CASE("a release without a reply continues in the background, and the caller does not wait for it") {
    Fixture fixture(impatient());
    fixture.lock.lock();
    fixture.redis.always("release", ScriptedRedis::hold_back);
    const Stopwatch watch;
    CHECK(unlock(fixture) == errc::unreachable);
    CHECK(watch.elapsed() < 10s);
    CHECK(fixture.lock.valid_until() == Instant::min());
    REQUIRE(fixture.redis.wait_for("give up"));
    const SentCommand posted = fixture.redis.sent("give up").at(0);
    CHECK(posted.posted);
    CHECK(posted.argument(2) == fixture.owner(1));

    // A copy of it cannot end the next hold of this thread, which has another number. So no thread waits for the reply.
    CHECK(fixture.lock.try_lock());
    CHECK(fixture.redis.sent("acquire").back().argument(0) == fixture.owner(2));
    fixture.redis.answer(posted, number(ScriptedRedis::server_now()));
    REQUIRE(fixture.redis.publish("until the background has seen the answer"));
    CHECK(fixture.lock.valid_until() > Clock::now());
    fixture.redis.always("release", number(0));
    CHECK_FALSE(unlock(fixture));
    CHECK(fixture.redis.count("give up") == 1);
}

TEST_CASE("a release not delivered before its lease is over is reported and dropped") {
    Fixture fixture({.command_timeout = 5ms});
    fixture.lock.lock(Lease(1500ms));
    fixture.redis.always("release", lost());
    fixture.redis.always("give up", lost());
    CHECK(unlock(fixture) == errc::unreachable);
    CHECK(fixture.lock.try_lock());
    REQUIRE(fixture.wait_for_event(Event::Kind::unlock_not_delivered));
    const std::size_t given_up = fixture.redis.count("give up");
    CHECK(given_up >= 1);
    for (const SentCommand& one : fixture.redis.sent("give up")) CHECK(one.argument(2) == fixture.owner(1));
    CHECK_FALSE(eventually([&] { return fixture.redis.count("give up") > given_up; }, 100ms));
    fixture.redis.always("release", number(0));
    CHECK_FALSE(unlock(fixture));
    CHECK(fixture.client.stats().lost_holds == 0);
}

// Such a release counted as still in flight, so no thread of this process asked for the lock again.
TEST_CASE("unlock() without memory returns an error code, and the lock can be acquired again") {
    struct NoMemory : std::exception {};
    Fixture fixture;
    fixture.lock.lock();
    fixture.redis.next("release", error("BUSY Redis is busy running a script."));
    // Not std::bad_alloc, which makes the command count as not sent. A pause could throw this.
    fixture.redis.next("release", [](const SentCommand&) -> std::optional<Reply> { throw NoMemory(); });
    CHECK(unlock(fixture) == errc::unreachable);
    REQUIRE(fixture.redis.wait_for("give up"));
    CHECK(fixture.redis.sent("give up").at(0).argument(2) == fixture.owner(1));
    // This comes before any further unlock(), which would also end the earlier release.
    CHECK(start([&] {
              const bool held = fixture.lock.try_lock_for(5s);
              if (held) fixture.lock.unlock();
              return held;
          }).get());
    CHECK(fixture.lock.try_lock());
    CHECK_FALSE(unlock(fixture));
}

TEST_CASE("a release that the server refuses temporarily is resent unchanged until it is accepted") {
    for (const char* trouble :
         {"MISCONF Redis is configured to save RDB snapshots", "NOREPLICAS Not enough good replicas to write.",
          "BUSY Redis is busy running a script.", "LOADING Redis is loading the dataset in memory"}) {
        Fixture fixture;
        fixture.lock.lock();
        fixture.redis.next("release", error(trouble));
        fixture.redis.next("release", error(trouble));
        CHECK_FALSE(unlock(fixture));
        const auto sent = fixture.redis.sent("release");
        REQUIRE(sent.size() == 3);
        CHECK(sent[2].words == sent[0].words);
        CHECK(fixture.redis.count("give up") == 0);
    }
}

TEST_CASE("a release without permission is reported at once, and delivered when the server permits it again") {
    Fixture fixture;
    fixture.lock.lock();
    const auto denied = error("WRONGPASS invalid username-password pair or user is disabled.");
    fixture.redis.always("release", denied);
    fixture.redis.always("give up", denied);
    CHECK(unlock(fixture) == errc::rejected);
    REQUIRE(fixture.redis.wait_for("give up", 3));
    fixture.redis.always("give up", number(1'700'000'000'000));
    const auto sent = fixture.redis.count("give up");
    REQUIRE(fixture.redis.wait_for("give up", sent + 1));
    CHECK(fixture.client.stats().lost_holds == 0);
    // Nor does the next hold of this thread wait for it.
    fixture.redis.always("release", number(0));
    CHECK(fixture.lock.try_lock());
    CHECK_FALSE(unlock(fixture));
}

TEST_CASE("a malformed reply to a release is reported by code only, and the hold is released in the background") {
    for (const Reply& reply : {text("OK"), number(-2), array({}), array({number(0)}), malformed()}) {
        Fixture fixture;
        fixture.lock.lock();
        fixture.redis.next("release", reply);
        CHECK(unlock(fixture) == errc::protocol_error);
        CHECK(fixture.lock.valid_until() == Instant::min());
        REQUIRE(fixture.redis.wait_for("give up"));
        CHECK(fixture.redis.sent("give up").at(0).argument(2) == fixture.owner());

        CHECK(fixture.lock.try_lock());
        fixture.redis.next("release", reply);
        CHECK_NOTHROW(fixture.lock.unlock());
    }
}

TEST_CASE("a release refused for good is a lost hold, and the event's detail is escaped and shortened") {
    Fixture fixture;
    fixture.lock.lock();
    fixture.redis.next("release", error("WRONGTYPE \x1b[31m\r\n" + std::string(100'000, 'x')));
    CHECK(unlock(fixture) == errc::wrong_type);
    REQUIRE(fixture.wait_for_event(Event::Kind::hold_lost));
    CHECK(fixture.redis.count("release") == 1);
    const std::lock_guard guard(fixture.mutex);
    CHECK(fixture.events[0].detail.find("WRONGTYPE") != std::string::npos);
    CHECK(fixture.events[0].detail.find('\x1b') == std::string::npos);
    CHECK(fixture.events[0].detail.find('\n') == std::string::npos);
    CHECK(fixture.events[0].detail.size() < 1000);
}

TEST_CASE("releasing one of several levels sends the remaining count") {
    Fixture fixture;
    fixture.lock.lock();
    fixture.lock.lock();
    CHECK_FALSE(unlock(fixture));
    const auto sent = fixture.redis.sent("release");
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].argument(1) == "1");
    CHECK(sent[0].argument(2) == "30000");
    CHECK(fixture.lock.valid_until() > Clock::now());
    CHECK_FALSE(unlock(fixture));
}

TEST_CASE("releasing one level renews a watched hold only, never one with a lease") {
    Fixture fixture;
    fixture.lock.lock(Lease(10s));
    fixture.lock.lock(Lease(20s));
    const Instant valid = fixture.lock.valid_until();
    CHECK_FALSE(unlock(fixture));
    CHECK(fixture.redis.sent("release").at(0).argument(2) == "0");
    CHECK(fixture.lock.valid_until() == valid);
    CHECK_FALSE(unlock(fixture));
}

TEST_CASE("a level whose release got no reply is corrected by the next command of that hold") {
    Fixture fixture(impatient());
    fixture.lock.lock();
    fixture.lock.lock();
    fixture.redis.always("release", lost());
    CHECK(unlock(fixture) == errc::unreachable);
    CHECK(fixture.lock.valid_until() > Clock::now());
    fixture.redis.always("release", number(0));
    fixture.lock.lock();
    CHECK(fixture.redis.sent("acquire").back().argument(1) == "2");
    fixture.redis.next("release", number(-1));
    CHECK_FALSE(unlock(fixture));
    CHECK_FALSE(unlock(fixture));
    CHECK(fixture.redis.sent("release").back().argument(1) == "0");
    CHECK(unlock(fixture) == errc::not_owner);
}

TEST_CASE("releasing a level of a hold that the server no longer knows loses the levels below it, too") {
    for (const Reply& reply : {nil(), number(0), number(3)}) {
        Fixture fixture;
        fixture.lock.lock();
        fixture.lock.lock();
        const std::stop_token lost_token = fixture.lock.lost();
        fixture.redis.next("release", reply);
        CHECK(unlock(fixture) == errc::hold_lost);
        CHECK(fixture.lock.valid_until() == Instant::min());
        CHECK(eventually([&] { return lost_token.stop_requested(); }));
        CHECK(fixture.wait_for_event(Event::Kind::hold_lost));
        CHECK(unlock(fixture) == errc::hold_lost);
        CHECK(unlock(fixture) == errc::not_owner);
        CHECK(fixture.redis.count("release") == 1);
    }
}

TEST_CASE("a malformed reply to the release of a level is reported by code only, and the hold continues") {
    Fixture fixture;
    fixture.lock.lock();
    fixture.lock.lock();
    fixture.redis.next("release", text("OK"));
    CHECK(unlock(fixture) == errc::protocol_error);
    CHECK(fixture.lock.valid_until() > Clock::now());
    fixture.lock.lock();
    fixture.redis.next("release", array({}));
    CHECK_NOTHROW(fixture.lock.unlock());
    CHECK_FALSE(unlock(fixture));
    CHECK(fixture.redis.sent("release").back().argument(1) == "0");
}

TEST_CASE("unlock() after the end of the lease reports hold_lost") {
    Fixture fixture;
    fixture.lock.lock(Lease(20ms));
    const std::stop_token lost_token = fixture.lock.lost();
    CHECK(eventually([&] { return lost_token.stop_requested(); }));
    CHECK(fixture.lock.valid_until() == Instant::min());
    CHECK(unlock(fixture) == errc::hold_lost);
    CHECK(fixture.wait_for_event(Event::Kind::hold_lost));
    CHECK(unlock(fixture) == errc::not_owner);
    CHECK(fixture.client.stats().lost_holds == 1);
}

// The hold of this thread is lost and the object that locked is destroyed, so the state of the lock is gone.
TEST_CASE("unlock() through another object reports the lost hold, too") {
    Fixture fixture;
    {
        RLock first(fixture.client, "invoices");
        first.lock(Lease(20ms));
        first.lock(Lease(20ms));
        const std::stop_token lost_token = first.lost();
        REQUIRE(eventually([&] { return lost_token.stop_requested(); }));
    }
    RLock second(fixture.client, "invoices");
    std::error_code ec;
    second.unlock(ec);
    CHECK(ec == errc::hold_lost);
    CHECK_NOTHROW(second.unlock());
    second.unlock(ec);
    CHECK(ec == errc::not_owner);
    CHECK(fixture.redis.count("release") == 0);
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
    Fixture fixture;
    fixture.lock.lock();
    const std::stop_token lost_token = fixture.lock.lost();
    fixture.redis.next("HKEYS", array({text("somebody:7")}));
    CHECK(fixture.lock.force_unlock());
    CHECK(fixture.redis.sent("HKEYS").at(0).words == std::vector<std::string>{"HKEYS", "orders"});
    const auto sent = fixture.redis.sent("give up");
    REQUIRE(sent.size() == 1);
    CHECK(sent[0].key(0) == "orders");
    CHECK(sent[0].key(1) == "redisson_lock__channel:{orders}");
    CHECK(sent[0].argument(0) == "PUBLISH");
    CHECK(sent[0].argument(2) == "somebody:7");
    CHECK(sent[0].argument_count() == 3);
    CHECK(eventually([&] { return lost_token.stop_requested(); }));
    CHECK(unlock(fixture) == errc::hold_lost);

    // Without a holder there is no second command.
    CHECK_FALSE(fixture.lock.force_unlock());
    CHECK(fixture.redis.count("give up") == 1);
}

// A copy of a command that names no holder would end the next hold.
TEST_CASE("resent commands of force_unlock() name the same holder") {
    Fixture fixture;
    fixture.redis.next("HKEYS", lost());
    fixture.redis.next("HKEYS", array({text("somebody:7")}));
    fixture.redis.always("HKEYS", array({text("the next one:8")}));
    fixture.redis.next("give up", lost());
    fixture.redis.next("give up", error("LOADING Redis is loading the dataset in memory"));
    CHECK(fixture.lock.force_unlock());
    const auto sent = fixture.redis.sent("give up");
    REQUIRE(sent.size() == 3);
    CHECK(sent[0].argument(2) == "somebody:7");
    CHECK(sent[1].words == sent[0].words);
    CHECK(sent[2].words == sent[0].words);
}

// The first sending had no reply, a resend got the hold, and the hold was lost while the first could still arrive. Such
// a copy blocked the lock for a whole lease.
TEST_CASE("a lost hold is released if a copy of its acquire command may still arrive") {
    Fixture fixture(impatient());
    fixture.redis.next("acquire", lost());
    fixture.lock.lock();
    fixture.redis.next("HKEYS", array({text("somebody:7")}));
    CHECK(fixture.lock.force_unlock());
    REQUIRE(fixture.redis.wait_for("give up", 2));
    const SentCommand late = fixture.redis.sent("give up").at(1);
    CHECK(late.argument(2) == fixture.owner());
    CHECK(late.posted);
    CHECK(unlock(fixture) == errc::hold_lost);
}

TEST_CASE("force_unlock() does not end a local hold that was acquired after its query") {
    Fixture fixture;
    fixture.redis.next("HKEYS", [&](const SentCommand&) {
        fixture.lock.lock();
        return std::optional(array({text("somebody:7")}));
    });
    CHECK(fixture.lock.force_unlock());
    CHECK(fixture.lock.valid_until() > Clock::now());
    CHECK(fixture.client.stats().lost_holds == 0);
}

TEST_CASE("force_unlock() reports errors, and then leaves local holds alone") {
    Fixture fixture(impatient());
    fixture.lock.lock();
    std::error_code ec;
    fixture.redis.next("HKEYS", error("NOPERM x"));
    CHECK_FALSE(fixture.lock.force_unlock(ec));
    CHECK(ec == errc::rejected);
    for (const Reply& senseless : {number(1), array({number(1)})}) {
        fixture.redis.next("HKEYS", senseless);
        CHECK_FALSE(fixture.lock.force_unlock(ec));
        CHECK(ec == errc::protocol_error);
    }
    fixture.redis.next("HKEYS", array({text("mode"), text("somebody:7")}));
    CHECK_FALSE(fixture.lock.force_unlock(ec));
    CHECK(ec == errc::wrong_type);
    fixture.redis.always("HKEYS", array({text("somebody:7")}));
    fixture.redis.next("give up", text("OK"));
    CHECK_FALSE(fixture.lock.force_unlock(ec));
    CHECK(ec == errc::protocol_error);
    fixture.redis.always("give up", lost());
    CHECK_FALSE(fixture.lock.force_unlock(ec));
    CHECK(ec == errc::unreachable);
    CHECK(fixture.lock.valid_until() > Clock::now());
    CHECK_FALSE(unlock(fixture));
}

TEST_CASE("is_locked() asks the server") {
    Fixture fixture;
    fixture.redis.next("HLEN", number(1));
    CHECK(fixture.lock.is_locked());
    CHECK_FALSE(fixture.lock.is_locked());
    CHECK(fixture.redis.sent("HLEN").at(0).words == std::vector<std::string>{"HLEN", "orders"});
    fixture.redis.next("HLEN", lost());
    fixture.redis.next("HLEN", error("LOADING Redis is loading the dataset in memory"));
    fixture.redis.next("HLEN", number(1));
    CHECK(fixture.lock.is_locked());
}

TEST_CASE("hold_count() and is_held() ask the server") {
    Fixture fixture;
    fixture.lock.lock();
    fixture.redis.next("HGET", text("3"));
    CHECK(fixture.lock.hold_count() == 3);
    CHECK(fixture.lock.hold_count() == 0);
    CHECK_FALSE(fixture.lock.is_held());
    fixture.redis.next("HGET", text("1"));
    CHECK(fixture.lock.is_held());
    CHECK(fixture.redis.sent("HGET").at(0).words == std::vector<std::string>{"HGET", "orders", fixture.owner()});
}

TEST_CASE("remaining_lease() is one query") {
    Fixture fixture;
    CHECK(fixture.lock.remaining_lease() == std::nullopt);
    fixture.redis.next("remaining lease", number(1234));
    CHECK(fixture.lock.remaining_lease() == 1234ms);
    fixture.redis.next("remaining lease", number(0));
    CHECK(fixture.lock.remaining_lease() == 0ms);
    fixture.redis.next("remaining lease", number(-1));
    CHECK(fixture.lock.remaining_lease() == Milliseconds::max());
    fixture.redis.next("remaining lease", number(-2));
    CHECK(fixture.lock.remaining_lease() == std::nullopt);
    CHECK(fixture.redis.history() == Sorts(5, "remaining lease"));
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
        Fixture fixture;
        fixture.redis.next("HLEN", reply);
        CHECK(code_of([&] { return fixture.lock.is_locked(); }) == errc::protocol_error);
    }
    for (const Reply& reply :
         {number(1), text("abc"), text(""), text("1x"), text("99999999999"), text("-1"), array({}), malformed()}) {
        CAPTURE(reply.text);
        Fixture fixture;
        fixture.redis.next("HGET", reply);
        CHECK(code_of([&] { return fixture.lock.hold_count(); }) == errc::protocol_error);
    }
    for (const Reply& reply : {nil(), text("5"), number(-3), array({}), malformed()}) {
        CAPTURE(static_cast<int>(reply.kind));
        Fixture fixture;
        fixture.redis.next("remaining lease", reply);
        CHECK(code_of([&] { return fixture.lock.remaining_lease(); }) == errc::protocol_error);
    }
    Fixture fixture;
    for (const char* sort : {"HLEN", "HGET"}) fixture.redis.next(sort, error("WRONGTYPE x"));
    std::error_code ec;
    CHECK_FALSE(fixture.lock.is_locked(ec));
    CHECK(ec == errc::wrong_type);
    CHECK(fixture.lock.hold_count(ec) == 0);
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(fixture.lock.is_held(ec));
    CHECK_FALSE(ec);
}

TEST_CASE("the destructor of a hold and an assignment to it post the release, and do not wait for the reply") {
    Fixture fixture;
    fixture.redis.always("release", ScriptedRedis::hold_back);
    {
        Hold hold = fixture.lock.hold();
        hold = fixture.lock.hold();
        CHECK(fixture.redis.count("release") == 1);
    }
    const auto sent = fixture.redis.sent("release");
    REQUIRE(sent.size() == 2);
    for (const SentCommand& one : sent) {
        CHECK(one.posted);
        fixture.redis.answer(one, number(0));
    }
    CHECK(sent[0].argument(0) == fixture.owner(1));
    CHECK(sent[1].argument(0) == fixture.owner(2));
}
