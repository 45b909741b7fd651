// SPDX-License-Identifier: MIT
// CountDownLatch: its commands, and how its waiters handle the replies.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <future>
#include <string>
#include <system_error>
#include <vector>

#include "support/code_of.hpp"
#include "support/scripted_transport.hpp"
#include "support/start.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

const std::string channel = "redisson_countdownlatch__channel__{start}";

struct Fixture {
    explicit Fixture(const ClientOptions& options = {}) : client(redis.transport(), options), latch(client, "start") {}

    ScriptedRedis redis;
    Client client;
    CountDownLatch latch;
};

Reply count_of(const std::string& count, const Reply& round = nil()) { return array({text(count), round}); }

}  // namespace

TEST_CASE("keys and channel are derived from the latch's name") {
    Fixture fixture;
    fixture.latch.count_down(3);
    fixture.latch.wait();
    const SentCommand down = fixture.redis.sent("count down").at(0);
    CHECK(down.key(0) == "start");
    CHECK(down.key(1) == "redlatch_latch_requests:{start}:" + fixture.client.id());
    CHECK(down.key(2) == "redlatch_latch_round:{start}");
    CHECK(down.argument(5) == "3");
    CHECK(down.argument(6) == channel);
    CHECK(fixture.redis.sent("look").at(0).key(1) == "redlatch_latch_round:{start}");
    // The keys use the tag of the name. The channel has braces of its own, as in Redisson.
    CountDownLatch tagged(fixture.client, "{shop}start");
    tagged.reset();
    const SentCommand reset = fixture.redis.sent("count down").at(1);
    CHECK(reset.key(2) == "redlatch_latch_round:{shop}start");
    CHECK(reset.argument(5) == "all");
    CHECK(reset.argument(6) == "redisson_countdownlatch__channel__{{shop}start}");
}

TEST_CASE("a waiter returns when its round is over, not when it finds a count of the same round") {
    Fixture fixture;
    fixture.redis.always("look", count_of("5", text("first")));
    auto waiting = start([&] { return fixture.latch.wait_for(10s); });
    REQUIRE(fixture.redis.wait_for("look", 2));
    REQUIRE(fixture.redis.publish(channel, "1"));
    REQUIRE(fixture.redis.wait_for("look", 3));
    // The record of the round may expire while the round lasts.
    fixture.redis.always("look", count_of("4"));
    REQUIRE(fixture.redis.publish(channel, "0"));
    REQUIRE(fixture.redis.wait_for("look", 4));
    CHECK(waiting.wait_for(20ms) == std::future_status::timeout);
    fixture.redis.always("look", count_of("4", text("second")));
    REQUIRE(fixture.redis.publish(channel, "0"));
    CHECK(waiting.get());
}

TEST_CASE("a later waiter waits for the round that it finds") {
    Fixture fixture;
    fixture.redis.always("look", count_of("1", text("first")));
    auto early = start([&] { return fixture.latch.wait_for(10s); });
    REQUIRE(fixture.redis.wait_for("look", 2));
    fixture.redis.always("look", count_of("1", text("second")));
    auto late = start([&] { return fixture.latch.wait_for(10s); });
    REQUIRE(eventually([&] { return fixture.client.stats().waits == 2; }));
    REQUIRE(fixture.redis.publish(channel, "0"));
    CHECK(early.get());
    CHECK(late.wait_for(20ms) == std::future_status::timeout);
    fixture.redis.always("look", count_of("1", text("third")));
    REQUIRE(fixture.redis.publish(channel, "0"));
    CHECK(late.get());
}

TEST_CASE("arrive_and_wait() waits for the round that it counted down") {
    Fixture fixture;
    fixture.redis.next("count down", array({number(2), text("first")}));
    fixture.redis.next("look", count_of("9", text("second")));
    fixture.latch.arrive_and_wait();
    CHECK(fixture.redis.history() == std::vector<std::string>{"count down", "look"});
    fixture.redis.next("count down", array({number(1), nil()}));
    fixture.latch.arrive_and_wait();
    CHECK(fixture.redis.history().size() == 3);
}

TEST_CASE("malformed replies are errors") {
    Fixture fixture;
    for (const Reply& reply : {nil(), number(1), array({}), array({text("1")}), array({text("1"), number(2)})}) {
        fixture.redis.next("look", reply);
        CHECK(code_of([&] { fixture.latch.wait(); }) == errc::protocol_error);
    }
    fixture.redis.next("count down", number(1));
    CHECK(code_of([&] { fixture.latch.count_down(); }) == errc::protocol_error);
    fixture.redis.next("set count", nil());
    CHECK(code_of([&] { fixture.latch.try_set_count(1); }) == errc::protocol_error);
}

TEST_CASE("a query takes nothing, so after an unknown outcome there is nothing to undo") {
    Fixture fixture({.command_timeout = 10s, .unreachable_timeout = 60ms});
    fixture.redis.always("look", lost());
    CHECK(code_of([&] { fixture.latch.wait(); }) == errc::unreachable);
    CHECK_FALSE(fixture.latch.wait_for(5ms));
    CHECK(fixture.redis.count("look") == fixture.redis.history().size());
}

TEST_CASE("a change of unknown outcome is voided") {
    Fixture fixture({.command_timeout = 20ms, .unreachable_timeout = 60ms});
    fixture.redis.always("set count", lost());
    CHECK(code_of([&] { fixture.latch.try_set_count(3); }) == errc::unreachable);
    REQUIRE(fixture.redis.wait_for("void", 1));
    const SentCommand set = fixture.redis.sent("set count").at(0);
    const SentCommand called_off = fixture.redis.sent("void").at(0);
    CHECK(called_off.key_count() == 1);
    CHECK(called_off.key(0) == set.key(1));
    CHECK(called_off.argument(0) == set.argument(0));
    CHECK(called_off.argument(1) == set.argument(1));
    // The next request has its own number.
    fixture.redis.always("set count", number(1));
    CHECK(fixture.latch.try_set_count(3));
    CHECK(fixture.redis.sent("set count").back().argument(1) != set.argument(1));

    // A request that was never sent needs no such command.
    fixture.redis.always("set count", unreachable());
    CHECK(code_of([&] { fixture.latch.try_set_count(3); }) == errc::unreachable);
    fixture.latch.count_down();
    CHECK(fixture.redis.count("void") == 1);
}
