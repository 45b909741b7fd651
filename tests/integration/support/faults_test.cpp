// SPDX-License-Identifier: MIT
// The faults of the test kit: each one takes effect, and ends.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "support/end_state.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"
#include "support/server_clock.hpp"
#include "support/server_faults.hpp"
#include "support/wait.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;

TEST_CASE("the wall clock of one server can be moved while it runs") {
    ServerClock clock;
    RedisServer shifted{{.environment = clock.environment(REDLATCH_CLOCK_SHIM)}};
    RedisServer other;
    RawRedis redis{shifted};
    const auto ahead = [&] {
        return std::stoll(redis.list("TIME").at(0)) - std::stoll(RawRedis{other}.list("TIME").at(0));
    };
    CHECK(eventually([&] { return std::abs(ahead()) <= 1; }, 5s));
    redis.text("SET", "key", "value", "PX", 60'000);
    clock.set(30s);
    // Valkey 9.1 reads the clock once a millisecond.
    CHECK(eventually([&] { return std::abs(ahead() - 30) <= 1; }, 5s));
    CHECK(redis.pttl("key") < 31'000);
    clock.set(-1h);
    CHECK(eventually([&] { return std::abs(ahead() + 3600) <= 1; }, 5s));
    CHECK(redis.pttl("key") > 3'600'000);
    clock.set(61s);
    CHECK(eventually([&] { return !redis.exists("key"); }, 5s));
    clock.set(-1500ms);
    CHECK(clock.offset() == -1500ms);
}

TEST_CASE("a killed server restarts with its data, without it, or without its last writes") {
    RedisServer server{{.appendonly = true}};
    RawRedis redis{server};
    redis.text("SET", "first", "x");
    redis.text("SET", "last", "x");
    server.restart();
    redis.reconnect();
    CHECK(redis.keys().size() == 2);
    server.kill();
    CHECK(server.lose_last_bytes(3) == 3);
    server.restart();
    redis.reconnect();
    CHECK(redis.keys() == std::vector<std::string>{"first"});
    server.kill();
    server.lose_data();
    server.restart();
    redis.reconnect();
    CHECK(redis.keys().empty());
}

// Redis 7.0 leaves the beginning of a transaction in the file, and executes it at its second start.
TEST_CASE("a server that lost its last writes has all effects of a script or none, also after a second start") {
    const auto keys_after_loss_of = [](std::uintmax_t bytes) {
        RedisServer server{{.appendonly = true}};
        RawRedis redis{server};
        redis.text("SET", "first", "x");
        redis.call("EVAL", "redis.call('hset', 'half', 'a', 1) return redis.call('pexpire', 'half', 60000)", 0);
        server.kill();
        CHECK(server.lose_last_bytes(bytes) >= bytes);
        server.restart();
        redis.reconnect();
        CHECK_FALSE(redis.exists("half"));
        redis.call("EVAL", "redis.call('set', 'next', 1) return redis.call('pexpire', 'next', 60000)", 0);
        server.restart();
        redis.reconnect();
        auto keys = redis.keys();
        std::ranges::sort(keys);
        return keys;
    };
    const std::vector<std::string> whole{"first", "next"};
    for (const std::uintmax_t bytes : {1U, 20U, 40U, 60U, 80U, 100U, 115U}) {
        CAPTURE(bytes);
        CHECK(keys_after_loss_of(bytes) == whole);
    }
}

TEST_CASE("a server refuses writes for lack of memory, replicas, or a snapshot, and then accepts them again") {
    RedisServer server;
    RawRedis redis{server};
    const auto answer = [&] { return redis.call("SET", "key", "value").string; };
    refuse_memory(redis, true);
    CHECK(answer().starts_with("OOM"));
    refuse_memory(redis, false);
    CHECK(answer() == "OK");
    miss_replicas(redis, true);
    CHECK(answer().starts_with("NOREPLICAS"));
    miss_replicas(redis, false);
    CHECK(answer() == "OK");
    FailedSnapshot snapshot{server};
    CHECK(snapshot.begin(redis));
    CHECK(answer().starts_with("MISCONF"));
    snapshot.end(redis);
    CHECK(answer() == "OK");
    forbid_scripts(redis, true);
    CHECK(redis.call("EVAL", "return 1", 0).string.starts_with("NOPERM"));
    forbid_scripts(redis, false);
    CHECK(redis.integer("EVAL", "return 1", 0) == 1);
}

TEST_CASE("a server is busy with a script, pauses, or sleeps, and then replies again") {
    RedisServer server{{.args = {"--busy-reply-threshold", "10", "--enable-debug-command", "yes"}}};
    RawRedis redis{server};
    {
        EndlessScript script{server};
        CHECK(script.is_noticed());
        CHECK(redis.call("SET", "key", "value").string.starts_with("BUSY"));
        script.end();
    }
    CHECK(redis.text("SET", "key", "value") == "OK");
    for (const bool only_writes : {true, false}) {
        CAPTURE(only_writes);
        const Stopwatch watch;
        pause_commands(redis, 200ms, only_writes);
        CHECK(redis.text("SET", "key", "value") == "OK");
        CHECK(watch.elapsed() > 195ms);
    }
    const Stopwatch watch;
    sleep_server(redis, 200ms);
    CHECK(RawRedis{server}.text("PING") == "PONG");
    CHECK(watch.elapsed() >= 200ms);
}

TEST_CASE("keys and subscriptions left at the end are reported, except documented ones") {
    RedisServer server;
    RawRedis redis{server};
    redis.text("SET", "redisson_lock_token:{orders}", "7");
    redis.text("SET", "redisson_unlock_latch:{orders}:1", "1", "PX", 60'000);
    CHECK(leftovers(redis, documented_keys()).empty());
    redis.text("SET", "redisson_unlock_latch:{orders}:2", "1");  // without a TTL
    redis.integer("HSET", "orders", "owner", 1);
    RawRedis listener{server};
    listener.command({"SUBSCRIBE", "redisson_lock__channel:{orders}"});
    CHECK(leftovers(redis, documented_keys()).size() == 4);
    CHECK(leftovers(redis, documented_keys(), 1).size() == 3);
}
