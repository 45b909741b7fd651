// SPDX-License-Identifier: MIT
// The scripts of the fair lock, call by call: their replies, their effects in Redis, and their notifications. Our
// waiters refresh their slots. A foreign waiter is like one of Redisson's clients.
#include <doctest/doctest.h>
#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "integration/rlock_helpers.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

namespace scripts = redlatch::detail::scripts;
using redlatch::detail::digested;

const std::string queue = "redisson_lock_queue:{orders}";
const std::string timeouts = "redisson_lock_timeout:{orders}";
const std::string slots = "redlatch_lock_slots:{orders}";
const std::string channels = "redisson_lock__channel:{orders}:";

// Longer than a busy machine may delay the next call.
constexpr long long slot = 20'000;
constexpr long long redisson_patience = 300'000;

struct Bench {
    RedisServer server;
    RawRedis redis{server};

    // Returns any reply, errors included.
    RawReply send(const redlatch::detail::Script& script, const Words& arguments) {
        Words words{"EVAL", script.text(), "4", "orders", queue, timeouts, slots, "PUBLISH", channels};
        words.insert(words.end(), arguments.begin(), arguments.end());
        return redis.command(words);
    }
    RawReply run(const redlatch::detail::Script& script, const Words& arguments) {
        RawReply reply = send(script, arguments);
        REQUIRE_MESSAGE(!reply.is_error(), reply.string);
        return reply;
    }

    RawReply ask(const std::string& owner, int count = 1) {
        return run(digested<scripts::fair_acquire>,
                   {owner, std::to_string(count), "30000", "0", std::to_string(always), "0"});
    }
    static Words waiting_as(const std::string& owner, long long slot_length = slot, long long until = always,
                            const std::string& mark = "0") {
        return {owner, "1", "30000", std::to_string(slot_length), std::to_string(until), mark};
    }
    RawReply wait(const std::string& owner, long long slot_length = slot) {
        return run(digested<scripts::fair_acquire>, waiting_as(owner, slot_length));
    }
    RawReply release(const std::string& owner, int remaining = 0) {
        return run(digested<scripts::fair_release>, {owner, std::to_string(remaining), "30000"});
    }
    // The reply is the server's time.
    void leave(const std::string& owner) {
        const long long before = now();
        const RawReply answer = run(digested<scripts::fair_leave>, {owner});
        CHECK(answer.integer >= before);
        CHECK(answer.integer <= now());
    }
    std::vector<RawReply> refresh(Words owners) {
        owners.insert(owners.begin(), {std::to_string(slot), std::to_string(always)});
        return run(digested<scripts::fair_refresh>, owners).elements;
    }

    Words waiting() { return redis.list("LRANGE", queue, 0, -1); }
    long long score(const std::string& owner) { return redis.integer("ZSCORE", timeouts, owner); }
    long long now() {
        const Words time = redis.list("TIME");
        return std::stoll(time.at(0)) * 1000 + std::stoll(time.at(1)) / 1000;
    }

    // Writes what a client of Redisson writes, by the client's clock.
    void foreigner_waits(const std::string& owner, long long until) {
        redis.call("RPUSH", queue, owner);
        redis.call("ZADD", timeouts, until, owner);
    }
    void foreigner_purges(long long clock) {
        for (;;) {
            const RawReply head = redis.call("LINDEX", queue, 0);
            if (head.is_nil()) return;
            const RawReply ends = redis.call("ZSCORE", timeouts, head.string);
            if (ends.is_nil() || std::stod(ends.string) > static_cast<double>(clock)) return;
            redis.call("ZREM", timeouts, head.string);
            redis.call("LPOP", queue);
        }
    }
    void foreigner_takes(const std::string& owner) {
        REQUIRE(waiting().at(0) == owner);
        redis.call("LPOP", queue);
        redis.call("ZREM", timeouts, owner);
        for (const std::string& other : redis.list("ZRANGE", timeouts, 0, -1))
            redis.call("ZINCRBY", timeouts, -redisson_patience, other);
        redis.call("HSET", "orders", owner, 1);
        redis.call("PEXPIRE", "orders", 30'000);
    }

    void let_die(const std::string& owner) { redis.call("ZADD", slots, now() - 1, owner); }
};

bool is_about(long long value, long long expected) { return value <= expected && value > expected - 4000; }

// Returns true for one message that reports in how many milliseconds to ask.
bool tells_to_ask_in(const Words& messages, long long ms) {
    return messages.size() == 1 && is_about(std::stoll(messages[0]), ms) && std::stoll(messages[0]) >= 2;
}

}  // namespace

TEST_CASE("acquiring a free lock without a queue creates a plain Redisson hash") {
    Bench bench;
    CHECK(bench.wait("a").is_nil());
    CHECK(bench.redis.keys() == Words{"orders"});
    CHECK(bench.redis.hgetall("orders") == Fields{{"a", "1"}});
    CHECK(is_about(bench.redis.pttl("orders"), 30'000));
    CHECK(bench.ask("a", 2).is_nil());
    CHECK(bench.redis.hgetall("orders") == Fields{{"a", "2"}});
    CHECK(bench.release("a", 1).integer == -1);
    CHECK(bench.release("a").integer == 0);
    CHECK(bench.redis.keys().empty());
}

TEST_CASE("waiters are listed in order of arrival, with times by the server's clock") {
    Bench bench;
    bench.wait("a");
    const long long before = bench.now();
    CHECK(is_about(bench.wait("b").integer, 30'000));
    CHECK(is_about(bench.wait("c").integer, 30'000 + slot));
    CHECK(bench.waiting() == Words{"b", "c"});
    for (const std::string owner : {"b", "c"}) {
        CHECK(bench.score(owner) >= before + slot);
        CHECK(bench.score(owner) <= bench.now() + slot);
    }
}

TEST_CASE("a waiter that asks twice is in the queue once, and its slot is refreshed") {
    Bench bench;
    bench.wait("a");
    bench.wait("b", slot / 4);
    bench.wait("c");
    bench.wait("b");
    CHECK(bench.waiting() == Words{"b", "c"});
    CHECK(bench.score("b") > bench.now() + slot / 2);
    bench.redis.call("DEL", "orders");
    CHECK(bench.wait("b").is_nil());
    CHECK(bench.wait("b").is_nil());
    CHECK(bench.redis.hgetall("orders") == Fields{{"b", "1"}});
    CHECK(bench.waiting() == Words{"c"});
}

TEST_CASE("a single try neither joins the queue nor passes a waiter") {
    Bench bench;
    bench.wait("a");
    CHECK_FALSE(bench.ask("b").is_nil());
    CHECK(bench.redis.keys() == Words{"orders"});
    bench.wait("c");
    bench.release("a");
    CHECK(bench.ask("b").integer > 0);
    CHECK(bench.waiting() == Words{"c"});
    CHECK(bench.wait("c").is_nil());
    CHECK(bench.redis.keys() == Words{"orders"});
}

TEST_CASE("behind a free lock the reply to a waiter is the time until the head's slot ends") {
    Bench bench;
    bench.wait("a");
    bench.wait("b");
    bench.wait("c");
    bench.redis.call("DEL", "orders");
    CHECK(is_about(bench.wait("c").integer, slot));
    bench.foreigner_waits("foreign", bench.now() + 60'000);
    bench.leave("b");
    bench.leave("c");
    CHECK(is_about(bench.wait("d").integer, 60'000));
    CHECK(bench.waiting() == Words{"foreign", "d"});
}

TEST_CASE("a key without a TTL is refused, and nothing is queued, even if there are waiters") {
    Bench bench;
    bench.redis.call("HSET", "orders", "a", 1);  // no TTL
    const auto refused = [&](const std::string& owner) {
        return bench.send(digested<scripts::fair_acquire>, Bench::waiting_as(owner)).string.starts_with("WRONGTYPE");
    };
    CHECK(refused("b"));
    CHECK(bench.redis.keys() == Words{"orders"});
    bench.redis.call("PEXPIRE", "orders", 60'000);
    bench.wait("b");
    bench.redis.call("PERSIST", "orders");
    CHECK(refused("b"));
    CHECK(refused("c"));
    bench.foreigner_waits("foreign", bench.now() - 5000);
    CHECK(refused("c"));
    bench.let_die("b");
    CHECK(refused("c"));
    CHECK(bench.waiting().empty());
    CHECK(bench.redis.keys() == Words{"orders"});
    CHECK(bench.redis.hgetall("orders") == Fields{{"a", "1"}});
}

TEST_CASE("a release notifies the head alone, on its own channel") {
    Bench bench;
    bench.wait("a");
    bench.wait("b");
    bench.wait("c");
    Messages to_b{bench.server, channels + "b"};
    Messages to_c{bench.server, channels + "c"};
    CHECK(bench.release("a").integer == 1);
    CHECK(to_b.take() == Words{"0"});
    CHECK(to_c.take().empty());
    CHECK(bench.wait("b").is_nil());
    CHECK(tells_to_ask_in(to_c.take(), 30'000));  // c is the head now
    bench.leave("b");                             // releases the hold of that owner
    CHECK_FALSE(bench.redis.exists("orders"));
    CHECK(to_c.take() == Words{"0"});
    CHECK(to_b.take().empty());
}

TEST_CASE("a waiter that becomes the head while the lock is held is notified of when to ask, and no other is") {
    for (const std::string by : {"the head takes the lock", "the head leaves", "the head is dead"}) {
        CAPTURE(by);
        Bench bench;
        bench.wait("a");
        bench.wait("b");
        bench.wait("c");
        bench.wait("d");
        Messages to_b{bench.server, channels + "b"};
        Messages to_c{bench.server, channels + "c"};
        Messages to_d{bench.server, channels + "d"};
        if (by == "the head takes the lock") {
            bench.redis.call("DEL", "orders");
            CHECK(bench.wait("b").is_nil());
        }
        if (by == "the head leaves") bench.leave("b");
        if (by == "the head is dead") {
            bench.let_die("b");
            bench.ask("e");
        }
        CHECK(tells_to_ask_in(to_c.take(), 30'000));
        CHECK(to_b.take().empty());
        CHECK(to_d.take().empty());
    }
}

// Redisson's clients do not know this message.
TEST_CASE("a foreign waiter that becomes the head while the lock is held is not notified") {
    Bench bench;
    bench.wait("a");
    bench.wait("b");
    bench.foreigner_waits("foreign", bench.now() + 100'000);
    bench.wait("c");
    Messages to_foreigner{bench.server, channels + "foreign"};
    Messages to_c{bench.server, channels + "c"};
    bench.leave("b");
    CHECK(bench.waiting() == Words{"foreign", "c"});
    CHECK(to_foreigner.take().empty());
    CHECK(to_c.take().empty());
}

TEST_CASE("a head that leaves a free lock notifies the next waiter, and leaves nothing behind") {
    Bench bench;
    bench.wait("a");
    bench.wait("b");
    bench.wait("c");
    Messages to_c{bench.server, channels + "c"};
    bench.leave("b");
    CHECK(tells_to_ask_in(to_c.take(), 30'000));
    bench.wait("d");
    bench.redis.call("DEL", "orders");
    Messages to_d{bench.server, channels + "d"};
    bench.leave("c");
    CHECK(to_d.take() == Words{"0"});
    CHECK(bench.waiting() == Words{"d"});
    CHECK(bench.redis.list("ZRANGE", timeouts, 0, -1) == Words{"d"});
    CHECK(bench.redis.list("ZRANGE", slots, 0, -1) == Words{"d"});
    bench.leave("d");
    CHECK(bench.redis.keys().empty());
}

TEST_CASE("leaving releases a hold of the owner, too") {
    Bench bench;
    bench.wait("a");
    bench.wait("b");
    Messages to_b{bench.server, channels + "b"};
    bench.leave("a");
    CHECK(to_b.take() == Words{"0"});
    CHECK_FALSE(bench.redis.exists("orders"));
}

TEST_CASE("removing a dead head notifies the next waiter, in every script") {
    for (const std::string by : {"a poll", "a newcomer", "a refresh", "a release that is too late"}) {
        CAPTURE(by);
        Bench bench;
        bench.wait("a");
        bench.wait("b");
        bench.wait("c");
        bench.wait("d");
        bench.redis.call("DEL", "orders");
        bench.let_die("b");
        Messages to_c{bench.server, channels + "c"};
        if (by == "a poll") bench.wait("d");
        if (by == "a newcomer") bench.ask("e");
        if (by == "a refresh") bench.refresh({"d"});
        if (by == "a release that is too late") bench.release("a");
        CHECK(to_c.take() == Words{"0"});
        CHECK(bench.waiting() == Words{"c", "d"});
        CHECK(bench.redis.list("ZRANGE", timeouts, 0, -1) == Words{"c", "d"});
    }
}

TEST_CASE("a queue entry without a time does not block the lock") {
    Bench bench;
    bench.redis.call("RPUSH", queue, "left over");
    CHECK(bench.wait("a").is_nil());
    CHECK(bench.redis.keys() == Words{"orders"});
}

TEST_CASE("a waiter with a time but without a queue entry joins the queue") {
    Bench bench;
    bench.wait("a");
    bench.redis.call("ZADD", timeouts, bench.now() + 60'000, "b");
    bench.wait("b");
    CHECK(bench.waiting() == Words{"b"});
}

TEST_CASE("releasing an expired hold is no success, and notifies the head") {
    Bench bench;
    bench.wait("a");
    bench.wait("b");
    bench.redis.call("DEL", "orders");
    Messages to_b{bench.server, channels + "b"};
    CHECK(bench.release("a").is_nil());
    CHECK(to_b.take() == Words{"0"});
    bench.wait("b");
    CHECK(bench.release("a").is_nil());
    CHECK(to_b.take().empty());
    CHECK(bench.redis.hgetall("orders") == Fields{{"b", "1"}});
}

// Each hold and each slot has its own owner, and commands name that owner.
TEST_CASE("a late copy of a release or of leaving does not affect later holds or slots") {
    Bench bench;
    bench.wait("a:1");
    bench.release("a:1");
    bench.wait("a:2");
    CHECK(bench.release("a:1").is_nil());
    bench.leave("a:1");
    CHECK(bench.redis.hgetall("orders") == Fields{{"a:2", "1"}});
    bench.wait("b:1");
    bench.leave("b:1");
    bench.wait("b:2");
    bench.leave("b:1");
    CHECK(bench.refresh({"b:1", "b:2"}).at(0).integer == 0);
    CHECK(bench.waiting() == Words{"b:2"});
}

TEST_CASE("an acquire or a refresh that arrives too late changes nothing") {
    Bench bench;
    const auto late = [](const RawReply& reply) { return reply.is_error() && reply.string.starts_with("LATE "); };
    const auto ask_late = [&](const std::string& owner) {
        return bench.send(digested<scripts::fair_acquire>, Bench::waiting_as(owner, slot, bench.now() - 1));
    };
    CHECK(late(ask_late("a")));
    CHECK(bench.redis.keys().empty());
    bench.wait("a");
    CHECK(late(ask_late("a")));
    CHECK(late(ask_late("b")));
    CHECK(bench.redis.keys() == Words{"orders"});
    bench.wait("b", slot / 4);
    const auto before = bench.score("b");
    CHECK(late(
        bench.send(digested<scripts::fair_refresh>, {std::to_string(slot), std::to_string(bench.now() - 1), "b"})));
    CHECK(bench.score("b") == before);
    bench.release("a");
    CHECK(late(ask_late("b")));
    CHECK_FALSE(bench.redis.exists("orders"));
    CHECK(bench.waiting() == Words{"b"});
}

TEST_CASE("a waiter's time does not change when others arrive, acquire the lock or leave") {
    Bench bench;
    bench.wait("a");
    bench.wait("b");
    bench.foreigner_waits("foreign", bench.now() + 100'000);
    bench.wait("c");
    bench.wait("d");
    const auto foreign = bench.score("foreign");
    const auto last = bench.score("d");
    bench.release("a");
    bench.wait("b");
    bench.leave("c");
    bench.refresh({"b"});
    CHECK(bench.score("foreign") == foreign);
    CHECK(bench.score("d") == last);
}

TEST_CASE("a refresh keeps the waiters in the queue, reports the others, and puts none of them back") {
    Bench bench;
    bench.wait("a");
    bench.wait("b", slot / 4);
    bench.wait("c", slot / 4);
    const auto kept = bench.refresh({"b", "gone", "c"});
    REQUIRE(kept.size() == 3);
    CHECK(kept[0].integer == 1);
    CHECK(kept[1].integer == 0);
    CHECK(kept[2].integer == 1);
    CHECK(bench.waiting() == Words{"b", "c"});
    CHECK(bench.score("c") > bench.now() + slot / 2);
    CHECK(bench.redis.integer("ZCARD", slots) == 2);
    bench.leave("b");
    CHECK(bench.refresh({"b"}).at(0).integer == 0);
    CHECK(bench.waiting() == Words{"c"});
}

TEST_CASE("a refresh notifies the head of a free lock, in case an earlier message was lost") {
    Bench bench;
    bench.wait("a");
    bench.wait("b");
    Messages to_b{bench.server, channels + "b"};
    bench.refresh({"b"});
    CHECK(to_b.take().empty());
    bench.redis.call("DEL", "orders");
    bench.refresh({"b"});
    CHECK(to_b.take() == Words{"0"});
}

TEST_CASE("our slots behind a foreign waiter outlast the time that it subtracts when its turn comes") {
    Bench bench;
    bench.wait("a");
    bench.foreigner_waits("foreign 1", bench.now() + redisson_patience);
    bench.foreigner_waits("foreign 2", bench.now() + 2 * redisson_patience);
    bench.wait("b");
    bench.foreigner_waits("foreign 3", bench.now() + 3 * redisson_patience);
    bench.wait("c");
    for (int round = 0; round < 2; ++round) {
        CAPTURE(round);
        CHECK(is_about(bench.score("b"), bench.now() + slot + 2 * redisson_patience));
        CHECK(is_about(bench.score("c"), bench.now() + slot + 3 * redisson_patience));
        bench.refresh({"b", "c"});  // has the same result again
    }
    for (const std::string foreign : {"foreign 1", "foreign 2"}) {
        bench.redis.call("DEL", "orders");
        bench.foreigner_purges(bench.now());
        bench.foreigner_takes(foreign);
    }
    bench.redis.call("DEL", "orders");
    bench.foreigner_purges(bench.now());
    CHECK(bench.waiting() == Words{"b", "foreign 3", "c"});
    CHECK(bench.wait("b").is_nil());
    bench.refresh({"c"});
    bench.redis.call("DEL", "orders");
    bench.foreigner_takes("foreign 3");
    bench.redis.call("DEL", "orders");
    bench.foreigner_purges(bench.now());
    CHECK(bench.wait("c").is_nil());
}

TEST_CASE("a dead waiter behind a foreign one is removed when its own slot ends, whatever time Redisson's set has") {
    Bench bench;
    bench.wait("a");
    bench.foreigner_waits("foreign", bench.now() + redisson_patience);
    bench.wait("b");
    bench.wait("c");
    bench.let_die("b");
    bench.redis.call("DEL", "orders");
    bench.foreigner_takes("foreign");
    Messages to_c{bench.server, channels + "c"};
    bench.redis.call("DEL", "orders");
    bench.refresh({"c"});
    CHECK(bench.waiting() == Words{"c"});
    CHECK(to_c.take() == Words{"0"});
}

TEST_CASE("the slots of waiters that a foreign client has removed are removed, too") {
    Bench bench;
    bench.wait("a");
    bench.wait("b", 3000);
    bench.foreigner_waits("foreign", bench.now() + redisson_patience);
    bench.wait("c");
    bench.foreigner_purges(bench.now() + 10'000);
    CHECK(bench.waiting() == Words{"foreign", "c"});
    REQUIRE(eventually([&] { return bench.now() > bench.redis.integer("ZSCORE", slots, "b"); }, 20s));
    bench.refresh({"c"});
    CHECK(bench.redis.list("ZRANGE", slots, 0, -1) == Words{"c"});
    CHECK(bench.score("c") > bench.now() + redisson_patience);
}

TEST_CASE("an abandoned queue expires, but not before a foreign waiter's time") {
    Bench bench;
    bench.wait("a");
    bench.foreigner_waits("foreign", bench.now() + 10'000'000);
    bench.wait("b");
    for (const std::string& key : {queue, timeouts, slots}) {
        CHECK(bench.redis.pttl(key) > 10'000'000);
        CHECK(bench.redis.pttl(key) < 20'000'000);
    }
}

TEST_CASE("without memory no waiter joins the queue, but waiters are refreshed, leave, and are served") {
    Bench bench;
    bench.wait("a");
    bench.wait("b");
    bench.wait("c");
    bench.redis.call("CONFIG", "SET", "maxmemory", 1);
    const RawReply refused = bench.send(digested<scripts::fair_acquire>, Bench::waiting_as("d"));
    CHECK(refused.is_error());
    CHECK(refused.string.find("OOM") != std::string::npos);
    CHECK(bench.refresh({"b", "c"}).at(0).integer == 1);
    CHECK(bench.waiting() == Words{"b", "c"});
    bench.leave("b");
    Messages to_c{bench.server, channels + "c"};
    CHECK(bench.release("a").integer == 1);
    CHECK(to_c.take() == Words{"0"});
}

TEST_CASE("a key of a read-write lock is refused, and nothing is queued") {
    Bench bench;
    bench.redis.call("HSET", "orders", "mode", "read", "a", 1);
    bench.redis.call("PEXPIRE", "orders", 60'000);
    const RawReply refused = bench.send(digested<scripts::fair_acquire>, Bench::waiting_as("d"));
    CHECK(refused.string.starts_with("WRONGTYPE the key holds a read-write lock"));
    CHECK(bench.redis.keys() == Words{"orders"});
}
