// SPDX-License-Identifier: MIT
// Barrier: its commands, and how those that wait take the replies.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

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

const std::string channel = "redlatch_barrier:{start}";

Reply arrived(std::int64_t phase, std::int64_t then) { return array({number(phase), text("born"), number(then)}); }
Reply seen(const std::string& phase, std::int64_t is_there = 1) {
    return array({text("born"), text(phase), number(is_there)});
}

struct Fixture {
    explicit Fixture(const ClientOptions& options = {})
        : client(redis.transport(), options), start(client, "start", 3) {
        redis.always("barrier arrive", arrived(7, 7));
        redis.always("barrier look", seen("7"));
        redis.always("barrier withdraw", array({text("born"), text("7")}));
    }

    ScriptedRedis redis;
    Client client;
    Barrier start;
};

}  // namespace

TEST_CASE("keys, channel and arguments of an arrival") {
    Fixture fixture;
    const Barrier::Arrival arrival = fixture.start.arrive();
    CHECK(arrival.phase() == 7);
    fixture.start.arrive_and_drop();
    const auto sent = fixture.redis.sent("barrier arrive");
    REQUIRE(sent.size() == 2);
    CHECK(sent[0].key(0) == "start");
    CHECK(sent[0].key(1) == "redlatch_barrier_requests:{start}:" + fixture.client.id());
    CHECK(sent[0].key(2) == "{start}:arrivals");
    CHECK(sent[0].key(3) == channel);
    CHECK(sent[0].argument(6) == "3");
    CHECK(sent[0].argument(7).size() == 16);
    CHECK(sent[0].argument(8) == "30000");
    CHECK(sent[0].argument(9) == "0");
    CHECK(sent[1].argument(7) != sent[0].argument(7));
    CHECK(sent[1].argument(9) == "1");
}

TEST_CASE("the last arrival of a phase goes on after one round trip") {
    Fixture fixture;
    fixture.redis.always("barrier arrive", arrived(7, 8));
    fixture.start.arrive_and_wait();
    Barrier::Arrival arrival = fixture.start.arrive();
    CHECK(fixture.start.wait_for(arrival, 0s));
    CHECK_FALSE(arrival);
    CHECK_FALSE(fixture.start.withdraw(fixture.start.arrive()));
    CHECK(fixture.redis.history() == std::vector<std::string>(3, "barrier arrive"));
}

TEST_CASE("the others go on when a message says that the phase has ended, and not before") {
    Fixture fixture;
    auto waiting = start([&] { fixture.start.arrive_and_wait(); });
    REQUIRE(fixture.redis.wait_for("barrier look", 2));  // once more when it has subscribed
    CHECK(fixture.redis.sent("barrier look").at(0).argument(0) ==
          fixture.redis.sent("barrier arrive").at(0).argument(7));
    REQUIRE(fixture.redis.publish(channel, "7"));
    REQUIRE(fixture.redis.wait_for("barrier look", 3));
    CHECK(waiting.wait_for(20ms) == std::future_status::timeout);
    // In the next phase the arrival is not there any more. That is no loss.
    fixture.redis.always("barrier look", seen("8", 0));
    REQUIRE(fixture.redis.publish(channel, "8"));
    waiting.get();
    CHECK(fixture.redis.count("barrier withdraw") == 0);
}

// Two threads of a process may be a phase apart. The message that ended the phase of the slower one came while that had asked
// and had not joined the queue yet. The faster one asked, for itself only, and both slept until the next slow query.
TEST_CASE("a phase that ends between the query of a caller and its wait is noticed, although another caller waits") {
    Fixture fixture;
    fixture.redis.always("barrier look", [](const SentCommand& command) {
        std::vector<Reply> reply{text("born"), text("7")};
        reply.resize(command.words.size() - 3 - command.key_count() + 2, number(1));
        return std::optional(array(std::move(reply)));
    });
    auto faster = start([&] { static_cast<void>(fixture.start.arrive_and_wait_for(20s)); });
    REQUIRE(fixture.redis.wait_for("barrier look", 2));
    fixture.redis.next("barrier arrive", arrived(6, 6));
    fixture.redis.next("barrier look", ScriptedRedis::hold_back);
    auto slower = start([&] { return fixture.start.arrive_and_wait_for(20s); });
    REQUIRE(fixture.redis.wait_for("barrier look", 3));
    const SentCommand held = fixture.redis.sent("barrier look").back();
    REQUIRE(fixture.redis.publish(channel, "7"));
    REQUIRE(fixture.redis.wait_for("barrier look", 4));
    const Stopwatch watch;
    fixture.redis.answer(held, seen("6"));
    CHECK(slower.get());
    CHECK(watch.within(4s));  // Without that it would be at least five seconds.
    fixture.redis.always("barrier look", seen("8", 0));
    REQUIRE(fixture.redis.publish(channel, "8"));
    faster.get();
}

TEST_CASE("an arrival that the server does not have any more is lost") {
    for (const Reply& reply :
         {seen("7", 0), array({nil(), nil(), number(0)}), array({text("another"), text("7"), number(0)}),
          array({text("another"), text("9"), number(0)})}) {
        Fixture fixture;
        fixture.redis.always("barrier look", reply);
        CHECK(code_of([&] { fixture.start.arrive_and_wait(); }) == errc::hold_lost);
        Barrier::Arrival arrival = fixture.start.arrive();
        std::error_code ec;
        fixture.start.wait(arrival, ec);
        CHECK(ec == errc::hold_lost);
        CHECK_FALSE(arrival);
    }
}

TEST_CASE("a timeout leaves an arrival to wait with again; arrive_and_wait_for() takes it back") {
    Fixture fixture;
    Barrier::Arrival arrival = fixture.start.arrive();
    CHECK_FALSE(fixture.start.wait_for(arrival, 10ms));
    CHECK(arrival);
    CHECK_FALSE(fixture.start.wait_until(arrival, std::chrono::steady_clock::now()));
    CHECK(fixture.redis.count("barrier withdraw") == 0);
    CHECK_FALSE(fixture.start.arrive_and_wait_for(10ms));
    CHECK(fixture.redis.count("barrier withdraw") == 1);
    // The phase may have ended meanwhile.
    fixture.redis.always("barrier withdraw", array({text("born"), text("8")}));
    CHECK(fixture.start.arrive_and_wait_for(10ms));
    CHECK_FALSE(fixture.start.withdraw(std::move(arrival)));
    CHECK_FALSE(arrival);
    CHECK(code_of([&] { fixture.start.wait(arrival); }) == errc::invalid_argument);
    CHECK(code_of([&] { fixture.start.withdraw(std::move(arrival)); }) == errc::invalid_argument);
}

TEST_CASE("a stop takes the arrival back; one that was requested before sends nothing") {
    Fixture fixture;
    std::stop_source stop;
    auto waiting = start([&] { return fixture.start.arrive_and_wait(stop.get_token()); });
    REQUIRE(fixture.redis.wait_for("barrier look", 2));
    stop.request_stop();
    CHECK_FALSE(waiting.get());
    CHECK(fixture.redis.count("barrier withdraw") == 1);
    const auto before = fixture.redis.history().size();
    CHECK_FALSE(fixture.start.arrive_and_wait(stop.get_token()));
    CHECK(fixture.redis.history().size() == before);
}

TEST_CASE("an arrival of unknown outcome is called off, and one whose wait fails is taken back") {
    Fixture fixture({.command_timeout = 20ms, .unreachable_timeout = 60ms});
    fixture.redis.always("barrier arrive", lost());
    CHECK(code_of([&] { static_cast<void>(fixture.start.arrive()); }) == errc::unreachable);
    REQUIRE(fixture.redis.wait_for("barrier call off", 1));
    const SentCommand sent = fixture.redis.sent("barrier arrive").at(0);
    const SentCommand off = fixture.redis.sent("barrier call off").at(0);
    CHECK(off.argument(0) == sent.argument(0));
    CHECK(off.argument(1) == sent.argument(1));
    CHECK(off.argument(5) == sent.argument(7));
    fixture.redis.always("barrier arrive", arrived(7, 7));
    fixture.redis.always("barrier look", error("NOPERM no"));
    CHECK(code_of([&] { fixture.start.arrive_and_wait(); }) == errc::rejected);
    REQUIRE(fixture.redis.wait_for("barrier withdraw", 1));
    CHECK(fixture.redis.sent("barrier withdraw").at(0).argument(0) ==
          fixture.redis.sent("barrier arrive").back().argument(7));
}

TEST_CASE("an arrival that could not be taken back at the deadline is taken back later") {
    Fixture fixture({.command_timeout = 20ms, .unreachable_timeout = 60ms});
    fixture.redis.always("barrier withdraw", lost());
    CHECK(code_of([&] { static_cast<void>(fixture.start.arrive_and_wait_for(10ms)); }) == errc::unreachable);
    fixture.redis.always("barrier withdraw", array({text("born"), text("7")}));
    CHECK(eventually([&] {
        for (const SentCommand& sent : fixture.redis.sent("barrier withdraw"))
            if (sent.posted) return true;
        return false;
    }));
}

TEST_CASE("arrivals are renewed until the server does not have them any more") {
    Fixture fixture({.watchdog_timeout = 300ms});
    static_cast<void>(fixture.start.arrive());
    REQUIRE(fixture.redis.wait_for("renew permits", 2));
    CHECK(fixture.redis.sent("renew permits").at(0).key(0) == "{start}:arrivals");
    CHECK(fixture.redis.sent("renew permits").at(0).argument(0) == "300");
    auto waiting = start([&] { return code_of([&] { fixture.start.arrive_and_wait(); }); });
    REQUIRE(fixture.redis.wait_for("barrier look", 2));
    // A renewal that is refused makes the caller look at once.
    fixture.redis.always("barrier look", seen("7", 0));
    fixture.redis.always("renew permits", [](const SentCommand& command) {
        return std::optional(array(std::vector<Reply>(command.words.size() - 3 - command.key_count() - 2, number(0))));
    });
    CHECK(waiting.get() == errc::hold_lost);
    const auto renewals = fixture.redis.count("renew permits");
    CHECK_FALSE(eventually([&] { return fixture.redis.count("renew permits") > renewals + 1; }, 400ms));
}

TEST_CASE("another number of parties, and what cannot work, is refused") {
    Fixture fixture;
    fixture.redis.always("barrier arrive", array({number(0), text("born"), number(5)}));
    CHECK(code_of([&] { static_cast<void>(fixture.start.arrive()); }) == errc::invalid_argument);
    for (const std::ptrdiff_t parties : {std::ptrdiff_t(0), std::ptrdiff_t(-1), Barrier::max() + 1})
        CHECK(code_of([&] { Barrier(fixture.client, "start", parties); }) == errc::invalid_argument);
    CHECK(code_of([&] { Barrier(fixture.client, "", 2); }) == errc::invalid_argument);
}

TEST_CASE("malformed replies are errors") {
    Fixture fixture;
    for (const Reply& reply : {nil(), number(1), array({}), array({text("born"), text("7")}),
                               array({number(1), text("7"), number(1)}), array({text("born"), text("7"), nil()})}) {
        fixture.redis.next("barrier look", reply);
        CHECK(code_of([&] { fixture.start.arrive_and_wait(); }) == errc::protocol_error);
    }
    for (const Reply& reply : {nil(), number(1), array({number(7)}), array({text("7"), text("born"), number(7)})}) {
        fixture.redis.next("barrier arrive", reply);
        CHECK(code_of([&] { static_cast<void>(fixture.start.arrive()); }) == errc::protocol_error);
    }
}
