// SPDX-License-Identifier: MIT
// Which thread connects, and who waits for it.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "support/start.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

Url url_with_function() {
    Url url = Url::parse("redis://127.0.0.1:1");
    url.credentials = std::make_shared<const std::function<Credentials()>>([] { return Credentials{}; });
    return url;
}

/// A reconnector, and the mutex of its owner. The connector is the test's, so there is no server.
struct Fixture {
    explicit Fixture(const Url& url, std::function<std::optional<Reply>()> open, Milliseconds timeout = 20s)
        : reconnector(
              url, [open = std::move(open)](Connection&, Instant) { return open(); }, timeout,
              Reconnector::Connecting::until_deadline, nullptr) {}

    std::optional<Reply> open(Milliseconds time) {
        std::unique_lock lock(mutex);
        return reconnector.open(lock, Clock::now() + time, [this](auto&) { ++attempts; });
    }

    std::mutex mutex;
    std::atomic<int> attempts{0};
    Reconnector reconnector;
};

}  // namespace

TEST_CASE("the caller's own thread connects; with a function for the login it is another one") {
    for (const Url& url : {Url::parse("redis://127.0.0.1:1"), url_with_function()}) {
        std::atomic<bool> by_caller{false};
        Fixture fixture(url, [&, caller = std::this_thread::get_id()]() -> std::optional<Reply> {
            by_caller = std::this_thread::get_id() == caller;
            return std::nullopt;
        });
        CHECK_FALSE(fixture.open(20s));
        CHECK(by_caller == !url.credentials);
        CHECK(fixture.reconnector.is_open());
        CHECK(eventually([&] { return fixture.attempts == 1; }));
    }
}

TEST_CASE("a caller keeps its deadline while a function blocks, and the connection is there for the next one") {
    std::atomic<bool> may_return{false};
    std::atomic<int> calls{0};
    Fixture fixture(url_with_function(), [&]() -> std::optional<Reply> {
        ++calls;
        eventually([&] { return may_return.load(); }, 60s);
        return std::nullopt;
    });
    const Stopwatch watch;
    const auto first = fixture.open(20ms);
    REQUIRE(first);
    CHECK(first->kind == Reply::Kind::no_time);
    REQUIRE(fixture.open(20ms));
    CHECK(watch.within(patient(10s)));
    auto waiting = start([&] { return fixture.open(60s); });
    // The mutex is free meanwhile.
    CHECK(std::unique_lock(fixture.mutex).owns_lock());
    may_return = true;
    CHECK_FALSE(waiting.get());
    CHECK(calls == 1);
}

TEST_CASE("a failure to connect is repeated until the deadline, a refusal by the server is returned at once") {
    for (const Url& url : {Url::parse("redis://127.0.0.1:1"), url_with_function()}) {
        std::atomic<int> calls{0};
        Fixture failing(url, [&]() -> std::optional<Reply> {
            return ++calls < 4 ? std::optional(Reply::of(Reply::Kind::not_sent, "no token")) : std::nullopt;
        });
        CHECK_FALSE(failing.open(60s));
        CHECK(calls == 4);

        Fixture never_there(url, [] { return Reply::of(Reply::Kind::not_sent, "no token"); });
        std::optional<Reply> why;
        CHECK(eventually([&] {  // a slow attempt may come to the deadline
            why = never_there.open(100ms);
            return why && why->kind == Reply::Kind::not_sent;
        }));
        REQUIRE(why);
        CHECK(why->text == "no token");

        const Stopwatch watch;
        Fixture refusing(url, [] { return Reply::of(Reply::Kind::error, "WRONGPASS"); });
        const auto refusal = refusing.open(60s);
        REQUIRE(refusal);
        CHECK(refusal->text == "WRONGPASS");
        CHECK(watch.within(patient(20s)));
    }
}
