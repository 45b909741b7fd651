// SPDX-License-Identifier: MIT
// wait_release(): what is asked when, in each order of events.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdint>
#include <future>
#include <stop_token>
#include <string>
#include <system_error>

#include "support/scripted_transport.hpp"
#include "support/start.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

const std::string channel = "redisson_lock__channel:{orders}";

// The reply to inspect() while this owner holds the lock.
Reply held_by(const std::string& owner, std::int64_t lease = 100'000) {
    return array({number(lease), array({text(owner), text("1")}), nil()});
}
Reply is_free() { return array({number(-2), array({}), nil()}); }

struct Fixture {
    Fixture() { redis.confirm_by_hand(); }

    std::future<bool> wait() {
        return start([this] { return orders.wait_release_for(1h); });
    }

    // Begins to wait for the hold of `owner`, until the subscription is confirmed and the second look is over.
    std::future<bool> wait_for(const std::string& owner) {
        redis.next("inspect", held_by(owner));
        auto waiting = wait();
        REQUIRE(redis.wait_until_wanted(channel));
        redis.next("inspect", held_by(owner));
        REQUIRE(redis.confirm(channel));
        REQUIRE(redis.wait_for("inspect", 2));
        return waiting;
    }

    // Answers the look that was sent as number `which`, counted from 0.
    void answer(std::size_t which, const Reply& reply) { redis.answer(redis.sent("inspect").at(which), reply); }

    ScriptedRedis redis{};
    Client client{redis.transport()};
    RLock orders{client, "orders"};
};

bool ends(std::future<bool>& waiting) { return waiting.wait_for(10s) == std::future_status::ready && waiting.get(); }
bool waits(const std::future<bool>& waiting) { return waiting.wait_for(50ms) == std::future_status::timeout; }

}  // namespace

TEST_CASE("it looks, subscribes, and looks again, because the release may have come in between") {
    Fixture fixture;
    fixture.redis.next("inspect", held_by("a"));
    auto waiting = fixture.wait();
    REQUIRE(fixture.redis.wait_until_wanted(channel));
    CHECK(waits(waiting));
    CHECK(fixture.redis.count("inspect") == 1);
    fixture.redis.next("inspect", is_free());
    REQUIRE(fixture.redis.confirm(channel));
    CHECK(ends(waiting));
    CHECK(fixture.redis.count("inspect") == 2);
}

TEST_CASE("a message makes it look; it goes on waiting for the same hold, and ends when that is gone") {
    Fixture fixture;
    auto waiting = fixture.wait_for("a");
    fixture.redis.next("inspect", held_by("a"));
    REQUIRE(fixture.redis.publish(channel, "nonsense"));
    REQUIRE(fixture.redis.wait_for("inspect", 3));
    CHECK(waits(waiting));
    fixture.redis.next("inspect", held_by("b"));
    REQUIRE(fixture.redis.publish(channel));
    CHECK(ends(waiting));
    CHECK(fixture.redis.count("inspect") == 4);
}

TEST_CASE("a lost connection does not make it look, a confirmed subscription does") {
    Fixture fixture;
    auto waiting = fixture.wait_for("a");
    REQUIRE(fixture.redis.disconnect());
    CHECK(waits(waiting));
    CHECK(fixture.redis.count("inspect") == 2);
    fixture.redis.next("inspect", is_free());
    REQUIRE(fixture.redis.confirm(channel));
    CHECK(ends(waiting));
}

TEST_CASE("it looks once when the lease that it saw is over") {
    Fixture fixture;
    fixture.redis.next("inspect", held_by("a", 100'000));
    auto waiting = fixture.wait();
    REQUIRE(fixture.redis.wait_until_wanted(channel));
    fixture.redis.next("inspect", held_by("a", 50));
    fixture.redis.next("inspect", held_by("a", 2000));
    REQUIRE(fixture.redis.confirm(channel));
    REQUIRE(fixture.redis.wait_for("inspect", 3));
    CHECK(waits(waiting));
    CHECK(fixture.redis.count("inspect") == 3);
    CHECK(ends(waiting));
    CHECK(fixture.redis.count("inspect") == 4);
    const auto looks = fixture.redis.sent("inspect");
    CHECK(looks[2].at - looks[1].at >= 50ms);
    CHECK(looks[3].at - looks[2].at >= 2s);
}

TEST_CASE("one look ends the waits of all whose hold is gone, and of no others") {
    Fixture fixture;
    fixture.redis.always("inspect", held_by("a"));
    auto first = fixture.wait_for("a");
    auto second = fixture.wait();
    REQUIRE(fixture.redis.wait_for("inspect", 3));
    REQUIRE(eventually([&] { return fixture.client.stats().waiting == 2; }));
    // A hold that only the third has seen.
    fixture.redis.always("inspect", held_by("b"));
    auto third = fixture.wait();
    REQUIRE(fixture.redis.wait_for("inspect", 4));
    REQUIRE(eventually([&] { return fixture.client.stats().waiting == 3; }));
    REQUIRE(fixture.redis.publish(channel));
    CHECK(ends(first));
    CHECK(ends(second));
    CHECK(waits(third));
    fixture.redis.always("inspect", is_free());
    REQUIRE(fixture.redis.publish(channel));
    CHECK(ends(third));
}

TEST_CASE("a look that began before another caller joined does not end its wait") {
    Fixture fixture;
    auto first = fixture.wait_for("a");
    fixture.redis.next("inspect", ScriptedRedis::hold_back);
    REQUIRE(fixture.redis.publish(channel));
    REQUIRE(fixture.redis.wait_for("inspect", 3));
    // The second finds a hold that is newer than what the first is about to be told.
    fixture.redis.next("inspect", held_by("b"));
    auto second = fixture.wait();
    REQUIRE(fixture.redis.wait_for("inspect", 4));
    REQUIRE(eventually([&] { return fixture.client.stats().waiting == 2; }));
    fixture.redis.always("inspect", held_by("b"));
    fixture.answer(2, is_free());
    CHECK(ends(first));
    CHECK(waits(second));
    fixture.redis.always("inspect", is_free());
    REQUIRE(fixture.redis.publish(channel));
    CHECK(ends(second));
}

// Looks on behalf of the queue do not count for a caller that is not in the queue yet.
TEST_CASE("a caller whose own look was overtaken by a message and another's look makes them look once more") {
    Fixture fixture;
    fixture.redis.always("inspect", held_by("a"));
    auto first = fixture.wait_for("a");
    fixture.redis.next("inspect", ScriptedRedis::hold_back);
    auto second = fixture.wait();
    REQUIRE(fixture.redis.wait_for("inspect", 3));
    // The release of "b", which the server had answered the second before.
    REQUIRE(fixture.redis.publish(channel));
    REQUIRE(fixture.redis.wait_for("inspect", 4));
    CHECK(waits(first));
    fixture.answer(2, held_by("b"));
    CHECK(ends(second));
    CHECK(waits(first));
    fixture.redis.always("inspect", is_free());
    REQUIRE(fixture.redis.publish(channel));
    CHECK(ends(first));
}

TEST_CASE("a look that the server refuses fails the wait") {
    Fixture fixture;
    auto waiting = fixture.wait_for("a");
    fixture.redis.next("inspect", error("NOPERM no"));
    REQUIRE(fixture.redis.publish(channel));
    CHECK_THROWS_AS(waiting.get(), Error);
}

TEST_CASE("a refused subscription fails the wait, and the next one subscribes again") {
    Fixture fixture;
    fixture.redis.always("inspect", held_by("a"));
    auto waiting = fixture.wait();
    REQUIRE(fixture.redis.wait_until_wanted(channel));
    REQUIRE(fixture.redis.refuse(channel, error("NOPERM no channel")));
    CHECK_THROWS_AS(waiting.get(), Error);
    auto next = fixture.wait();
    REQUIRE(fixture.redis.wait_until_wanted(channel));
    fixture.redis.always("inspect", is_free());
    REQUIRE(fixture.redis.confirm(channel));
    CHECK(ends(next));
}
