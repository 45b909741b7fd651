// SPDX-License-Identifier: MIT
// ConditionVariable: its commands, in what order they go with the lock, and how waiters take the replies.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <future>
#include <stop_token>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "support/code_of.hpp"
#include "support/scripted_transport.hpp"
#include "support/start.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

const std::string channel = "redlatch_condition:{changed}";

Reply seen(std::int64_t state) { return array({number(-1), number(state)}); }

// Counts, and tells when it is released and acquired.
struct CountingLock {
    void lock() { ++locks; }
    void unlock() {
        if (fails) throw Error(errc::not_owner, "lock", "not held");
        ++unlocks;
    }
    std::atomic<int> locks{0}, unlocks{0};
    bool fails = false;
};

struct Fixture {
    explicit Fixture(const ClientOptions& options = {})
        : client(redis.transport(), options), changed(client, "changed") {
        redis.always("condition look", seen(1));
        redis.always("condition leave", number(0));
    }

    ScriptedRedis redis;
    Client client;
    ConditionVariable changed;
    CountingLock lock;
};

}  // namespace

TEST_CASE("a waiter registers before it releases the lock, and acquires it again") {
    Fixture fixture;
    fixture.redis.next("condition register", [&](const SentCommand&) {
        CHECK(fixture.lock.unlocks == 0);
        return std::optional(number(1));
    });
    auto waiting = start([&] { fixture.changed.wait(fixture.lock); });
    REQUIRE(fixture.redis.wait_for("condition look", 2));  // once more when it has subscribed
    CHECK(fixture.lock.unlocks == 1);
    CHECK(fixture.lock.locks == 0);
    const SentCommand entered = fixture.redis.sent("condition register").at(0);
    CHECK(entered.key(0) == "changed");
    CHECK(entered.key(1) == "redlatch_condition_requests:{changed}:" + fixture.client.id());
    CHECK(entered.key(2) == "{changed}:leases");
    CHECK(entered.argument(5).size() == 16);
    CHECK(entered.argument(6) == "30000");
    CHECK(fixture.redis.sent("condition look").at(0).key(2) == channel);
    CHECK(fixture.redis.sent("condition look").at(0).argument(1) == entered.argument(5));
    // A message for another waiter.
    REQUIRE(fixture.redis.publish(channel, "1"));
    REQUIRE(fixture.redis.wait_for("condition look", 3));
    CHECK(waiting.wait_for(20ms) == std::future_status::timeout);
    fixture.redis.always("condition look", seen(2));
    REQUIRE(fixture.redis.publish(channel, "1"));
    waiting.get();
    CHECK(fixture.lock.locks == 1);
    // The server keeps the notification for others until it learns that this waiter has gone on.
    REQUIRE(fixture.redis.wait_for("condition leave", 1));
    CHECK(fixture.redis.sent("condition leave").at(0).argument(6) == entered.argument(5));
    CHECK(fixture.redis.sent("condition leave").at(0).argument(7) == "0");
}

TEST_CASE("a waiter that the server does not have any more goes on, and has nothing to tell") {
    Fixture fixture;
    fixture.redis.always("condition look", seen(0));
    fixture.changed.wait(fixture.lock);
    CHECK(fixture.changed.wait_for(fixture.lock, 10s));
    CHECK(fixture.lock.locks == 2);
    CHECK_FALSE(eventually([&] { return fixture.redis.count("condition leave") > 0; }, 100ms));
}

TEST_CASE("a waiter that gives up passes its notification on, or has it if nobody else waits") {
    Fixture fixture;
    for (const int outcome : {0, 1, 2, 3}) {
        CAPTURE(outcome);
        const bool notified = outcome == 1 || outcome == 3;
        fixture.redis.next("condition leave", number(outcome));
        CHECK(fixture.changed.wait_for(fixture.lock, 10ms) == notified);
        CHECK(fixture.redis.sent("condition leave").back().argument(7) == "1");
    }
    CHECK(fixture.lock.locks == 4);
    fixture.redis.next("condition leave", number(4));
    CHECK(code_of([&] { static_cast<void>(fixture.changed.wait_for(fixture.lock, 10ms)); }) == errc::protocol_error);
    CHECK(fixture.lock.locks == 5);
}

TEST_CASE("a stop ends the wait; one that was requested before sends nothing and keeps the lock") {
    Fixture fixture;
    std::stop_source stop;
    auto waiting = start([&] { return fixture.changed.wait(fixture.lock, stop.get_token()); });
    REQUIRE(fixture.redis.wait_for("condition look", 2));
    stop.request_stop();
    CHECK_FALSE(waiting.get());
    CHECK(fixture.lock.locks == 1);
    const auto before = fixture.redis.history().size();
    CHECK_FALSE(fixture.changed.wait(fixture.lock, stop.get_token()));
    CHECK_FALSE(fixture.changed.wait(
        fixture.lock, [] { return false; }, stop.get_token()));
    CHECK(fixture.redis.history().size() == before);
    CHECK(fixture.lock.unlocks == 1);
}

TEST_CASE("a predicate is asked first, and again after each notification") {
    Fixture fixture;
    fixture.changed.wait(fixture.lock, [] { return true; });
    CHECK(fixture.redis.history().empty());
    fixture.redis.always("condition look", seen(2));
    int asked = 0;
    fixture.changed.wait(fixture.lock, [&] { return ++asked == 4; });
    CHECK(asked == 4);
    CHECK(fixture.lock.locks == 3);
    fixture.redis.always("condition look", seen(1));
    CHECK_FALSE(fixture.changed.wait_for(fixture.lock, 10ms, [] { return false; }));
    CHECK_FALSE(
        fixture.changed.wait_until(fixture.lock, std::chrono::steady_clock::now() + 10ms, [] { return false; }));
    asked = 0;
    CHECK(fixture.changed.wait_for(fixture.lock, 10ms, [&] { return ++asked == 2; }));
}

TEST_CASE("a lock that is not held, a failed registration and a failed wait: nothing stays registered") {
    Fixture fixture({.command_timeout = 20ms, .unreachable_timeout = 60ms});
    fixture.lock.fails = true;
    CHECK(code_of([&] { fixture.changed.wait(fixture.lock); }) == errc::not_owner);
    REQUIRE(fixture.redis.wait_for("condition leave", 1));
    CHECK(fixture.redis.sent("condition leave").at(0).argument(7) == "1");
    CHECK(fixture.lock.locks == 0);
    fixture.lock.fails = false;
    fixture.redis.always("condition register", lost());
    CHECK(code_of([&] { fixture.changed.wait(fixture.lock); }) == errc::unreachable);
    CHECK(fixture.lock.unlocks == 0);
    REQUIRE(fixture.redis.wait_for("condition call off", 1));
    CHECK(fixture.redis.sent("condition call off").at(0).argument(6) ==
          fixture.redis.sent("condition register").back().argument(5));
    fixture.redis.always("condition register", number(1));
    fixture.redis.always("condition look", error("NOPERM no"));
    std::error_code ec;
    fixture.changed.wait(fixture.lock, ec);
    CHECK(ec == errc::rejected);
    CHECK(fixture.lock.locks == 1);
    CHECK(fixture.redis.wait_for("condition leave", 2));
}

TEST_CASE("notifications and malformed replies") {
    Fixture fixture;
    fixture.redis.next("condition notify", number(1));
    CHECK(fixture.changed.notify_one());
    CHECK(fixture.redis.sent("condition notify").at(0).argument(6) == "1");
    fixture.redis.next("condition notify", number(0));
    CHECK_FALSE(fixture.changed.notify_one());
    fixture.redis.next("condition notify", number(7));
    CHECK(fixture.changed.notify_all() == 7);
    CHECK(fixture.redis.sent("condition notify").at(2).argument(6) == "all");
    fixture.redis.always("condition notify", nil());
    CHECK(code_of([&] { fixture.changed.notify_one(); }) == errc::protocol_error);
    CHECK(code_of([&] { fixture.changed.notify_all(); }) == errc::protocol_error);
    for (const Reply& reply : {nil(), number(1), array({}), array({number(-1)}), seen(3), array({number(1), nil()})}) {
        fixture.redis.next("condition look", reply);
        CHECK(code_of([&] { fixture.changed.wait(fixture.lock); }) == errc::protocol_error);
    }
}
