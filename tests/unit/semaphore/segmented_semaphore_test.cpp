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

struct Bench {
    explicit Bench(const ClientOptions& options = {}) : client(redis.transport(), options), stock(client, "stock", 4) {
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
    Bench bench;
    const SegmentPermit one = bench.stock.acquire(), two = bench.stock.acquire();
    CHECK(one.segment == 2);
    CHECK(one != two);
    CHECK(one == SegmentPermit{2, one.id});
    CHECK(bench.asked() == std::vector<std::string>{"stock:2", "stock:2"});
}

TEST_CASE("the others are asked in their order, and the one that has a permit is the near one then") {
    Bench bench;
    for (int i = 0; i < 3; ++i) bench.redis.next("acquire by id", none);
    CHECK(bench.stock.acquire().segment == 1);
    CHECK(bench.asked() == std::vector<std::string>{"stock:2", "stock:3", "stock:0", "stock:1"});
    CHECK(bench.stock.near() == 1);
    CHECK(bench.stock.acquire().segment == 1);
    CHECK(bench.asked().size() == 5);
}

TEST_CASE("one try asks each segment once and does not wait") {
    Bench bench;
    bench.redis.always("acquire by id", none);
    CHECK_FALSE(bench.stock.try_acquire());
    CHECK(bench.asked().size() == 4);
    CHECK_FALSE(bench.stock.try_acquire_for(0s));
    CHECK(bench.asked().size() == 8);
    CHECK_FALSE(bench.stock.try_hold());
    CHECK(bench.asked().size() == 12);
    CHECK(bench.client.stats().waits == 0);
    CHECK(bench.stock.near() == 2);
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
    Bench bench({.command_timeout = 100ms, .unreachable_timeout = 100ms});
    bench.redis.next("acquire by id", error("OOM command not allowed"));
    CHECK(bench.stock.acquire().segment == 3);
    CHECK(bench.stock.near() == 3);
    // Without a permit elsewhere nobody knows whether there is one.
    bench.redis.next("acquire by id", none);
    bench.redis.next("acquire by id", error("OOM command not allowed"));
    bench.redis.next("acquire by id", none);
    bench.redis.next("acquire by id", none);
    CHECK(code_of([&] { static_cast<void>(bench.stock.try_acquire()); }) == errc::overloaded);
    // A wrong key is no matter of time.
    bench.redis.next("acquire by id", error("WRONGTYPE no"));
    CHECK(code_of([&] { static_cast<void>(bench.stock.acquire()); }) == errc::wrong_type);
}

TEST_CASE("a call that waits does so in all segments, and keeps one permit if several grant one") {
    Bench bench;
    bench.redis.always("acquire by id", none);
    auto waiting = start([&] { return bench.stock.acquire(); });
    // First one after the other, then all at once, and once more after each has subscribed.
    REQUIRE(bench.redis.wait_for("acquire by id", 12));
    CHECK(bench.client.stats().waits == 4);
    bench.redis.always("acquire by id", array({number(1), number(-1)}));
    REQUIRE(bench.redis.publish("redisson_sc:{stock:3}", "1"));
    REQUIRE(bench.redis.publish("redisson_sc:{stock:0}", "1"));
    const SegmentPermit permit = waiting.get();
    CHECK((permit.segment == 3 || permit.segment == 0));
    CHECK(bench.stock.near() == permit.segment);
    // Nobody waits any longer. What another segment has granted is given back, but not the permit of the caller.
    CHECK(eventually([&] { return bench.client.stats().waiting == 0; }));
    for (const SentCommand& back : bench.redis.sent("take back by id"))
        CHECK(back.key(0) != "stock:" + std::to_string(permit.segment));
}

TEST_CASE("a call that waits ends with the error of a segment that fails") {
    Bench bench;
    bench.redis.always("acquire by id", none);
    auto waiting = start([&] { return code_of([&] { static_cast<void>(bench.stock.acquire()); }); });
    REQUIRE(bench.redis.wait_for("acquire by id", 12));
    bench.redis.always("acquire by id", error("NOPERM no"));
    REQUIRE(bench.redis.publish("redisson_sc:{stock:1}", "1"));
    CHECK(waiting.get() == errc::rejected);
    CHECK(eventually([&] { return bench.client.stats().waiting == 0; }));
}

TEST_CASE("a stop ends a wait, and a stop that was requested before asks nobody") {
    Bench bench;
    bench.redis.always("acquire by id", none);
    std::stop_source stop;
    auto waiting = start([&] { return bench.stock.acquire(stop.get_token()); });
    REQUIRE(bench.redis.wait_for("acquire by id", 12));
    stop.request_stop();
    CHECK_FALSE(waiting.get());
    CHECK(eventually([&] { return bench.client.stats().waiting == 0; }));
    const auto before = bench.asked().size();
    CHECK_FALSE(bench.stock.acquire(stop.get_token()));
    CHECK(bench.asked().size() == before);
}

TEST_CASE("what cannot work is refused before anything is sent") {
    Bench bench;
    for (const std::size_t segments : {std::size_t(0), SegmentedSemaphore::max_segments() + 1})
        CHECK(code_of([&] { SegmentedSemaphore(bench.client, "stock", segments); }) == errc::invalid_argument);
    CHECK(code_of([&] { SegmentedSemaphore(bench.client, "", 4); }) == errc::invalid_argument);
    CHECK(code_of([&] { bench.stock.near(4); }) == errc::invalid_argument);
    CHECK(code_of([&] { bench.stock.segment(4); }) == errc::invalid_argument);
    CHECK(code_of([&] { bench.stock.try_set_permits(-1); }) == errc::invalid_argument);
    const SegmentPermit wrong{4, PermitId::random()};
    CHECK(code_of([&] { bench.stock.release(wrong); }) == errc::invalid_argument);
    CHECK(code_of([&] { bench.stock.update_lease(wrong, Lease(1s)); }) == errc::invalid_argument);
    CHECK(bench.redis.history().empty());
}

TEST_CASE("a call that waits goes on when the client has closed: async_close() ends operations, not calls that block") {
    Bench bench;
    bench.redis.always("acquire by id", none);
    auto waiting = start([&] { return bench.stock.acquire(); });
    REQUIRE(bench.redis.wait_for("acquire by id", 12));
    auto closed = bench.client.async_close().future();
    REQUIRE(closed.wait_for(20s) == std::future_status::ready);
    bench.redis.always("acquire by id", array({number(1), number(-1)}));
    REQUIRE(bench.redis.publish("redisson_sc:{stock:3}", "1"));
    CHECK(waiting.get().segment == 3);
    // Nor do later ones end before their time.
    bench.redis.always("acquire by id", none);
    const Stopwatch watch;
    CHECK_FALSE(bench.stock.try_acquire_for(200ms));
    CHECK(watch.elapsed() >= 200ms);
}

TEST_CASE("segments that do not reply: the others are asked in time, and the call keeps its deadline") {
    Bench bench({.command_timeout = 1s, .unreachable_timeout = 1s});
    const auto silent = [](const SentCommand&) { return std::optional<Reply>(); };
    const Reply permit = array({number(1), number(-1)});
    for (const bool is_timed : {false, true}) {
        CAPTURE(is_timed);
        bench.stock.near(2);
        bench.redis.always("acquire by id", [&](const SentCommand& command) {
            return command.key(0) == "stock:0" ? std::optional(permit) : std::nullopt;
        });
        const auto got = is_timed ? bench.stock.try_acquire_for(900ms) : bench.stock.try_acquire();
        REQUIRE(got);
        CHECK(got->segment == 0);
        CHECK(bench.stock.near() == 0);
    }
    bench.redis.always("acquire by id", silent);
    SegmentedSemaphore many(bench.client, "many", 64);
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
    Bench bench({.command_timeout = 20s, .unreachable_timeout = 20s});
    bench.redis.always("acquire by id", [](const SentCommand& command) {
        return command.key(0) == "stock:0" ? std::optional(array({number(1), number(-1)})) : std::nullopt;
    });
    const Stopwatch watch;
    const auto got = bench.stock.try_acquire_for(3s);
    REQUIRE(got);
    CHECK(got->segment == 0);
    CHECK(watch.elapsed() < 3s);
}

TEST_CASE("one try waits for all segments that it asks at once, although one has failed") {
    Bench bench({.command_timeout = 1s, .unreachable_timeout = 1s});
    bench.redis.always("acquire by id", [](const SentCommand& command) {
        return command.key(0) == "stock:3" ? std::optional(error("NOPERM no")) : std::nullopt;
    });
    auto trying = start([&] { return bench.stock.try_acquire(); });
    REQUIRE(bench.redis.wait_for("acquire by id", 4));  // first that of the near segment
    CHECK(trying.wait_for(100ms) == std::future_status::timeout);
    const std::vector<SentCommand> sent = bench.redis.sent("acquire by id");
    const auto other =
        std::find_if(sent.begin(), sent.end(), [](const SentCommand& c) { return c.key(0) == "stock:0"; });
    bench.redis.answer(*other, array({number(1), number(-1)}));
    const auto got = trying.get();
    REQUIRE(got);
    CHECK(got->segment == 0);
}

TEST_CASE("a short time asks all segments, as none does") {
    Bench bench;
    SUBCASE("some of them answer before the others are asked") {
        bench.redis.answer_before_post_returns("acquire by id");
    }
    SUBCASE("they answer later") {}
    bench.redis.always("acquire by id", [](const SentCommand& command) {
        const Stopwatch pause;
        while (pause.elapsed() < 2ms) continue;
        return std::optional(command.key(0) == "stock:1" ? array({number(1), number(-1)}) : none);
    });
    const auto got = bench.stock.try_acquire_for(1ms);
    REQUIRE(got);
    CHECK(got->segment == 1);
}

TEST_CASE("a call may wait where completions are handed to executors") {
    Bench bench;
    bench.redis.always("acquire by id", none);
    Mutex free{bench.client, "free"};
    std::promise<bool> ended;
    free.async_try_lock().on([](const std::function<void()>& f) { f(); }).start([&](std::error_code, const Hold&) {
        ended.set_value(!bench.stock.try_acquire_for(100ms));
    });
    auto outcome = ended.get_future();
    REQUIRE(outcome.wait_for(20s) == std::future_status::ready);
    CHECK(outcome.get());
}
