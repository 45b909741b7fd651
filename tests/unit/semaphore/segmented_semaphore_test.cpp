// SPDX-License-Identifier: MIT
// SegmentedSemaphore: which segments it asks, in what order, and what it does about those that fail.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <optional>
#include <set>
#include <stop_token>
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

struct Fixture {
    explicit Fixture(const ClientOptions& options = {})
        : client(redis.transport(), options), stock(client, "stock", 4) {
        stock.near(2);
    }

    // The segments that acquires were sent to, in their order.
    std::vector<std::string> asked() {
        std::vector<std::string> keys;
        for (const SentCommand& command : redis.sent("acquire by id")) keys.push_back(command.key(0));
        return keys;
    }

    ScriptedRedis redis;
    Client client;
    SegmentedSemaphore stock;
};

const Reply none = array({number(0), number(-1)});

}  // namespace

TEST_CASE("the near segment is asked first, and it alone as long as it has permits") {
    Fixture fixture;
    const SegmentPermit one = fixture.stock.acquire(), two = fixture.stock.acquire();
    CHECK(one.segment == 2);
    CHECK(one != two);
    CHECK(one == SegmentPermit{2, one.id});
    CHECK(fixture.asked() == std::vector<std::string>{"stock:2", "stock:2"});
}

TEST_CASE("the others are asked in their order, and the one that has a permit is the near one then") {
    Fixture fixture;
    for (int i = 0; i < 3; ++i) fixture.redis.next("acquire by id", none);
    CHECK(fixture.stock.acquire().segment == 1);
    CHECK(fixture.asked() == std::vector<std::string>{"stock:2", "stock:3", "stock:0", "stock:1"});
    CHECK(fixture.stock.near() == 1);
    CHECK(fixture.stock.acquire().segment == 1);
    CHECK(fixture.asked().size() == 5);
}

TEST_CASE("one try asks each segment once and does not wait") {
    Fixture fixture;
    fixture.redis.always("acquire by id", none);
    CHECK_FALSE(fixture.stock.try_acquire());
    CHECK(fixture.asked().size() == 4);
    CHECK_FALSE(fixture.stock.try_acquire_for(0s));
    CHECK(fixture.asked().size() == 8);
    CHECK_FALSE(fixture.stock.try_hold());
    CHECK(fixture.asked().size() == 12);
    CHECK(fixture.client.stats().waits == 0);
    CHECK(fixture.stock.near() == 2);
}

TEST_CASE("clients begin at different segments") {
    ScriptedRedis redis;
    std::set<std::size_t> begins;
    for (int i = 0; i < 60; ++i) {
        Client client(redis.transport(), {});
        begins.insert(SegmentedSemaphore(client, "stock", 4).near());
    }
    CHECK(begins == std::set<std::size_t>{0, 1, 2, 3});
}

TEST_CASE("a segment that fails does not stop an acquire that finds a permit elsewhere") {
    Fixture fixture({.command_timeout = 100ms, .unreachable_timeout = 100ms});
    fixture.redis.next("acquire by id", error("OOM command not allowed"));
    CHECK(fixture.stock.acquire().segment == 3);
    CHECK(fixture.stock.near() == 3);
    // Without a permit elsewhere nobody knows whether there is one.
    fixture.redis.next("acquire by id", none);
    fixture.redis.next("acquire by id", error("OOM command not allowed"));
    fixture.redis.next("acquire by id", none);
    fixture.redis.next("acquire by id", none);
    CHECK(code_of([&] { static_cast<void>(fixture.stock.try_acquire()); }) == errc::overloaded);
    // A wrong key is no matter of time.
    fixture.redis.next("acquire by id", error("WRONGTYPE no"));
    CHECK(code_of([&] { static_cast<void>(fixture.stock.acquire()); }) == errc::wrong_type);
}

TEST_CASE("a call that waits does so in all segments, and keeps one permit if several grant one") {
    Fixture fixture;
    fixture.redis.always("acquire by id", none);
    auto waiting = start([&] { return fixture.stock.acquire(); });
    // First one after the other, then all at once, and once more after each has subscribed.
    REQUIRE(fixture.redis.wait_for("acquire by id", 12));
    CHECK(fixture.client.stats().waits == 4);
    fixture.redis.always("acquire by id", array({number(1), number(-1)}));
    REQUIRE(fixture.redis.publish("redisson_sc:{stock:3}", "1"));
    REQUIRE(fixture.redis.publish("redisson_sc:{stock:0}", "1"));
    const SegmentPermit permit = waiting.get();
    CHECK((permit.segment == 3 || permit.segment == 0));
    CHECK(fixture.stock.near() == permit.segment);
    // Nobody waits any longer. What another segment has granted is given back, but not the permit of the caller.
    CHECK(eventually([&] { return fixture.client.stats().waiting == 0; }));
    for (const SentCommand& back : fixture.redis.sent("take back by id"))
        CHECK(back.key(0) != "stock:" + std::to_string(permit.segment));
}

TEST_CASE("a call that waits ends with the error of a segment that fails") {
    Fixture fixture;
    fixture.redis.always("acquire by id", none);
    auto waiting = start([&] { return code_of([&] { static_cast<void>(fixture.stock.acquire()); }); });
    REQUIRE(fixture.redis.wait_for("acquire by id", 12));
    fixture.redis.always("acquire by id", error("NOPERM no"));
    REQUIRE(fixture.redis.publish("redisson_sc:{stock:1}", "1"));
    CHECK(waiting.get() == errc::rejected);
    CHECK(eventually([&] { return fixture.client.stats().waiting == 0; }));
}

TEST_CASE("a stop ends a wait, and a stop that was requested before asks nobody") {
    Fixture fixture;
    fixture.redis.always("acquire by id", none);
    std::stop_source stop;
    auto waiting = start([&] { return fixture.stock.acquire(stop.get_token()); });
    REQUIRE(fixture.redis.wait_for("acquire by id", 12));
    stop.request_stop();
    CHECK_FALSE(waiting.get());
    CHECK(eventually([&] { return fixture.client.stats().waiting == 0; }));
    const auto before = fixture.asked().size();
    CHECK_FALSE(fixture.stock.acquire(stop.get_token()));
    CHECK(fixture.asked().size() == before);
}

TEST_CASE("what cannot work is refused before anything is sent") {
    Fixture fixture;
    for (const std::size_t segments : {std::size_t(0), SegmentedSemaphore::max_segments() + 1})
        CHECK(code_of([&] { SegmentedSemaphore(fixture.client, "stock", segments); }) == errc::invalid_argument);
    CHECK(code_of([&] { SegmentedSemaphore(fixture.client, "", 4); }) == errc::invalid_argument);
    CHECK(code_of([&] { fixture.stock.near(4); }) == errc::invalid_argument);
    CHECK(code_of([&] { fixture.stock.segment(4); }) == errc::invalid_argument);
    CHECK(code_of([&] { fixture.stock.try_set_permits(-1); }) == errc::invalid_argument);
    const SegmentPermit wrong{4, PermitId::random()};
    CHECK(code_of([&] { fixture.stock.release(wrong); }) == errc::invalid_argument);
    CHECK(code_of([&] { fixture.stock.update_lease(wrong, Lease(1s)); }) == errc::invalid_argument);
    CHECK(fixture.redis.history().empty());
}

TEST_CASE("a call that waits goes on when the client has closed: async_close() ends operations, not calls that block") {
    Fixture fixture;
    fixture.redis.always("acquire by id", none);
    auto waiting = start([&] { return fixture.stock.acquire(); });
    REQUIRE(fixture.redis.wait_for("acquire by id", 12));
    auto closed = fixture.client.async_close().future();
    REQUIRE(closed.wait_for(20s) == std::future_status::ready);
    fixture.redis.always("acquire by id", array({number(1), number(-1)}));
    REQUIRE(fixture.redis.publish("redisson_sc:{stock:3}", "1"));
    CHECK(waiting.get().segment == 3);
    // Nor do later ones end before their time.
    fixture.redis.always("acquire by id", none);
    const Stopwatch watch;
    CHECK_FALSE(fixture.stock.try_acquire_for(200ms));
    CHECK(watch.elapsed() >= 200ms);
}

TEST_CASE("segments that do not reply: the others are asked in time, and the call keeps its deadline") {
    Fixture fixture({.command_timeout = 1s, .unreachable_timeout = 1s});
    const auto silent = [](const SentCommand&) { return std::optional<Reply>(); };
    const Reply permit = array({number(1), number(-1)});
    for (const bool is_timed : {false, true}) {
        CAPTURE(is_timed);
        fixture.stock.near(2);
        fixture.redis.always("acquire by id", [&](const SentCommand& command) {
            return command.key(0) == "stock:0" ? std::optional(permit) : std::nullopt;
        });
        const auto got = is_timed ? fixture.stock.try_acquire_for(900ms) : fixture.stock.try_acquire();
        REQUIRE(got);
        CHECK(got->segment == 0);
        CHECK(fixture.stock.near() == 0);
    }
    fixture.redis.always("acquire by id", silent);
    SegmentedSemaphore many(fixture.client, "many", 64);
    const Stopwatch watch;
    std::error_code ec;
    CHECK_FALSE(many.try_acquire_for(100ms, ec));
    CHECK(watch.elapsed() < 5s);
    const Stopwatch once_more;
    CHECK_FALSE(many.try_acquire(ec));
    CHECK(ec == errc::unreachable);
    CHECK(once_more.elapsed() < 10s);
}

TEST_CASE("a near segment that does not reply leaves time for the others") {
    Fixture fixture({.command_timeout = 20s, .unreachable_timeout = 20s});
    fixture.redis.always("acquire by id", [](const SentCommand& command) {
        return command.key(0) == "stock:0" ? std::optional(array({number(1), number(-1)})) : std::nullopt;
    });
    const Stopwatch watch;
    const auto got = fixture.stock.try_acquire_for(3s);
    REQUIRE(got);
    CHECK(got->segment == 0);
    CHECK(watch.elapsed() < 3s);
}

TEST_CASE("one try waits for all segments that it asks at once, although one has failed") {
    Fixture fixture({.command_timeout = 1s, .unreachable_timeout = 1s});
    fixture.redis.always("acquire by id", [](const SentCommand& command) {
        return command.key(0) == "stock:3" ? std::optional(error("NOPERM no")) : std::nullopt;
    });
    auto trying = start([&] { return fixture.stock.try_acquire(); });
    REQUIRE(fixture.redis.wait_for("acquire by id", 4));  // first that of the near segment
    CHECK(trying.wait_for(100ms) == std::future_status::timeout);
    const std::vector<SentCommand> sent = fixture.redis.sent("acquire by id");
    const auto other =
        std::find_if(sent.begin(), sent.end(), [](const SentCommand& c) { return c.key(0) == "stock:0"; });
    fixture.redis.answer(*other, array({number(1), number(-1)}));
    const auto got = trying.get();
    REQUIRE(got);
    CHECK(got->segment == 0);
}

TEST_CASE("a short time asks all segments, as none does") {
    Fixture fixture;
    SUBCASE("some of them answer before the others are asked") {
        fixture.redis.answer_before_post_returns("acquire by id");
    }
    SUBCASE("they answer later") {}
    fixture.redis.always("acquire by id", [](const SentCommand& command) {
        const Stopwatch pause;
        while (pause.elapsed() < 2ms) continue;
        return std::optional(command.key(0) == "stock:1" ? array({number(1), number(-1)}) : none);
    });
    const auto got = fixture.stock.try_acquire_for(1ms);
    REQUIRE(got);
    CHECK(got->segment == 1);
}

TEST_CASE("a call may wait where completions are handed to executors") {
    Fixture fixture;
    fixture.redis.always("acquire by id", none);
    Mutex free{fixture.client, "free"};
    std::promise<bool> ended;
    free.async_try_lock().on([](const std::function<void()>& f) { f(); }).start([&](std::error_code, const Hold&) {
        ended.set_value(!fixture.stock.try_acquire_for(100ms));
    });
    auto outcome = ended.get_future();
    REQUIRE(outcome.wait_for(20s) == std::future_status::ready);
    CHECK(outcome.get());
}
