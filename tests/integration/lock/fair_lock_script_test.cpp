// SPDX-License-Identifier: MIT
// The scripts of the fair lock, call by call: what they answer, what they leave in Redis, and whom they tell. Owners of
// ours refresh their slots; a foreign one is of the kind that Redisson's clients are.
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

namespace scripts = redlatch::scripts;
using redlatch::digested;

const std::string queue = "redisson_lock_queue:{orders}";
const std::string timeouts = "redisson_lock_timeout:{orders}";
const std::string slots = "redlatch_lock_slots:{orders}";
const std::string channels = "redisson_lock__channel:{orders}:";

// Longer than the machine may be busy with other things between two calls.
constexpr long long slot = 20'000;
constexpr long long redisson_patience = 300'000;

struct Bench {
    RedisServer server;
    RawRedis redis{server};

    // Whatever the answer is.
    RawReply send(const redlatch::Script& script, const Words& arguments) {
        Words words{"EVAL", std::string(script.text), "4", "orders", queue, timeouts, slots, "PUBLISH", channels};
        words.insert(words.end(), arguments.begin(), arguments.end());
        return redis.command(words);
    }
    RawReply run(const redlatch::Script& script, const Words& arguments) {
        RawReply reply = send(script, arguments);
        REQUIRE_MESSAGE(!reply.is_error(), reply.string);
        return reply;
    }

    RawReply ask(const std::string& owner, int count = 1) {
        return run(digested<scripts::fair_acquire>,
                   {owner, std::to_string(count), "30000", "0", std::to_string(always)});
    }
    static Words waiting_as(const std::string& owner, long long slot_length = slot, long long until = always) {
        return {owner, "1", "30000", std::to_string(slot_length), std::to_string(until)};
    }
    RawReply wait(const std::string& owner, long long slot_length = slot) {
        return run(digested<scripts::fair_acquire>, waiting_as(owner, slot_length));
    }
    RawReply release(const std::string& owner, int remaining = 0) {
        return run(digested<scripts::fair_release>, {owner, std::to_string(remaining), "30000"});
    }
    // Answered with the server's clock.
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

    // What a client of Redisson's writes, by its clock.
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

// One message, which says after how many milliseconds it is time to ask.
bool tells_to_ask_in(const Words& messages, long long ms) {
    return messages.size() == 1 && is_about(std::stoll(messages[0]), ms) && std::stoll(messages[0]) >= 2;
}

}  // namespace

TEST_CASE("a free lock without a queue is taken, and leaves a plain Redisson hash") {
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

TEST_CASE("waiters stand in the list in the order of their arrival, with times of the server's clock") {
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

TEST_CASE("asking twice is standing once, and refreshes the slot") {
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

TEST_CASE("who does not wait does not queue up, and passes nobody") {
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

TEST_CASE("behind a free lock a waiter is told to sleep until the head's slot ends") {
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

TEST_CASE("a key that never comes free is refused, and nothing is queued, whoever waits already") {
    Bench bench;
    bench.redis.call("HSET", "orders", "a", 1);  // without a TTL
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

TEST_CASE("a release tells the head alone, by its own channel") {
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
    CHECK(tells_to_ask_in(to_c.take(), 30'000));  // from here on it is the first
    bench.leave("b");                             // its hold is given up by name
    CHECK_FALSE(bench.redis.exists("orders"));
    CHECK(to_c.take() == Words{"0"});
    CHECK(to_b.take().empty());
}

TEST_CASE("who becomes the first while the lock is held is told when to ask, and nobody else is told") {
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

// One of Redisson's knows no such message.
TEST_CASE("a foreign waiter that becomes the first while the lock is held is told nothing") {
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

TEST_CASE("a head that leaves a free lock passes the turn on, and leaves nothing behind") {
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

TEST_CASE("leaving gives back a hold that nobody knew of") {
    Bench bench;
    bench.wait("a");
    bench.wait("b");
    Messages to_b{bench.server, channels + "b"};
    bench.leave("a");
    CHECK(to_b.take() == Words{"0"});
    CHECK_FALSE(bench.redis.exists("orders"));
}

TEST_CASE("whoever takes a dead head out tells the next one") {
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

TEST_CASE("an entry of which no time is known blocks nobody") {
    Bench bench;
    bench.redis.call("RPUSH", queue, "left over");
    CHECK(bench.wait("a").is_nil());
    CHECK(bench.redis.keys() == Words{"orders"});
}

TEST_CASE("a time without an entry in the list does not keep its owner out of the queue") {
    Bench bench;
    bench.wait("a");
    bench.redis.call("ZADD", timeouts, bench.now() + 60'000, "b");
    bench.wait("b");
    CHECK(bench.waiting() == Words{"b"});
}

TEST_CASE("giving back what ran out is no success, and tells the head") {
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

// Each hold and each place has an owner of its own, and with it what is sent about it.
TEST_CASE("a late copy of a release or of leaving does nothing to what came later") {
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

TEST_CASE("a question or a refresh that comes later than it is wanted changes nothing") {
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

TEST_CASE("nobody's time changes when others come, take the lock or leave") {
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

TEST_CASE("a refresh keeps those who wait, says who does not, and puts nobody back") {
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

TEST_CASE("a refresh tells a head that its lock is free, should no message have reached it") {
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

TEST_CASE("behind a foreign waiter our places outlast what it takes off when its turn comes") {
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
        bench.refresh({"b", "c"});  // gives them the same again
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

TEST_CASE("a dead waiter behind a foreign one is forgotten when its own slot ends, whatever its shared time says") {
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

TEST_CASE("slots of waiters that a foreign client has taken out are forgotten, too") {
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

TEST_CASE("queues that everybody has forgotten end, but not before a foreign waiter's time") {
    Bench bench;
    bench.wait("a");
    bench.foreigner_waits("foreign", bench.now() + 10'000'000);
    bench.wait("b");
    for (const std::string& key : {queue, timeouts, slots}) {
        CHECK(bench.redis.pttl(key) > 10'000'000);
        CHECK(bench.redis.pttl(key) < 20'000'000);
    }
}

TEST_CASE("without memory nobody queues up, but waiters are refreshed, leave, and are served") {
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

TEST_CASE("a key that a read-write lock uses is refused, and nothing is queued") {
    Bench bench;
    bench.redis.call("HSET", "orders", "mode", "read", "a", 1);
    const RawReply refused = bench.send(digested<scripts::fair_acquire>, Bench::waiting_as("d"));
    CHECK(refused.string.starts_with("WRONGTYPE"));
    CHECK(bench.redis.keys() == Words{"orders"});
}
