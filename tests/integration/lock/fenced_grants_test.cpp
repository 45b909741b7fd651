// SPDX-License-Identifier: MIT
// A release that grants a fenced lock to the next process in the server's queue draws the token of that hold.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/code_of.hpp"
#include "support/command_monitor.hpp"
#include "support/plain_counter.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::errc;
using redlatch::FencedLock;
using redlatch::RLock;

namespace {

const std::string counter_key = "redisson_lock_token:{orders}";
const std::string places_key = "redlatch_lock_places:{orders}";

struct Party {
    explicit Party(const std::string& url) : client(url), fenced(client, "orders") {}

    std::string own_channel() const { return channel_of("orders") + ":" + client.id(); }

    Client client;
    FencedLock fenced;
};

// Waits until the client has a place in the queue, listens, and has asked once more since then. `monitor`: from before
// the client began to wait.
void wait_for_place(RawRedis& redis, const Party& party, CommandMonitor& monitor) {
    REQUIRE(eventually(
        [&] {
            return redis.integer("HEXISTS", places_key, party.client.id()) == 1 &&
                   redis.lock_listeners(party.own_channel()) == 1;
        },
        20s));
    REQUIRE(monitor.take_until({{"subscribe", 1}, {"evalsha", 2}}, 20s));
}

// Lets the party wait for its fenced lock. Returns the token that it gets.
std::future<std::int64_t> start_visit(const RedisServer& server, RawRedis& redis, Party& party) {
    CommandMonitor monitor{server};
    auto visit = start([&party] {
        const std::int64_t token = party.fenced.lock_and_get_token();
        CHECK(party.fenced.token() == token);
        party.fenced.unlock();
        return token;
    });
    wait_for_place(redis, party, monitor);
    return visit;
}

std::int64_t last_token(RawRedis& redis) { return std::stoll(redis.text("GET", counter_key)); }

}  // namespace

TEST_CASE("a release grants a fenced lock with its token, and the waiter sends nothing to enter") {
    RedisServer server;
    RawRedis redis{server};
    // On a busy machine the first renewal may come before the count is read.
    CHECK(succeeds_once([&] {
        Party a{server.url()}, b{server.url()};
        const std::int64_t first = a.fenced.lock_and_get_token();
        std::atomic<bool> may_leave{false};
        std::atomic<std::int64_t> token{0};
        CommandMonitor monitor{server};
        auto visit = start([&] {
            token = b.fenced.lock_and_get_token();
            eventually([&] { return may_leave.load(); }, 60s);
            b.fenced.unlock();
        });
        wait_for_place(redis, b, monitor);
        const auto commands = b.client.stats().commands;
        a.fenced.unlock();
        REQUIRE(eventually([&] { return token != 0; }, 20s));
        const bool sent_nothing = b.client.stats().commands == commands;
        CHECK(token > first);
        CHECK(token == last_token(redis));
        CHECK(redis.list("HKEYS", "orders").at(0).starts_with(b.client.id()));
        may_leave = true;
        visit.get();
        CHECK(eventually([&] { return redis.keys() == Words{counter_key}; }, 20s));
        return sent_nothing;
    }));
}

TEST_CASE("tokens grow from hold to hold, by grants and by hand-overs, and an acquisition is two commands") {
    RedisServer server;
    RawRedis redis{server};
    std::vector<std::unique_ptr<Party>> parties;
    for (int i = 0; i < 3; ++i) parties.push_back(std::make_unique<Party>(server.url()));
    PlainCounter counter;
    std::vector<std::int64_t> tokens;  // the lock guards it
    std::vector<std::future<void>> all;
    constexpr int threads = 2, turns = 60;
    for (auto& party : parties)
        for (int thread = 0; thread < threads; ++thread)
            all.push_back(start([&counter, &tokens, &lock = party->fenced] {
                for (int i = 0; i < turns; ++i) {
                    const std::int64_t token = lock.lock_and_get_token();
                    tokens.push_back(token);
                    counter.add_one_unseen();
                    lock.unlock();
                }
            }));
    for (auto& one : all) one.get();
    const int total = 3 * threads * turns;
    CHECK(counter.value() == total);
    REQUIRE(tokens.size() == static_cast<std::size_t>(total));
    for (std::size_t i = 1; i < tokens.size(); ++i) CHECK(tokens[i] > tokens[i - 1]);
    CHECK(tokens.back() == last_token(redis));
    std::uint64_t commands = 0;
    for (auto& party : parties) commands += party->client.stats().commands;
    CHECK(static_cast<double>(commands) / total <= 2.2);
}

TEST_CASE("the release of an RLock of that name wakes a fenced waiter, which gets its token by asking") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server.url()}, b{server.url()};
    RLock plain{a.client, "orders"};
    plain.lock();
    auto visit = start_visit(server, redis, b);
    CHECK_FALSE(redis.exists(counter_key));
    plain.unlock();
    REQUIRE(ready(visit, 20s));
    CHECK(visit.get() == last_token(redis));
}

TEST_CASE("the release of a fenced lock grants an RLock of that name without a token") {
    RedisServer server;
    RawRedis redis{server};
    // On a busy machine the first renewal may come before the count is read.
    CHECK(succeeds_once([&] {
        Party a{server.url()}, b{server.url()};
        const std::int64_t token = a.fenced.lock_and_get_token();
        RLock plain{b.client, "orders"};
        CommandMonitor monitor{server};
        auto visit = start([&] {
            plain.lock();
            const auto commands = b.client.stats().commands;
            plain.unlock();
            return commands;
        });
        wait_for_place(redis, b, monitor);
        const auto commands = b.client.stats().commands;
        a.fenced.unlock();
        REQUIRE(ready(visit, 20s));
        CHECK(last_token(redis) == token);
        return visit.get() == commands;
    }));
}

TEST_CASE("a grant without its token is no hold: the waiter asks for the token") {
    RedisServer server;
    RawRedis redis{server};
    Party b{server.url()};
    redis.integer("HSET", "orders", "6a1b4b2a-3c0e-4b5f-9d3e-0a1b2c3d4e5f:1", "1");
    redis.integer("PEXPIRE", "orders", 60'000);
    redis.text("SET", counter_key, "41");
    auto visit = start_visit(server, redis, b);
    const std::string place = redis.text("HGET", places_key, b.client.id());
    const std::string number = place.substr(0, place.find(' '));
    redis.integer("DEL", "orders");
    redis.integer("HSET", "orders", b.client.id() + ":" + number, "1");
    redis.integer("PEXPIRE", "orders", 60'000);
    const std::string now = std::to_string(redis.now());
    redis.integer("PUBLISH", b.own_channel(), "grant " + number + " " + now + " 2000");
    REQUIRE(ready(visit, 20s));
    CHECK(visit.get() == 41);
}

TEST_CASE("if no token can be drawn, the release ends all the same, and the waiter reports why") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server.url()}, b{server.url()};
    a.fenced.lock();
    CommandMonitor monitor{server};
    auto visit = start([&] { return code_of([&] { b.fenced.lock(); }); });
    wait_for_place(redis, b, monitor);
    redis.text("SET", counter_key, "no token");
    a.fenced.unlock();
    REQUIRE(ready(visit, 20s));
    CHECK(visit.get() == errc::wrong_type);
    CHECK_FALSE(redis.exists("orders"));
    CHECK(a.client.stats().lost_holds == 0);
}

TEST_CASE("without the rights to the queue's keys fenced locks wait as ever") {
    RedisServer server;
    RawRedis redis{server};
    redis.text("ACL", "SETUSER", "limited", "on", ">secret", "+@all", "~orders", "~redisson_*", "&*");
    const std::string url = server.url_of("limited");
    Party one{url}, two{url};
    std::int64_t last = 0;
    for (int round = 0; round < 3; ++round) {
        const std::int64_t token = one.fenced.lock_and_get_token();
        CHECK(token > last);
        auto visit = start([&] {
            last = two.fenced.lock_and_get_token();
            two.fenced.unlock();
        });
        REQUIRE(is_listened_to(redis, "orders"));
        one.fenced.unlock();
        REQUIRE(ready(visit, 20s));
        visit.get();
        CHECK(last > token);
    }
}
