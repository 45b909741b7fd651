// SPDX-License-Identifier: MIT
// OnceFlag and call_once(): done once in the fleet, and the others wait until it is done.
// ctest: in_memory
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <system_error>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/plain_counter.hpp"

#include "support/any_server.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

struct Fixture {
    RedisServer server{};
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    OnceFlag mine{client, "migration"};
    OnceFlag theirs{other, "migration"};
};

}  // namespace

TEST_CASE("the work is done once, and the next caller takes one round trip to know it") {
    Fixture fixture;
    int done = 0;
    CHECK_FALSE(fixture.mine.is_done());
    fixture.mine.call([&] { ++done; });
    fixture.theirs.call([&] { ++done; });
    const auto before = fixture.other.stats().commands;
    call_once(fixture.theirs, [&] { ++done; });
    CHECK(fixture.other.stats().commands == before + 1);
    call_once(fixture.other, "migration", [&](const std::stop_token&) { ++done; });
    CHECK(done == 1);
    CHECK(fixture.mine.is_done());
    CHECK(fixture.other.stats().acquisitions == 0);
    CHECK_FALSE(fixture.redis.exists("migration"));
    CHECK(fixture.redis.pttl("redlatch_once:{migration}") == -1);
    CHECK(fixture.theirs.reset());
    CHECK_FALSE(fixture.theirs.reset());
    CHECK_FALSE(fixture.theirs.is_done());
    fixture.theirs.call([&] { ++done; });
    CHECK(done == 2);
}

TEST_CASE("the mark stays as long as it is wanted") {
    Fixture fixture;
    int done = 0;
    call_once(fixture.client, "daily", {.keep = 60s}, [&] { ++done; });
    const long long left = fixture.redis.pttl("redlatch_once:{daily}");
    CHECK(left > 50'000);
    CHECK(left <= 60'000);
    call_once(fixture.client, "short", {.keep = 30ms}, [&] { ++done; });
    OnceFlag flag{fixture.other, "short", {.keep = 60s}};
    REQUIRE(eventually([&] { return !flag.is_done(); }, 20s));
    flag.call([&] { ++done; });
    CHECK(done == 3);
    for (const auto wrong :
         {std::chrono::milliseconds(0), std::chrono::milliseconds(-1), std::chrono::milliseconds::max()})
        CHECK(code_of([&] { OnceFlag{fixture.client, "x", {.keep = wrong}}; }) == errc::invalid_argument);
}

TEST_CASE("a function that throws leaves the work open, and one of those who wait does it") {
    Fixture fixture;
    std::atomic<bool> begun{false};
    std::promise<void> fail;
    auto failing = start([&] {
        fixture.mine.call([&] {
            begun = true;
            fail.get_future().get();
            throw std::runtime_error("no disk");
        });
        return true;
    });
    REQUIRE(eventually([&] { return begun.load(); }, 20s));
    std::atomic<int> done{0};
    std::vector<std::future<bool>> waiting;
    for (int i = 0; i < 3; ++i)
        waiting.push_back(start_waiting(fixture.other, [&] {
            fixture.theirs.call([&] { ++done; });
            return done == 1;
        }));
    fail.set_value();
    CHECK_THROWS_AS(failing.get(), std::runtime_error);
    for (auto& one : waiting) {
        REQUIRE(ready(one));
        CHECK(one.get());
    }
    CHECK(done == 1);
}

TEST_CASE("who waits for the work is told by a message, and gives up by a deadline or a stop") {
    Fixture fixture;
    std::promise<void> go_on;
    std::atomic<bool> begun{false};
    auto working = start([&] {
        fixture.mine.call([&] {
            begun = true;
            go_on.get_future().get();
        });
        return true;
    });
    REQUIRE(eventually([&] { return begun.load(); }, 20s));
    const auto never_called = [] { FAIL_CHECK("the work is under way elsewhere"); };
    CHECK_FALSE(fixture.theirs.call_for(0ms, never_called));
    CHECK_FALSE(fixture.theirs.call_for(30ms, never_called));
    std::stop_source stop;
    auto stopped = start_waiting(fixture.other, [&] { return fixture.theirs.call(never_called, stop.get_token()); });
    stop.request_stop();
    REQUIRE(ready(stopped));
    CHECK_FALSE(stopped.get());
    auto waiting = start_waiting(fixture.other, [&] { return fixture.theirs.call_for(60s, never_called); });
    const auto quiet = commands_when_quiet(fixture.other);
    go_on.set_value();
    REQUIRE(ready(waiting, 10s));
    CHECK(waiting.get());
    CHECK(fixture.other.stats().commands <= quiet + 2);
    CHECK(fixture.other.stats().acquisitions == 0);
    CHECK(working.get());
}

TEST_CASE("the function is told that the lock is lost, and the caller that the work may be done twice") {
    Fixture fixture;
    Client quick{fixture.server.url(), with_watchdog(short_lease)};
    OnceFlag flag{quick, "migration"};
    FencedLock lock{fixture.other, "migration"};
    std::error_code ec;
    flag.call(
        [&](const std::stop_token& ending) {
            CHECK(lock.force_unlock());
            CHECK(eventually([&] { return ending.stop_requested(); }, 20s));
        },
        ec);
    CHECK(ec == errc::hold_lost);
    CHECK_FALSE(flag.is_done());
    std::stop_source stop;
    CHECK(flag.call(
        [&](const std::stop_token& ending) {
            stop.request_stop();
            CHECK(ending.stop_requested());
        },
        stop.get_token()));
    CHECK(flag.is_done());
}

TEST_CASE("many threads of two clients: the work is done once, and all return after it") {
    Fixture fixture;
    for (int round = 0; round < 5; ++round) {
        PlainCounter counter;
        std::vector<std::future<bool>> callers;
        for (int i = 0; i < 8; ++i)
            callers.push_back(start([&, i] {
                (i % 2 == 0 ? fixture.mine : fixture.theirs).call([&] { counter.add_one_unseen(); });
                return counter.value() == 1;
            }));
        for (auto& caller : callers) {
            REQUIRE(ready(caller));
            CHECK(caller.get());
        }
        CHECK(fixture.mine.reset());
    }
}

TEST_CASE("a bad name, and keys of other kinds, are errors") {
    Fixture fixture;
    CHECK(code_of([&] { call_once(fixture.client, "", [] {}); }) == errc::invalid_argument);
    std::error_code ec;
    call_once(
        fixture.client, "a{b", [] {}, ec);
    CHECK(ec == errc::invalid_argument);
    fixture.redis.text("SET", "redlatch_once:{migration}", "something");
    fixture.mine.call([] { FAIL_CHECK("it cannot be marked as done"); }, ec);
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(fixture.mine.is_done(ec));
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(fixture.mine.reset(ec));
    CHECK(ec == errc::wrong_type);
    fixture.redis.integer("DEL", "redlatch_once:{migration}");
    fixture.mine.call([] { throw std::system_error(std::make_error_code(std::errc::io_error)); }, ec);
    CHECK(ec == std::errc::io_error);
    CHECK_FALSE(fixture.mine.is_done(ec));
    CHECK_FALSE(ec);
}
