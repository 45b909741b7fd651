// SPDX-License-Identifier: MIT
// SingleFlight: one caller computes a value, and the others wait for the value.
// ctest: in_memory
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <system_error>
#include <vector>

#include "integration/rlock_helpers.hpp"

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
    SingleFlight mine{client, "report", 60s};
    SingleFlight theirs{other, "report", 60s};
};

std::string no_need() {
    FAIL_CHECK("there is a value, or it is being computed elsewhere");
    return "wrong";
}

}  // namespace

TEST_CASE("a value is computed once, has a version and a time to live, and costs the next caller one round trip") {
    Fixture fixture;
    CHECK_FALSE(fixture.theirs.peek());
    const std::string bytes("a\0\r\nb", 5);
    const FlightValue first = fixture.mine.get([&] { return bytes; });
    CHECK(first.value == bytes);
    CHECK(first.computed);
    CHECK(first.version > 0);
    CHECK(first.fresh == 60s);
    static_cast<void>(fixture.theirs.peek());  // sends the text of the script, too
    const auto before = fixture.other.stats().commands;
    const FlightValue second = fixture.theirs.get(no_need);
    CHECK(fixture.other.stats().commands == before + 1);
    CHECK(second.value == bytes);
    CHECK_FALSE(second.computed);
    CHECK(second.version == first.version);
    CHECK(second.fresh > 50s);
    CHECK(second.fresh <= 60s);
    CHECK_FALSE(fixture.redis.exists("report"));
    CHECK(fixture.redis.pttl("redlatch_flight:{report}") > 50'000);

    CHECK(fixture.theirs.invalidate());
    CHECK_FALSE(fixture.theirs.invalidate());
    const FlightValue third = fixture.theirs.get([](const std::stop_token&) { return std::string(); });
    CHECK(third.computed);
    CHECK(third.value.empty());
    CHECK(third.version > first.version);
    std::error_code ec = errc::unreachable;
    CHECK(fixture.mine.peek(ec)->version == third.version);
    CHECK_FALSE(ec);
}

// Every other caller reads the value in one reply, and a client refuses a reply that is far longer.
TEST_CASE("a value of a million bytes reaches the other callers, and a longer one is refused before it is stored") {
    Fixture fixture;
    const std::string longest(1'000'000, 'x');
    CHECK(fixture.mine.get([&] { return longest; }).computed);
    CHECK(fixture.theirs.peek()->value == longest);
    CHECK(fixture.theirs.get(no_need).value == longest);
    REQUIRE(fixture.mine.invalidate());
    CHECK(code_of([&] { static_cast<void>(fixture.mine.get([&] { return longest + "x"; })); }) ==
          errc::invalid_argument);
    // It is as if the function had failed.
    CHECK_FALSE(fixture.theirs.peek());
    CHECK_FALSE(fixture.redis.exists("report"));
    CHECK(fixture.theirs.get([] { return std::string("short"); }).computed);
}

TEST_CASE("a value that has expired is computed anew") {
    Fixture fixture;
    SingleFlight brief{fixture.client, "report", 20ms};
    const auto first = brief.get([] { return "old"; });
    REQUIRE(eventually([&] { return !brief.peek(); }, 20s));
    const auto second = brief.get([] { return "new"; });
    CHECK(second.value == "new");
    CHECK(second.version > first.version);
    CHECK(code_of([&] { SingleFlight{fixture.client, "report", 0ms}; }) == errc::invalid_argument);
}

// Against the stampede: whoever waits neither computes nor acquires the lock, and all of a process share one look.
TEST_CASE("many callers of two processes wait for the value, not for the lock") {
    Fixture fixture;
    std::promise<void> go_on;
    std::atomic<bool> begun{false};
    auto computing = start([&] {
        return fixture.mine.get([&] {
            begun = true;
            go_on.get_future().get();
            return "report";
        });
    });
    REQUIRE(eventually([&] { return begun.load(); }, 20s));
    std::vector<std::future<FlightValue>> waiting;
    for (int i = 0; i < 10; ++i) waiting.push_back(start([&] { return fixture.theirs.get(no_need); }));
    REQUIRE(eventually([&] { return fixture.other.stats().waiting == 10; }, 20s));
    const auto quiet = commands_when_quiet(fixture.other);
    go_on.set_value();
    for (auto& one : waiting) {
        REQUIRE(ready(one, 20s));
        const FlightValue value = one.get();
        CHECK(value.value == "report");
        CHECK_FALSE(value.computed);
    }
    CHECK(computing.get().computed);
    CHECK(fixture.other.stats().commands <= quiet + 3);
    CHECK(fixture.other.stats().acquisitions == 0);
    CHECK(fixture.client.stats().acquisitions == 1);
}

TEST_CASE("a caller gives up by a deadline or a stop, and leaves nothing") {
    Fixture fixture;
    std::promise<void> go_on;
    std::atomic<bool> begun{false};
    auto computing = start([&] {
        return fixture.mine.get([&] {
            begun = true;
            go_on.get_future().get();
            return "report";
        });
    });
    REQUIRE(eventually([&] { return begun.load(); }, 20s));
    CHECK_FALSE(fixture.theirs.get_for(0ms, no_need));
    CHECK_FALSE(fixture.theirs.get_for(30ms, no_need));
    std::stop_source stop;
    auto stopped = start_waiting(fixture.other, [&] { return fixture.theirs.get(no_need, stop.get_token()); });
    stop.request_stop();
    REQUIRE(ready(stopped));
    CHECK_FALSE(stopped.get());
    CHECK(fixture.other.stats().waiting == 0);
    go_on.set_value();
    CHECK(computing.get().value == "report");
    CHECK(fixture.theirs.get_for(0ms, no_need)->value == "report");
}

TEST_CASE("if the computation fails, one of those who wait takes over at once") {
    Fixture fixture;
    std::promise<void> fail;
    std::atomic<bool> begun{false};
    auto failing = start([&] {
        std::error_code ec;
        CHECK_FALSE(fixture.mine.get(
            [&]() -> std::string {
                begun = true;
                fail.get_future().get();
                throw Error(errc::rejected, "", "no data");
            },
            ec));
        return ec;
    });
    REQUIRE(eventually([&] { return begun.load(); }, 20s));
    std::atomic<int> computed{0};
    std::vector<std::future<FlightValue>> waiting;
    for (int i = 0; i < 5; ++i)
        waiting.push_back(start([&] {
            return fixture.theirs.get([&] {
                ++computed;
                return "second";
            });
        }));
    REQUIRE(eventually([&] { return fixture.other.stats().waiting == 5; }, 20s));
    fail.set_value();
    CHECK(failing.get() == errc::rejected);
    for (auto& one : waiting) {
        REQUIRE(ready(one, 10s));  // the lease is 30 s, so it was the release that woke them
        CHECK(one.get().value == "second");
    }
    CHECK(computed == 1);
}

TEST_CASE("a value that was computed without the lock is dropped") {
    Fixture fixture;
    FencedLock lock{fixture.other, "report"};
    CHECK(code_of([&] {
              static_cast<void>(fixture.mine.get([&] {
                  CHECK(lock.force_unlock());
                  CHECK(fixture.theirs.get([] { return "theirs"; }).computed);
                  return "mine";
              }));
          }) == errc::hold_lost);
    CHECK(fixture.mine.peek()->value == "theirs");
}

TEST_CASE("keys of other kinds are errors") {
    Fixture fixture;
    std::error_code ec;
    fixture.redis.text("SET", "redlatch_flight:{report}", "something");
    CHECK_FALSE(fixture.mine.get(no_need, ec));
    CHECK(ec == errc::wrong_type);
    CHECK_FALSE(fixture.mine.peek(ec));
    CHECK(ec == errc::wrong_type);
    fixture.redis.integer("DEL", "redlatch_flight:{report}");
    fixture.redis.text("SET", "report", "something");
    CHECK_FALSE(fixture.mine.get(no_need, ec));
    CHECK(ec == errc::wrong_type);
    CHECK(code_of([&] { SingleFlight{fixture.client, "", 1s}; }) == errc::invalid_argument);
}
