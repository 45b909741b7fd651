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

struct Bench {
    Bench() { redis.confirm_by_hand(); }

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
    Bench bench;
    bench.redis.next("inspect", held_by("a"));
    auto waiting = bench.wait();
    REQUIRE(bench.redis.wait_until_wanted(channel));
    CHECK(waits(waiting));
    CHECK(bench.redis.count("inspect") == 1);
    bench.redis.next("inspect", is_free());
    REQUIRE(bench.redis.confirm(channel));
    CHECK(ends(waiting));
    CHECK(bench.redis.count("inspect") == 2);
}

TEST_CASE("a message makes it look; it goes on waiting for the same hold, and ends when that is gone") {
    Bench bench;
    auto waiting = bench.wait_for("a");
    bench.redis.next("inspect", held_by("a"));
    REQUIRE(bench.redis.publish(channel, "nonsense"));
    REQUIRE(bench.redis.wait_for("inspect", 3));
    CHECK(waits(waiting));
    bench.redis.next("inspect", held_by("b"));
    REQUIRE(bench.redis.publish(channel));
    CHECK(ends(waiting));
    CHECK(bench.redis.count("inspect") == 4);
}

TEST_CASE("a lost connection does not make it look, a confirmed subscription does") {
    Bench bench;
    auto waiting = bench.wait_for("a");
    REQUIRE(bench.redis.disconnect());
    CHECK(waits(waiting));
    CHECK(bench.redis.count("inspect") == 2);
    bench.redis.next("inspect", is_free());
    REQUIRE(bench.redis.confirm(channel));
    CHECK(ends(waiting));
}

TEST_CASE("it looks once when the lease that it saw is over") {
    Bench bench;
    bench.redis.next("inspect", held_by("a", 100'000));
    auto waiting = bench.wait();
    REQUIRE(bench.redis.wait_until_wanted(channel));
    bench.redis.next("inspect", held_by("a", 50));
    bench.redis.next("inspect", held_by("a", 2000));
    REQUIRE(bench.redis.confirm(channel));
    REQUIRE(bench.redis.wait_for("inspect", 3));
    CHECK(waits(waiting));
    CHECK(bench.redis.count("inspect") == 3);
    CHECK(ends(waiting));
    CHECK(bench.redis.count("inspect") == 4);
    const auto looks = bench.redis.sent("inspect");
    CHECK(looks[2].at - looks[1].at >= 50ms);
    CHECK(looks[3].at - looks[2].at >= 2s);
}

TEST_CASE("one look ends the waits of all whose hold is gone, and of no others") {
    Bench bench;
    bench.redis.always("inspect", held_by("a"));
    auto first = bench.wait_for("a");
    auto second = bench.wait();
    REQUIRE(bench.redis.wait_for("inspect", 3));
    REQUIRE(eventually([&] { return bench.client.stats().waiting == 2; }));
    // A hold that only the third has seen.
    bench.redis.always("inspect", held_by("b"));
    auto third = bench.wait();
    REQUIRE(bench.redis.wait_for("inspect", 4));
    REQUIRE(eventually([&] { return bench.client.stats().waiting == 3; }));
    REQUIRE(bench.redis.publish(channel));
    CHECK(ends(first));
    CHECK(ends(second));
    CHECK(waits(third));
    bench.redis.always("inspect", is_free());
    REQUIRE(bench.redis.publish(channel));
    CHECK(ends(third));
}

TEST_CASE("a look that began before another caller joined does not end its wait") {
    Bench bench;
    auto first = bench.wait_for("a");
    bench.redis.next("inspect", ScriptedRedis::hold_back);
    REQUIRE(bench.redis.publish(channel));
    REQUIRE(bench.redis.wait_for("inspect", 3));
    // The second finds a hold that is newer than what the first is about to be told.
    bench.redis.next("inspect", held_by("b"));
    auto second = bench.wait();
    REQUIRE(bench.redis.wait_for("inspect", 4));
    REQUIRE(eventually([&] { return bench.client.stats().waiting == 2; }));
    bench.redis.always("inspect", held_by("b"));
    bench.answer(2, is_free());
    CHECK(ends(first));
    CHECK(waits(second));
    bench.redis.always("inspect", is_free());
    REQUIRE(bench.redis.publish(channel));
    CHECK(ends(second));
}

// Looks on behalf of the queue do not count for a caller that is not in the queue yet.
TEST_CASE("a caller whose own look was overtaken by a message and another's look makes them look once more") {
    Bench bench;
    bench.redis.always("inspect", held_by("a"));
    auto first = bench.wait_for("a");
    bench.redis.next("inspect", ScriptedRedis::hold_back);
    auto second = bench.wait();
    REQUIRE(bench.redis.wait_for("inspect", 3));
    // The release of "b", which the server had answered the second before.
    REQUIRE(bench.redis.publish(channel));
    REQUIRE(bench.redis.wait_for("inspect", 4));
    CHECK(waits(first));
    bench.answer(2, held_by("b"));
    CHECK(ends(second));
    CHECK(waits(first));
    bench.redis.always("inspect", is_free());
    REQUIRE(bench.redis.publish(channel));
    CHECK(ends(first));
}

TEST_CASE("a look that the server refuses fails the wait") {
    Bench bench;
    auto waiting = bench.wait_for("a");
    bench.redis.next("inspect", error("NOPERM no"));
    REQUIRE(bench.redis.publish(channel));
    CHECK_THROWS_AS(waiting.get(), Error);
}

TEST_CASE("a refused subscription fails the wait, and the next one subscribes again") {
    Bench bench;
    bench.redis.always("inspect", held_by("a"));
    auto waiting = bench.wait();
    REQUIRE(bench.redis.wait_until_wanted(channel));
    REQUIRE(bench.redis.refuse(channel, error("NOPERM no channel")));
    CHECK_THROWS_AS(waiting.get(), Error);
    auto next = bench.wait();
    REQUIRE(bench.redis.wait_until_wanted(channel));
    bench.redis.always("inspect", is_free());
    REQUIRE(bench.redis.confirm(channel));
    CHECK(ends(next));
}
