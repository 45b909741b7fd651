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

struct Bench {
    explicit Bench(const ClientOptions& options = {}) : client(redis.transport(), options), start(client, "start", 3) {
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
    Bench bench;
    const Barrier::Arrival arrival = bench.start.arrive();
    CHECK(arrival.phase() == 7);
    bench.start.arrive_and_drop();
    const auto sent = bench.redis.sent("barrier arrive");
    REQUIRE(sent.size() == 2);
    CHECK(sent[0].key(0) == "start");
    CHECK(sent[0].key(1) == "redlatch_barrier_requests:{start}:" + bench.client.id());
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
    Bench bench;
    bench.redis.always("barrier arrive", arrived(7, 8));
    bench.start.arrive_and_wait();
    Barrier::Arrival arrival = bench.start.arrive();
    CHECK(bench.start.wait_for(arrival, 0s));
    CHECK_FALSE(arrival);
    CHECK_FALSE(bench.start.withdraw(bench.start.arrive()));
    CHECK(bench.redis.history() == std::vector<std::string>(3, "barrier arrive"));
}

TEST_CASE("the others go on when a message says that the phase has ended, and not before") {
    Bench bench;
    auto waiting = start([&] { bench.start.arrive_and_wait(); });
    REQUIRE(bench.redis.wait_for("barrier look", 2));  // once more when it has subscribed
    CHECK(bench.redis.sent("barrier look").at(0).argument(0) == bench.redis.sent("barrier arrive").at(0).argument(7));
    REQUIRE(bench.redis.publish(channel, "7"));
    REQUIRE(bench.redis.wait_for("barrier look", 3));
    CHECK(waiting.wait_for(20ms) == std::future_status::timeout);
    // In the next phase the arrival is not there any more. That is no loss.
    bench.redis.always("barrier look", seen("8", 0));
    REQUIRE(bench.redis.publish(channel, "8"));
    waiting.get();
    CHECK(bench.redis.count("barrier withdraw") == 0);
}

// Two threads of a process may be a phase apart. The message that ended the phase of the slower one came while that had asked
// and had not joined the queue yet. The faster one asked, for itself only, and both slept until the next slow query.
TEST_CASE("a phase that ends between the query of a caller and its wait is noticed, although another caller waits") {
    Bench bench;
    bench.redis.always("barrier look", [](const SentCommand& command) {
        std::vector<Reply> reply{text("born"), text("7")};
        reply.resize(command.words.size() - 3 - command.key_count() + 2, number(1));
        return std::optional(array(std::move(reply)));
    });
    auto faster = start([&] { static_cast<void>(bench.start.arrive_and_wait_for(20s)); });
    REQUIRE(bench.redis.wait_for("barrier look", 2));
    bench.redis.next("barrier arrive", arrived(6, 6));
    bench.redis.next("barrier look", ScriptedRedis::hold_back);
    auto slower = start([&] { return bench.start.arrive_and_wait_for(20s); });
    REQUIRE(bench.redis.wait_for("barrier look", 3));
    const SentCommand held = bench.redis.sent("barrier look").back();
    REQUIRE(bench.redis.publish(channel, "7"));
    REQUIRE(bench.redis.wait_for("barrier look", 4));
    const Stopwatch watch;
    bench.redis.answer(held, seen("6"));
    CHECK(slower.get());
    CHECK(watch.within(4s));  // Without that it would be at least five seconds.
    bench.redis.always("barrier look", seen("8", 0));
    REQUIRE(bench.redis.publish(channel, "8"));
    faster.get();
}

TEST_CASE("an arrival that the server does not have any more is lost") {
    for (const Reply& reply :
         {seen("7", 0), array({nil(), nil(), number(0)}), array({text("another"), text("7"), number(0)}),
          array({text("another"), text("9"), number(0)})}) {
        Bench bench;
        bench.redis.always("barrier look", reply);
        CHECK(code_of([&] { bench.start.arrive_and_wait(); }) == errc::hold_lost);
        Barrier::Arrival arrival = bench.start.arrive();
        std::error_code ec;
        bench.start.wait(arrival, ec);
        CHECK(ec == errc::hold_lost);
        CHECK_FALSE(arrival);
    }
}

TEST_CASE("a timeout leaves an arrival to wait with again; arrive_and_wait_for() takes it back") {
    Bench bench;
    Barrier::Arrival arrival = bench.start.arrive();
    CHECK_FALSE(bench.start.wait_for(arrival, 10ms));
    CHECK(arrival);
    CHECK_FALSE(bench.start.wait_until(arrival, std::chrono::steady_clock::now()));
    CHECK(bench.redis.count("barrier withdraw") == 0);
    CHECK_FALSE(bench.start.arrive_and_wait_for(10ms));
    CHECK(bench.redis.count("barrier withdraw") == 1);
    // The phase may have ended meanwhile.
    bench.redis.always("barrier withdraw", array({text("born"), text("8")}));
    CHECK(bench.start.arrive_and_wait_for(10ms));
    CHECK_FALSE(bench.start.withdraw(std::move(arrival)));
    CHECK_FALSE(arrival);
    CHECK(code_of([&] { bench.start.wait(arrival); }) == errc::invalid_argument);
    CHECK(code_of([&] { bench.start.withdraw(std::move(arrival)); }) == errc::invalid_argument);
}

TEST_CASE("a stop takes the arrival back; one that was requested before sends nothing") {
    Bench bench;
    std::stop_source stop;
    auto waiting = start([&] { return bench.start.arrive_and_wait(stop.get_token()); });
    REQUIRE(bench.redis.wait_for("barrier look", 2));
    stop.request_stop();
    CHECK_FALSE(waiting.get());
    CHECK(bench.redis.count("barrier withdraw") == 1);
    const auto before = bench.redis.history().size();
    CHECK_FALSE(bench.start.arrive_and_wait(stop.get_token()));
    CHECK(bench.redis.history().size() == before);
}

TEST_CASE("an arrival of unknown outcome is called off, and one whose wait fails is taken back") {
    Bench bench({.command_timeout = 20ms, .unreachable_timeout = 60ms});
    bench.redis.always("barrier arrive", lost());
    CHECK(code_of([&] { static_cast<void>(bench.start.arrive()); }) == errc::unreachable);
    REQUIRE(bench.redis.wait_for("barrier call off", 1));
    const SentCommand sent = bench.redis.sent("barrier arrive").at(0);
    const SentCommand off = bench.redis.sent("barrier call off").at(0);
    CHECK(off.argument(0) == sent.argument(0));
    CHECK(off.argument(1) == sent.argument(1));
    CHECK(off.argument(5) == sent.argument(7));
    bench.redis.always("barrier arrive", arrived(7, 7));
    bench.redis.always("barrier look", error("NOPERM no"));
    CHECK(code_of([&] { bench.start.arrive_and_wait(); }) == errc::rejected);
    REQUIRE(bench.redis.wait_for("barrier withdraw", 1));
    CHECK(bench.redis.sent("barrier withdraw").at(0).argument(0) ==
          bench.redis.sent("barrier arrive").back().argument(7));
}

TEST_CASE("an arrival that could not be taken back at the deadline is taken back later") {
    Bench bench({.command_timeout = 20ms, .unreachable_timeout = 60ms});
    bench.redis.always("barrier withdraw", lost());
    CHECK(code_of([&] { static_cast<void>(bench.start.arrive_and_wait_for(10ms)); }) == errc::unreachable);
    bench.redis.always("barrier withdraw", array({text("born"), text("7")}));
    CHECK(eventually([&] {
        for (const SentCommand& sent : bench.redis.sent("barrier withdraw"))
            if (sent.posted) return true;
        return false;
    }));
}

TEST_CASE("arrivals are renewed until the server does not have them any more") {
    Bench bench({.watchdog_timeout = 300ms});
    static_cast<void>(bench.start.arrive());
    REQUIRE(bench.redis.wait_for("renew permits", 2));
    CHECK(bench.redis.sent("renew permits").at(0).key(0) == "{start}:arrivals");
    CHECK(bench.redis.sent("renew permits").at(0).argument(0) == "300");
    auto waiting = start([&] { return code_of([&] { bench.start.arrive_and_wait(); }); });
    REQUIRE(bench.redis.wait_for("barrier look", 2));
    // A renewal that is refused makes the caller look at once.
    bench.redis.always("barrier look", seen("7", 0));
    bench.redis.always("renew permits", [](const SentCommand& command) {
        return std::optional(array(std::vector<Reply>(command.words.size() - 3 - command.key_count() - 2, number(0))));
    });
    CHECK(waiting.get() == errc::hold_lost);
    const auto renewals = bench.redis.count("renew permits");
    CHECK_FALSE(eventually([&] { return bench.redis.count("renew permits") > renewals + 1; }, 400ms));
}

TEST_CASE("another number of parties, and what cannot work, is refused") {
    Bench bench;
    bench.redis.always("barrier arrive", array({number(0), text("born"), number(5)}));
    CHECK(code_of([&] { static_cast<void>(bench.start.arrive()); }) == errc::invalid_argument);
    for (const std::ptrdiff_t parties : {std::ptrdiff_t(0), std::ptrdiff_t(-1), Barrier::max() + 1})
        CHECK(code_of([&] { Barrier(bench.client, "start", parties); }) == errc::invalid_argument);
    CHECK(code_of([&] { Barrier(bench.client, "", 2); }) == errc::invalid_argument);
}

TEST_CASE("malformed replies are errors") {
    Bench bench;
    for (const Reply& reply : {nil(), number(1), array({}), array({text("born"), text("7")}),
                               array({number(1), text("7"), number(1)}), array({text("born"), text("7"), nil()})}) {
        bench.redis.next("barrier look", reply);
        CHECK(code_of([&] { bench.start.arrive_and_wait(); }) == errc::protocol_error);
    }
    for (const Reply& reply : {nil(), number(1), array({number(7)}), array({text("7"), text("born"), number(7)})}) {
        bench.redis.next("barrier arrive", reply);
        CHECK(code_of([&] { static_cast<void>(bench.start.arrive()); }) == errc::protocol_error);
    }
}
