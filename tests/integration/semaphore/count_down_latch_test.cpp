// SPDX-License-Identifier: MIT
// CountDownLatch on a real server: counting, waiting, keys and messages, and lost replies.
// ctest: in_memory
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <concepts>
#include <latch>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"
#include "support/process.hpp"
#include "support/proxy.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"
#include "support/wait.hpp"

#include "support/any_server.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

using HiredisLatch = CountDownLatch;

const std::string channel = "redisson_countdownlatch__channel__{start}";

struct Fixture {
    explicit Fixture(const ClientOptions& options = {}) : client(server.url(), options), latch(client, "start") {}

    RedisServer server;
    RawRedis redis{server};
    Client client;
    HiredisLatch latch;
};

// The members that code written for std::latch uses.
template <class AnyLatch>
concept Latch = requires(AnyLatch& latch, const AnyLatch& observed, std::ptrdiff_t n) {
    { AnyLatch::max() } -> std::same_as<std::ptrdiff_t>;
    { latch.count_down() } -> std::same_as<void>;
    { latch.count_down(n) } -> std::same_as<void>;
    { observed.try_wait() } -> std::same_as<bool>;
    { observed.wait() } -> std::same_as<void>;
    { latch.arrive_and_wait() } -> std::same_as<void>;
    { latch.arrive_and_wait(n) } -> std::same_as<void>;
};
static_assert(Latch<std::latch>);
static_assert(Latch<HiredisLatch>);

// Three threads arrive in three ways. Returns true if none of them continued before the last one arrived.
template <Latch AnyLatch>
bool meet(AnyLatch& latch) {
    bool early = latch.try_wait();
    std::atomic<int> gone_on = 0;
    std::jthread one([&] { latch.arrive_and_wait(), ++gone_on; });
    std::jthread two([&] { latch.arrive_and_wait(2), ++gone_on; });
    std::jthread watcher([&] { latch.wait(), ++gone_on; });
    early = early || gone_on != 0;
    latch.count_down();
    latch.wait();
    return !early && latch.try_wait();
}

bool is_listened_to(RawRedis& redis, long long listeners = 1) {
    return eventually([&] { return redis.subscribers(channel) >= listeners; }, 20s);
}

const std::string lower_digest{digested<scripts::count_down_latch_lower>.digest()};
const std::string set_digest{digested<scripts::count_down_latch_set>.digest()};

const Role waiter{"latch waiter", [](std::span<const std::string> args) {
                      Client client{args[0]};
                      CountDownLatch latch{client, "start"};
                      return latch.wait_for(20s) ? 0 : 1;
                  }};

}  // namespace

TEST_CASE("code written for std::latch works with a CountDownLatch") {
    std::latch local(4);
    CHECK(meet(local));
    Fixture fixture;
    CHECK(fixture.latch.try_set_count(4));
    CHECK(meet(fixture.latch));
}

TEST_CASE("a count is set once, counted down to zero, and then absent") {
    Fixture fixture;
    CHECK(fixture.latch.count() == 0);
    CHECK(fixture.latch.try_wait());
    CHECK(fixture.latch.try_set_count(3));
    CHECK_FALSE(fixture.latch.try_set_count(7));
    CHECK(fixture.redis.text("GET", "start") == "3");
    fixture.latch.count_down();
    CHECK(fixture.latch.count() == 2);
    CHECK_FALSE(fixture.latch.try_wait());
    fixture.latch.count_down(0);
    CHECK(fixture.latch.count() == 2);
    fixture.latch.count_down(5);
    CHECK(fixture.latch.count() == 0);
    CHECK_FALSE(fixture.redis.exists("start"));
    fixture.latch.count_down();
    CHECK_FALSE(fixture.redis.exists("start"));
    CHECK(fixture.latch.try_set_count(1));
    CHECK(fixture.latch.reset());
    CHECK_FALSE(fixture.latch.reset());
    CHECK(fixture.latch.name() == "start");
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("invalid counts are refused before anything is sent") {
    Fixture fixture;
    CommandMonitor monitor(fixture.server);
    std::error_code ec;
    for (const std::ptrdiff_t count : {std::ptrdiff_t(0), std::ptrdiff_t(-1), HiredisLatch::max() + 1}) {
        CHECK(code_of([&] { fixture.latch.try_set_count(count); }) == errc::invalid_argument);
        CHECK_FALSE(fixture.latch.try_set_count(count, ec));
        CHECK(ec == errc::invalid_argument);
    }
    CHECK(code_of([&] { fixture.latch.count_down(-1); }) == errc::invalid_argument);
    CHECK(code_of([&] { fixture.latch.arrive_and_wait(-1); }) == errc::invalid_argument);
    fixture.latch.count_down(HiredisLatch::max() + 1, ec);
    CHECK(ec == errc::invalid_argument);
    CHECK(code_of([&] { HiredisLatch(fixture.client, ""); }) == errc::invalid_argument);
    CHECK(monitor.take_total() == 0);
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("the last count-down without the right to DEL takes effect when the right is there") {
    Fixture fixture;
    Client other{fixture.server.url()};  // has sent nothing about this latch
    HiredisLatch same{other, "start"};
    REQUIRE(fixture.latch.try_set_count(1));
    fixture.redis.text("ACL", "SETUSER", "default", "-del");
    CHECK(code_of([&] { same.count_down(); }) == errc::rejected);
    CHECK(fixture.latch.count() == 1);
    fixture.redis.text("ACL", "SETUSER", "default", "+del");
    CHECK(eventually([&] { return !fixture.redis.exists("start"); }, 20s));
}
#endif

TEST_CASE("all waiting threads and processes continue when the count reaches zero") {
    Fixture fixture;
    fixture.latch.try_set_count(2);
    auto child = spawn_self("latch waiter", {fixture.server.url()});
    std::vector<std::future<bool>> threads;
    for (int i = 0; i < 5; ++i) threads.push_back(start([&] { return fixture.latch.wait_for(20s); }));
    REQUIRE(is_listened_to(fixture.redis, 2));
    REQUIRE(has_waiters(fixture.client, 5));
    fixture.latch.count_down();
    CHECK(threads[0].wait_for(20ms) == std::future_status::timeout);
    const Stopwatch watch;
    fixture.latch.count_down();
    for (auto& thread : threads) CHECK(thread.get());
    const auto status = child.wait();
    REQUIRE(status);
    CHECK(status->ok());
    // No waiter has retried by itself, which takes five seconds at least.
    CHECK(watch.within(patient(4s)));
}

TEST_CASE("a waiting process sends nothing, and at the end one query for all of its threads") {
    Fixture fixture;
    Client other(fixture.server.url());
    CountDownLatch same(other, "start");
    same.try_set_count(1);
    std::vector<std::future<void>> threads;
    // A thread that joins the queue after the end would send its own query.
    for (int i = 0; i < 8; ++i) threads.push_back(start_waiting(fixture.client, [&] { fixture.latch.wait(); }));
    REQUIRE(is_listened_to(fixture.redis));
    // The client has the confirmation, too, and has queried again.
    CommandMonitor monitor(fixture.server);
    REQUIRE(eventually([&] { return fixture.redis.script_calls() >= 10; }, 20s));
    CHECK(falls_silent(monitor));
    same.count_down();
    for (auto& thread : threads) thread.get();
    CHECK(monitor.take()["evalsha"] <= 2);
}
#endif

TEST_CASE("a wait ends at its deadline or by a stop request, and leaves nothing") {
    Fixture fixture;
    fixture.latch.try_set_count(1);
    const Stopwatch watch;
    CHECK_FALSE(fixture.latch.wait_for(50ms));
    CHECK(watch.elapsed() >= 50ms);
    CHECK_FALSE(fixture.latch.wait_until(std::chrono::system_clock::now() + 20ms));
    CHECK_FALSE(fixture.latch.wait_for(0ms));
    CHECK_FALSE(fixture.latch.wait_for(-1h));
    std::stop_source stop;
    auto stopped = start_waiting(fixture.client, [&] { return fixture.latch.wait(stop.get_token()); });
    auto arrived = start_waiting(fixture.client, [&] {
        std::error_code ec = errc::unsupported;
        const bool ended = fixture.latch.wait_for(Milliseconds::max(), stop.get_token(), ec);
        return !ended && !ec;
    });
    stop.request_stop();
    CHECK_FALSE(stopped.get());
    CHECK(arrived.get());
    CHECK_FALSE(fixture.latch.wait(stop.get_token()));
    // It arrives all the same.
    fixture.latch.reset();
    fixture.latch.try_set_count(2);
    CHECK_FALSE(fixture.latch.arrive_and_wait(stop.get_token()));
    CHECK(fixture.latch.count() == 1);
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("the last thread to arrive needs one command") {
    Fixture fixture;
    fixture.latch.try_set_count(1);
    fixture.latch.count();
    fixture.latch.arrive_and_wait();
    fixture.latch.try_set_count(1);
    CommandMonitor monitor(fixture.server);
    fixture.latch.arrive_and_wait();
    CHECK(monitor.take_total() == 1);
}
#endif

// Java's waiters open their gate on "0" and close it on "1". Deleting a latch sends them "1", which wakes no waiter.
TEST_CASE("messages are those that Redisson's waiters expect, and reset() wakes them, too") {
    Fixture fixture;
    Messages messages(fixture.server, channel);
    fixture.latch.try_set_count(2);
    CHECK(messages.take() == Words{"1"});
    fixture.latch.try_set_count(2);
    fixture.latch.count_down();
    CHECK(messages.take().empty());
    fixture.latch.count_down();
    CHECK(messages.take() == Words{"0"});
    fixture.latch.count_down();
    CHECK(messages.take().empty());
    fixture.latch.try_set_count(2);
    fixture.latch.reset();
    CHECK(messages.take() == Words{"1", "0"});
    fixture.latch.reset();
    CHECK(messages.take().empty());
}

TEST_CASE("a Redisson client's count-down and deletion wake our waiters") {
    Fixture fixture;
    fixture.redis.call("SET", "start", 1);
    auto waiting = start_waiting(fixture.client, [&] { return fixture.latch.wait_for(20s); });
    REQUIRE(is_listened_to(fixture.redis));
    fixture.redis.call("DEL", "start");
    fixture.redis.call("PUBLISH", channel, "1");
    CHECK(waiting.get());
    fixture.redis.call("SET", "start", 1);
    waiting = start_waiting(fixture.client, [&] { return fixture.latch.wait_for(20s); });
    fixture.redis.call("DEL", "start");
    fixture.redis.call("PUBLISH", channel, "0");
    CHECK(waiting.get());
}

// A waiter that queried after the next count was set used to see that count, and to wait for it as well.
TEST_CASE("a waiter continues even if another count is set right after the end of its own") {
    Fixture fixture;
    Client other(fixture.server.url());
    CountDownLatch same(other, "start");
    same.try_set_count(1);
    for (int i = 0; i < 30; ++i) {
        CAPTURE(i);
        auto waiting = start_waiting(fixture.client, [&] { return fixture.latch.wait_for(20s); });
        auto two = start([&] { return fixture.latch.wait_for(20s); });
        REQUIRE(has_waiters(fixture.client, static_cast<std::uint64_t>(2 * i + 2)));
        if (i % 2 == 0)
            CHECK(same.reset());
        else
            same.count_down();
        CHECK(same.try_set_count(1));
        REQUIRE(ready(waiting));
        CHECK(waiting.get());
        CHECK(two.get());
    }
    CHECK_FALSE(fixture.latch.wait_for(30ms));
}

TEST_CASE("a waiter continues if its count ends without a message and another one is set") {
    Fixture fixture;
    for (int i = 0; i < 3; ++i) {
        CAPTURE(i);
        REQUIRE(fixture.latch.try_set_count(1));
        auto waiting = start_waiting(fixture.client, [&] { return fixture.latch.wait_for(20s); });
        // As the expiry of the key does, or the server's loss of its data.
        CHECK(fixture.redis.integer("DEL", "start") == 1);
        REQUIRE(fixture.latch.try_set_count(5));
        REQUIRE(ready(waiting));
        CHECK(waiting.get());
        fixture.latch.reset();
    }
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("fault: message of a latch's end lost: the waiter continues when the subscription is back") {
    Fixture fixture;
    fixture.latch.try_set_count(1);
    auto waiting = start_waiting(fixture.client, [&] { return fixture.latch.wait_for(20s); });
    REQUIRE(is_listened_to(fixture.redis));
    const Stopwatch watch;
    fixture.redis.call("DEL", "start");
    fixture.redis.kill_clients("pubsub");
    CHECK(waiting.get());
    CHECK(watch.within(patient(4s)));
}
#endif

TEST_CASE("a latch keeps a TTL on its key, and all other keys expire") {
    Fixture fixture;
    fixture.latch.try_set_count(5);
    fixture.redis.call("PEXPIRE", "start", 100'000);
    fixture.latch.count_down();
    CHECK(fixture.redis.pttl("start") > 90'000);
    fixture.latch.reset();
    for (const std::string& key : fixture.redis.list("KEYS", "*")) {
        CAPTURE(key);
        CHECK(key.find("{start}") != std::string::npos);
        CHECK(fixture.redis.pttl(key) > 0);
        CHECK(fixture.redis.pttl(key) <= 120'000);
    }
}

TEST_CASE("a latch's key of another type is an error, and stays unchanged") {
    Fixture fixture;
    fixture.redis.call("HSET", "start", "a", "b");
    CHECK(code_of([&] { fixture.latch.try_set_count(1); }) == errc::wrong_type);
    CHECK(code_of([&] { fixture.latch.count_down(); }) == errc::wrong_type);
    CHECK(code_of([&] { fixture.latch.wait(); }) == errc::wrong_type);
    CHECK(code_of([&] { fixture.latch.count(); }) == errc::wrong_type);
    CHECK(code_of([&] { fixture.latch.reset(); }) == errc::wrong_type);
    fixture.redis.call("DEL", "start");
    fixture.redis.call("SET", "start", "many");
    CHECK(code_of([&] { fixture.latch.count_down(); }) == errc::wrong_type);
    CHECK(code_of([&] { return fixture.latch.wait_for(20s); }) == errc::wrong_type);
    CHECK(code_of([&] { fixture.latch.count(); }) == errc::wrong_type);
    CHECK(fixture.redis.text("GET", "start") == "many");
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("fault: reply or request of a count-down lost: each change takes effect once") {
    Fixture fixture;
    Proxy proxy(fixture.server.url());
    Client client(proxy.url(), {.command_timeout = 200ms});
    CountDownLatch latch(client, "start");
    latch.count();
    for (const Then then : {Then::close, Then::silence}) {
        CAPTURE(static_cast<int>(then));
        proxy.drop_next_replies(2, set_digest, then);
        CHECK(latch.try_set_count(5));
        proxy.drop_next_replies(2, lower_digest, then);
        latch.count_down(2);
        CHECK(latch.count() == 3);
        proxy.drop_next_requests(2, lower_digest, then);
        latch.count_down();
        CHECK(latch.count() == 2);
        proxy.drop_next_replies(1, lower_digest, then);
        CHECK(latch.reset());
        CHECK(latch.count() == 0);
    }
}

TEST_CASE("a delayed count-down that arrives after its resend takes no effect") {
    Fixture fixture;
    Proxy proxy(fixture.server.url());
    Client client(proxy.url(), {.command_timeout = 100ms});
    CountDownLatch latch(client, "start");
    latch.try_set_count(5);
    latch.count_down();
    proxy.hold_next_requests(1, lower_digest);
    latch.count_down();
    CHECK(latch.count() == 3);
    latch.count_down();
    CHECK(latch.count() == 2);
    proxy.release();
    REQUIRE(eventually([&] { return proxy.counts().held == 0; }, 20s));
    latch.reset();
    latch.try_set_count(9);
    CHECK(latch.count() == 9);
}

TEST_CASE("without memory a count is refused, but counting down still works") {
    Fixture fixture;
    fixture.latch.try_set_count(2);
    fixture.latch.count_down();
    fixture.redis.call("CONFIG", "SET", "maxmemory", 1);
    Client hasty(fixture.server.url(), {.unreachable_timeout = 300ms});
    HiredisLatch another(hasty, "another");
    // A last try without time for its reply reports only that there was none.
    CHECK(eventually([&] { return code_of([&] { another.try_set_count(1); }) == errc::overloaded; }, 20s));
    fixture.latch.count_down();
    CHECK_FALSE(fixture.redis.exists("start"));
}

TEST_CASE("a count-down without a reply fails in time, and takes effect when the server is back") {
    Fixture fixture({.command_timeout = 100ms, .unreachable_timeout = 200ms});
    Client unhurried(fixture.server.url());
    HiredisLatch same(unhurried, "start");
    same.try_set_count(2);
    same.count_down();
    std::error_code ec;
    REQUIRE(eventually([&] { return fixture.latch.count(ec) == 1; }, 20s));  // there is a connection
    fixture.server.stop();
    const Stopwatch watch;
    fixture.latch.count_down(ec);
    CHECK(ec == errc::unreachable);
    CHECK(watch.within(patient(5s)));
    fixture.server.cont();
    CHECK(eventually([&] { return !fixture.redis.exists("start"); }, 20s));
}

TEST_CASE("a forked child waits for a latch on its own connections") {
    Fixture fixture;
    fixture.latch.try_set_count(2);
    fixture.latch.count_down(1);
    const std::string parent = fixture.client.id();
    auto child = ChildProcess::run([&] {
        if (fixture.client.id() == parent || fixture.latch.try_wait()) return 1;
        fixture.latch.arrive_and_wait();
        return 0;
    });
    CHECK(fixture.latch.wait_for(20s));
    const auto status = child.wait();
    REQUIRE(status);
    CHECK(status->ok());
}

TEST_CASE("fault: a count that could not be set in time does not appear after a reset") {
    Fixture fixture;
    CHECK(fixture.latch.try_set_count(2));  // the server has the script cached
    CHECK(fixture.latch.reset());
    Proxy proxy(fixture.server.url());
    Client far(proxy.url(), {.command_timeout = 100ms, .unreachable_timeout = 100ms});
    HiredisLatch latch(far, "start");
    proxy.hold_next_requests(1, set_digest);
    std::error_code ec;
    // On a busy machine the time may be over before anything is sent.
    REQUIRE(succeeds_once([&] {
        CHECK_FALSE(latch.try_set_count(5, ec));
        CHECK(ec == errc::unreachable);
        return eventually([&] { return proxy.counts().held == 1; }, 1s);
    }));
    REQUIRE(eventually([&] { return latch.reset(ec), !ec; }, 20s));
    REQUIRE(eventually([&] { return fixture.redis.keys("redlatch_latch_requests:*" + far.id()).size() == 1; }, 20s));
    const auto scripts = [&] { return fixture.redis.command_calls()["evalsha"]; };
    const auto before = scripts();
    proxy.release();
    REQUIRE(eventually([&] { return scripts() > before; }, 20s));
    CHECK_FALSE(fixture.redis.exists("start"));
}
#endif
