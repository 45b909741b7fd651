// SPDX-License-Identifier: MIT
// FencedLock: increasing tokens, and a reentrant lock otherwise.
// ctest: in_memory
#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/plain_counter.hpp"
#include "support/process.hpp"
#include "support/proxy.hpp"
#include "support/server_faults.hpp"

#include "support/any_server.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::errc;
using redlatch::FencedLock;
using redlatch::Lease;
using redlatch::RLock;

namespace {

const std::string counter = "redisson_lock_token:{orders}";

const Role holder{"hold a fenced lock", [](std::span<const std::string> args) {
                      Client client{args[0]};
                      FencedLock lock{client, "orders"};
                      lock.lock(Lease{std::chrono::milliseconds{std::stoll(args[1])}});
                      std::this_thread::sleep_for(60s);
                      return 0;
                  }};

}  // namespace

TEST_CASE("each hold gets a greater token than the last one, whatever client it is of") {
    RedisServer server;
    Client client{server.url()};
    Client other{server.url()};
    FencedLock orders{client, "orders"};
    FencedLock theirs{other, "orders"};
    std::int64_t last = 0;
    for (int round = 0; round < 10; ++round) {
        const std::int64_t mine = orders.lock_and_get_token();
        CHECK(mine > last);
        CHECK(orders.token() == mine);
        CHECK_FALSE(elsewhere([&] { return theirs.try_lock_and_get_token(); }));
        orders.unlock();
        const std::optional<std::int64_t> their = theirs.try_lock_and_get_token_for(20s, Lease{10s});
        REQUIRE(their);
        CHECK(*their > mine);
        last = *their;
        theirs.unlock();
    }
    CHECK(last < (std::int64_t{1} << 53));
}

TEST_CASE("a nested lock keeps the token of its hold") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    FencedLock orders{client, "orders"};
    const std::int64_t token = orders.lock_and_get_token();
    CHECK(orders.lock_and_get_token() == token);
    CHECK(orders.try_lock_and_get_token() == token);
    CHECK(orders.hold_count() == 3);
    CHECK(redis.text("GET", counter) == std::to_string(token));
    for (int level = 0; level < 3; ++level) orders.unlock();
    CHECK_FALSE(orders.is_locked());
    CHECK(redis.text("GET", counter) == std::to_string(token));
}

TEST_CASE("a hold that is handed over within the process gets its own token") {
    RedisServer server;
    Client client{server.url()};
    FencedLock orders{client, "orders"};
    for (int round = 0; round < 100 && client.stats().handoffs == 0; ++round) {
        const std::int64_t mine = orders.lock_and_get_token();
        auto successor = start_waiting(client, [&] {
            const std::int64_t token = orders.lock_and_get_token();
            orders.unlock();
            return token;
        });
        orders.unlock();
        CHECK(successor.get() > mine);
    }
    CHECK(client.stats().handoffs > 0);
}

TEST_CASE("fault: token counter lost: tokens still increase") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    FencedLock orders{client, "orders"};
    const std::int64_t before = orders.lock_and_get_token();
    redis.command({"FLUSHALL"});
    Client other{server.url()};
    FencedLock theirs{other, "orders"};
    CHECK(theirs.lock_and_get_token() > before);
    theirs.unlock();
    std::error_code ec;
    orders.unlock(ec);
    CHECK(ec == errc::hold_lost);
}

TEST_CASE("the counter continues from Redisson's value, and never gets a TTL") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    FencedLock orders{client, "orders"};
    const std::string far = "4503599627370496";  // 2^52, ahead of any clock
    redis.text("SET", counter, far);
    CHECK(orders.lock_and_get_token(Lease{5s}) == 4503599627370497);
    orders.unlock();
    CHECK(redis.pttl(counter) == -1);
    CHECK(orders.lock_and_get_token() == 4503599627370498);
    CHECK(orders.force_unlock());
    CHECK(redis.text("GET", counter) == "4503599627370498");
}

TEST_CASE("an RLock and a FencedLock of one name exclude each other") {
    RedisServer server;
    Client client{server.url()};
    Client other{server.url()};
    FencedLock fenced{client, "orders"};
    RLock plain{other, "orders"};
    const std::lock_guard guard{fenced};
    CHECK_FALSE(elsewhere([&] { return plain.try_lock(); }));
}

#ifndef REDLATCH_TEST_IN_MEMORY
TEST_CASE("an acquire whose reply is lost is one hold with one token") {
    RedisServer server;
    RawRedis redis{server};
    Proxy proxy{server.url()};
    Client client{proxy.url()};
    FencedLock orders{client, "orders"};
    orders.lock();
    orders.unlock();
    const std::string before = redis.text("GET", counter);
    proxy.drop_next_replies(1, "EVALSHA");
    const std::int64_t token = orders.lock_and_get_token();
    CHECK(std::to_string(token) > before);
    CHECK(redis.text("GET", counter) == std::to_string(token));
    CHECK(orders.hold_count() == 1);
    orders.unlock();
    CHECK_FALSE(orders.is_locked());
}

// The server refuses the release, so it keeps the hold for a while. It does not count as the thread's next hold.
TEST_CASE("a hold gets a greater token even if the server still has the previous hold of the same thread") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    FencedLock orders{client, "orders"};
    const std::int64_t token = orders.lock_and_get_token(Lease{60s});
    forbid_scripts(redis, true);
    std::error_code ec;
    orders.unlock(ec);
    CHECK(ec == errc::rejected);
    REQUIRE(redis.exists("orders"));
    forbid_scripts(redis, false);
    const std::optional<std::int64_t> next = orders.try_lock_and_get_token_for(20s);
    REQUIRE(next);
    CHECK(*next > token);
    CHECK(orders.hold_count() == 1);
    CHECK(redis.hgetall("orders") == Fields{{owner_of(client, orders), "1"}});
    orders.unlock();
    CHECK_FALSE(redis.exists("orders"));
}

// A hand-over whose replies are lost is resent several times, and much may happen in between.
TEST_CASE("a resent hand-over returns the token of the hold, and is void after the end of the hold") {
    RedisServer server;
    RawRedis redis{server};
    const std::string script = redlatch::detail::scripts::fenced_hand_over.join();
    const auto hand_over = [&] {
        return redis.call("EVAL", script, 3, "orders", counter, channel_of("orders"), "me", "successor", 10'000,
                          "PUBLISH", always);
    };
    redis.integer("HSET", "orders", "me", 1);
    const RawReply handed = hand_over();
    REQUIRE(handed.elements.size() == 2);
    CHECK(handed.elements[0].integer == 1);
    CHECK(redis.text("GET", counter) == std::to_string(handed.elements[1].integer));
    CHECK(redis.hgetall("orders") == Fields{{"successor", "1"}});
    CHECK(hand_over() == handed);
    CHECK(hand_over() == handed);
    CHECK(redis.hgetall("orders") == Fields{{"successor", "1"}});
    // The successor's hold ends, and another owner gets the next token.
    redis.integer("DEL", "orders");
    redis.integer("HSET", "orders", "another", 1);
    const long long next = redis.integer("INCR", counter);
    CHECK(hand_over().is_nil());
    CHECK(hand_over().is_nil());
    CHECK(redis.hgetall("orders") == Fields{{"another", "1"}});
    CHECK(redis.text("GET", counter) == std::to_string(next));
}

// An owner names one hold, and each hold draws one token. So the holder has the latest token. That is also true after a
// restart with a truncated append-only file, which loses the hold and its token together.
TEST_CASE("a resent acquire returns the token of the hold") {
    RedisServer server;
    RawRedis redis{server};
    const std::string script = redlatch::detail::scripts::fenced_acquire.join();
    const auto acquire = [&](const char* owner, int count) {
        return redis.call("EVAL", script, 2, "orders", counter, owner, count, 30'000, always);
    };
    const RawReply held = acquire("me", 1);
    REQUIRE(held.elements.size() == 2);
    CHECK(held.elements[0].integer == 1);
    CHECK(acquire("me", 1) == held);
    CHECK(acquire("me", 2) == held);  // one more level of the same hold
    CHECK(redis.text("GET", counter) == std::to_string(held.elements[1].integer));
    const RawReply blocked = acquire("another", 1);
    CHECK(blocked.elements.at(0).integer == 0);
    redis.integer("DEL", "orders");
    const RawReply another = acquire("another", 1);
    CHECK(another.elements.at(0).integer == 1);
    CHECK(another.elements.at(1).integer > held.elements.at(1).integer);
}

TEST_CASE("a command that arrives too late draws no token") {
    RedisServer server;
    RawRedis redis{server};
    redis.text("SET", counter, "7");
    const auto late = [&](const Words& words) {
        const RawReply reply = redis.command(words);
        CHECK(reply.is_error());
        CHECK(reply.string.starts_with("LATE "));
        CHECK(redis.text("GET", counter) == "7");
    };
    const std::string past = std::to_string(std::stoll(redis.list("TIME").at(0)) * 1000 - 1);
    late({"EVAL", redlatch::detail::scripts::fenced_acquire.join(), "2", "orders", counter, "me", "1", "30000", past});
    CHECK(redis.keys() == Words{counter});
    redis.integer("HSET", "orders", "me", 1);
    redis.integer("PEXPIRE", "orders", 60'000);
    late({"EVAL", redlatch::detail::scripts::fenced_hand_over.join(), "3", "orders", counter, channel_of("orders"),
          "me", "successor", "30000", "PUBLISH", past});
    CHECK(redis.hgetall("orders") == Fields{{"me", "1"}});
}

TEST_CASE("the token of a killed holder is smaller than its successor's") {
    RedisServer server;
    RawRedis redis{server};
    ChildProcess child = spawn_self("hold a fenced lock", {server.url(), "500"});
    REQUIRE(eventually([&] { return redis.exists(counter); }, 20s));  // the counter remains, however late this check is
    const std::int64_t theirs = std::stoll(redis.text("GET", counter));
    child.kill();
    Client client{server.url()};
    FencedLock orders{client, "orders"};
    const std::optional<std::int64_t> mine = orders.try_lock_and_get_token_for(20s);
    REQUIRE(mine);
    CHECK(*mine > theirs);
    orders.unlock();
}
#endif

TEST_CASE("only a holder has a token") {
    RedisServer server;
    Client client{server.url()};
    FencedLock orders{client, "orders"};
    CHECK(code_of([&] { return orders.token(); }) == errc::not_owner);
    std::error_code ec;
    CHECK(orders.token(ec) == 0);
    CHECK(ec == errc::not_owner);
    std::stop_source stop;
    const std::optional<std::int64_t> token = orders.lock_and_get_token(stop.get_token(), ec);
    CHECK(token);
    CHECK_FALSE(ec);
    CHECK(elsewhere([&] { return code_of([&] { return orders.token(); }); }) == errc::not_owner);
    stop.request_stop();
    CHECK_FALSE(elsewhere([&] { return orders.lock_and_get_token(stop.get_token()); }));
    orders.unlock();
}

TEST_CASE("uncontended lock and unlock are two commands") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    FencedLock orders{client, "orders"};
    orders.lock();
    orders.unlock();
    const auto before = client.stats().commands;
    for (int round = 0; round < 10; ++round) {
        orders.lock();
        orders.unlock();
    }
    CHECK(client.stats().commands - before == 20);
}
