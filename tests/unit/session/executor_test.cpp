// SPDX-License-Identifier: MIT
// Executor and ServerTime: sending a call, again if need be, and counting what is sent. No thread of the library runs.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdint>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "support/scripted_transport.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

struct Fixture {
    ScriptedRedis redis;
    const ClientOptions options{.command_timeout = 50ms};
    Counters counters;
    Events events{options};
    TransportPortOf<ScriptedTransport> transport{redis.transport()};
    Executor executor{transport, options, counters, events};
    ServerTime server_time{executor, options};

    Call call{digested<scripts::rlock_remaining_lease>, {"orders"}, {}};

    Instant soon() const { return Clock::now() + 10s; }

    Reply retry(const std::stop_token& stop = {}, bool one_try = false) {
        Retry retry = executor.retry({soon(), stop, one_try});
        Reply reply;
        do {
            resends.push_back(retry.is_resend());
            reply = executor.call(call, retry.deadline());
        } while (retry.again(reply));
        return reply;
    }
    std::vector<bool> resends;
};

}  // namespace

TEST_CASE("a script that the server does not know is sent as text") {
    Fixture fixture;
    fixture.redis.next("remaining lease", error("NOSCRIPT No matching script"));
    fixture.redis.next("remaining lease", number(7));
    CHECK(fixture.executor.call(fixture.call, fixture.soon()).integer == 7);
    const auto sent = fixture.redis.sent("remaining lease");
    REQUIRE(sent.size() == 2);
    CHECK_FALSE(sent[0].by_text());
    CHECK(sent[1].by_text());
    CHECK(fixture.counters.commands.value() == 2);
    CHECK(fixture.counters.resends.value() == 0);
}

TEST_CASE("a call is repeated until it is answered, and knows which try may have taken effect") {
    Fixture fixture;
    fixture.redis.next("remaining lease", error("BUSY a script is running"));
    fixture.redis.next("remaining lease", lost());
    fixture.redis.next("remaining lease", error("LOADING"));
    CHECK(fixture.retry().answered());
    CHECK(fixture.resends == std::vector<bool>{false, false, true, true});
    CHECK(fixture.counters.resends.value() == 3);
}

TEST_CASE("a final refusal is not repeated, and a temporary one is not for a caller with one try") {
    Fixture fixture;
    fixture.redis.next("remaining lease", error("WRONGTYPE not a hash"));
    CHECK(fixture.retry().is_error());
    fixture.redis.next("remaining lease", error("BUSY a script is running"));
    CHECK(fixture.retry({}, true).is_error());
    CHECK(fixture.resends.size() == 2);
}

TEST_CASE("a stop request ends the retries") {
    Fixture fixture;
    fixture.redis.always("remaining lease", lost());
    std::stop_source stop;
    stop.request_stop();
    CHECK(fixture.retry(stop.get_token()).kind == Reply::Kind::unanswered);
    CHECK(fixture.resends.size() == 1);
}

TEST_CASE("a connection that ended puts the server's clock in doubt") {
    Fixture fixture;
    const Instant now = Clock::now();
    fixture.executor.clock().learn(0, SendTime(now), now, 1'000);
    fixture.redis.next("remaining lease", lost());
    CHECK(fixture.retry().answered());
    CHECK_FALSE(fixture.executor.clock().at(0, now));
}

TEST_CASE("the server's time is queried once") {
    Fixture fixture;
    fixture.redis.next("TIME", array({text("100"), text("0")}));
    Reply failure;
    const auto first = fixture.server_time.now("orders", fixture.soon(), failure);
    REQUIRE(first);
    CHECK(*first >= 100'001);
    CHECK(fixture.server_time.now("orders", fixture.soon(), failure));
    CHECK(fixture.redis.count("TIME") == 1);
    CHECK(fixture.server_time.wanted_until("orders") >= 100'051);
}

TEST_CASE("without the server's time there is a reason, and nothing was sent") {
    Fixture fixture;
    fixture.redis.next("TIME", text("noon"));
    fixture.redis.next("TIME", lost());
    Reply failure;
    CHECK_FALSE(fixture.server_time.now("orders", fixture.soon(), failure));
    CHECK(failure.kind == Reply::Kind::malformed);
    CHECK_FALSE(fixture.server_time.now("orders", fixture.soon(), failure));
    CHECK(failure.kind == Reply::Kind::no_time);
}

TEST_CASE("a reply that came too late tells the server's time") {
    Fixture fixture;
    fixture.redis.next("TIME", array({text("100"), text("0")}));
    Reply failure;
    REQUIRE(fixture.server_time.now("orders", fixture.soon(), failure));
    CHECK_FALSE(fixture.server_time.learn_if_late("orders", SendTime(), number(1)));
    CHECK(fixture.server_time.learn_if_late("orders", SendTime(), ScriptedRedis::late(200'000)));
    CHECK(*fixture.server_time.now("orders", fixture.soon(), failure) >= 200'000);
    CHECK(fixture.redis.count("TIME") == 1);
}

TEST_CASE("after its end, the executor neither wakes the transport nor subscribes") {
    Fixture fixture;
    fixture.executor.subscribe("before", true);
    fixture.executor.end();
    CHECK(fixture.executor.has_ended());
    fixture.executor.subscribe("after", true);
    fixture.executor.subscribe("before", false);
    CHECK(fixture.redis.is_wanted("before"));
    CHECK_FALSE(fixture.redis.is_wanted("after"));
}

TEST_CASE("the end waits for the replies to posted commands") {
    PostsInFlight posts;
    CHECK(posts.wait_for_all(0ms));
    posts.begin();
    CHECK_FALSE(posts.wait_for_all(1ms));
    std::jthread other([&] { posts.finish(); });
    CHECK(posts.wait_for_all(10s));
}
