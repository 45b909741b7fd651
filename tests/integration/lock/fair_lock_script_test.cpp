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

struct Fixture {
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
    long long now() { return redis.now(); }

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
    Fixture fixture;
    CHECK(fixture.wait("a").is_nil());
    CHECK(fixture.redis.keys() == Words{"orders"});
    CHECK(fixture.redis.hgetall("orders") == Fields{{"a", "1"}});
    CHECK(is_about(fixture.redis.pttl("orders"), 30'000));
    CHECK(fixture.ask("a", 2).is_nil());
    CHECK(fixture.redis.hgetall("orders") == Fields{{"a", "2"}});
    CHECK(fixture.release("a", 1).integer == -1);
    CHECK(fixture.release("a").integer == 0);
    CHECK(fixture.redis.keys().empty());
}

TEST_CASE("waiters are listed in order of arrival, with times by the server's clock") {
    Fixture fixture;
    fixture.wait("a");
    const long long before = fixture.now();
    CHECK(is_about(fixture.wait("b").integer, 30'000));
    CHECK(is_about(fixture.wait("c").integer, 30'000 + slot));
    CHECK(fixture.waiting() == Words{"b", "c"});
    for (const std::string owner : {"b", "c"}) {
        CHECK(fixture.score(owner) >= before + slot);
        CHECK(fixture.score(owner) <= fixture.now() + slot);
    }
}

TEST_CASE("a waiter that asks twice is in the queue once, and its slot is refreshed") {
    Fixture fixture;
    fixture.wait("a");
    fixture.wait("b", slot / 4);
    fixture.wait("c");
    fixture.wait("b");
    CHECK(fixture.waiting() == Words{"b", "c"});
    CHECK(fixture.score("b") > fixture.now() + slot / 2);
    fixture.redis.call("DEL", "orders");
    CHECK(fixture.wait("b").is_nil());
    CHECK(fixture.wait("b").is_nil());
    CHECK(fixture.redis.hgetall("orders") == Fields{{"b", "1"}});
    CHECK(fixture.waiting() == Words{"c"});
}

TEST_CASE("a single try neither joins the queue nor passes a waiter") {
    Fixture fixture;
    fixture.wait("a");
    CHECK_FALSE(fixture.ask("b").is_nil());
    CHECK(fixture.redis.keys() == Words{"orders"});
    fixture.wait("c");
    fixture.release("a");
    CHECK(fixture.ask("b").integer > 0);
    CHECK(fixture.waiting() == Words{"c"});
    CHECK(fixture.wait("c").is_nil());
    CHECK(fixture.redis.keys() == Words{"orders"});
}

TEST_CASE("behind a free lock the reply to a waiter is the time until the head's slot ends") {
    Fixture fixture;
    fixture.wait("a");
    fixture.wait("b");
    fixture.wait("c");
    fixture.redis.call("DEL", "orders");
    CHECK(is_about(fixture.wait("c").integer, slot));
    fixture.foreigner_waits("foreign", fixture.now() + 60'000);
    fixture.leave("b");
    fixture.leave("c");
    CHECK(is_about(fixture.wait("d").integer, 60'000));
    CHECK(fixture.waiting() == Words{"foreign", "d"});
}

TEST_CASE("a key without a TTL is refused, and nothing is queued, even if there are waiters") {
    Fixture fixture;
    fixture.redis.call("HSET", "orders", "a", 1);  // no TTL
    const auto refused = [&](const std::string& owner) {
        return fixture.send(digested<scripts::fair_acquire>, Fixture::waiting_as(owner))
            .string.starts_with("WRONGTYPE");
    };
    CHECK(refused("b"));
    CHECK(fixture.redis.keys() == Words{"orders"});
    fixture.redis.call("PEXPIRE", "orders", 60'000);
    fixture.wait("b");
    fixture.redis.call("PERSIST", "orders");
    CHECK(refused("b"));
    CHECK(refused("c"));
    fixture.foreigner_waits("foreign", fixture.now() - 5000);
    CHECK(refused("c"));
    fixture.let_die("b");
    CHECK(refused("c"));
    CHECK(fixture.waiting().empty());
    CHECK(fixture.redis.keys() == Words{"orders"});
    CHECK(fixture.redis.hgetall("orders") == Fields{{"a", "1"}});
}

TEST_CASE("a release notifies the head alone, on its own channel") {
    Fixture fixture;
    fixture.wait("a");
    fixture.wait("b");
    fixture.wait("c");
    Messages to_b{fixture.server, channels + "b"};
    Messages to_c{fixture.server, channels + "c"};
    CHECK(fixture.release("a").integer == 1);
    CHECK(to_b.take() == Words{"0"});
    CHECK(to_c.take().empty());
    CHECK(fixture.wait("b").is_nil());
    CHECK(tells_to_ask_in(to_c.take(), 30'000));  // c is the head now
    fixture.leave("b");                           // releases the hold of that owner
    CHECK_FALSE(fixture.redis.exists("orders"));
    CHECK(to_c.take() == Words{"0"});
    CHECK(to_b.take().empty());
}

TEST_CASE("a waiter that becomes the head while the lock is held is notified of when to ask, and no other is") {
    for (const std::string by : {"the head takes the lock", "the head leaves", "the head is dead"}) {
        CAPTURE(by);
        Fixture fixture;
        fixture.wait("a");
        fixture.wait("b");
        fixture.wait("c");
        fixture.wait("d");
        Messages to_b{fixture.server, channels + "b"};
        Messages to_c{fixture.server, channels + "c"};
        Messages to_d{fixture.server, channels + "d"};
        if (by == "the head takes the lock") {
            fixture.redis.call("DEL", "orders");
            CHECK(fixture.wait("b").is_nil());
        }
        if (by == "the head leaves") fixture.leave("b");
        if (by == "the head is dead") {
            fixture.let_die("b");
            fixture.ask("e");
        }
        CHECK(tells_to_ask_in(to_c.take(), 30'000));
        CHECK(to_b.take().empty());
        CHECK(to_d.take().empty());
    }
}

// Redisson's clients do not know this message.
TEST_CASE("a foreign waiter that becomes the head while the lock is held is not notified") {
    Fixture fixture;
    fixture.wait("a");
    fixture.wait("b");
    fixture.foreigner_waits("foreign", fixture.now() + 100'000);
    fixture.wait("c");
    Messages to_foreigner{fixture.server, channels + "foreign"};
    Messages to_c{fixture.server, channels + "c"};
    fixture.leave("b");
    CHECK(fixture.waiting() == Words{"foreign", "c"});
    CHECK(to_foreigner.take().empty());
    CHECK(to_c.take().empty());
}

TEST_CASE("a head that leaves a free lock notifies the next waiter, and leaves nothing behind") {
    Fixture fixture;
    fixture.wait("a");
    fixture.wait("b");
    fixture.wait("c");
    Messages to_c{fixture.server, channels + "c"};
    fixture.leave("b");
    CHECK(tells_to_ask_in(to_c.take(), 30'000));
    fixture.wait("d");
    fixture.redis.call("DEL", "orders");
    Messages to_d{fixture.server, channels + "d"};
    fixture.leave("c");
    CHECK(to_d.take() == Words{"0"});
    CHECK(fixture.waiting() == Words{"d"});
    CHECK(fixture.redis.list("ZRANGE", timeouts, 0, -1) == Words{"d"});
    CHECK(fixture.redis.list("ZRANGE", slots, 0, -1) == Words{"d"});
    fixture.leave("d");
    CHECK(fixture.redis.keys().empty());
}

TEST_CASE("leaving releases a hold of the owner, too") {
    Fixture fixture;
    fixture.wait("a");
    fixture.wait("b");
    Messages to_b{fixture.server, channels + "b"};
    fixture.leave("a");
    CHECK(to_b.take() == Words{"0"});
    CHECK_FALSE(fixture.redis.exists("orders"));
}

TEST_CASE("removing a dead head notifies the next waiter, in every script") {
    for (const std::string by : {"a poll", "a newcomer", "a refresh", "a release that is too late"}) {
        CAPTURE(by);
        Fixture fixture;
        fixture.wait("a");
        fixture.wait("b");
        fixture.wait("c");
        fixture.wait("d");
        fixture.redis.call("DEL", "orders");
        fixture.let_die("b");
        Messages to_c{fixture.server, channels + "c"};
        if (by == "a poll") fixture.wait("d");
        if (by == "a newcomer") fixture.ask("e");
        if (by == "a refresh") fixture.refresh({"d"});
        if (by == "a release that is too late") fixture.release("a");
        CHECK(to_c.take() == Words{"0"});
        CHECK(fixture.waiting() == Words{"c", "d"});
        CHECK(fixture.redis.list("ZRANGE", timeouts, 0, -1) == Words{"c", "d"});
    }
}

TEST_CASE("a queue entry without a time does not block the lock") {
    Fixture fixture;
    fixture.redis.call("RPUSH", queue, "left over");
    CHECK(fixture.wait("a").is_nil());
    CHECK(fixture.redis.keys() == Words{"orders"});
}

TEST_CASE("a waiter with a time but without a queue entry joins the queue") {
    Fixture fixture;
    fixture.wait("a");
    fixture.redis.call("ZADD", timeouts, fixture.now() + 60'000, "b");
    fixture.wait("b");
    CHECK(fixture.waiting() == Words{"b"});
}

TEST_CASE("releasing an expired hold is no success, and notifies the head") {
    Fixture fixture;
    fixture.wait("a");
    fixture.wait("b");
    fixture.redis.call("DEL", "orders");
    Messages to_b{fixture.server, channels + "b"};
    CHECK(fixture.release("a").is_nil());
    CHECK(to_b.take() == Words{"0"});
    fixture.wait("b");
    CHECK(fixture.release("a").is_nil());
    CHECK(to_b.take().empty());
    CHECK(fixture.redis.hgetall("orders") == Fields{{"b", "1"}});
}

// Each hold and each slot has its own owner, and commands name that owner.
TEST_CASE("a late copy of a release or of leaving does not affect later holds or slots") {
    Fixture fixture;
    fixture.wait("a:1");
    fixture.release("a:1");
    fixture.wait("a:2");
    CHECK(fixture.release("a:1").is_nil());
    fixture.leave("a:1");
    CHECK(fixture.redis.hgetall("orders") == Fields{{"a:2", "1"}});
    fixture.wait("b:1");
    fixture.leave("b:1");
    fixture.wait("b:2");
    fixture.leave("b:1");
    CHECK(fixture.refresh({"b:1", "b:2"}).at(0).integer == 0);
    CHECK(fixture.waiting() == Words{"b:2"});
}

TEST_CASE("an acquire or a refresh that arrives too late changes nothing") {
    Fixture fixture;
    const auto late = [](const RawReply& reply) { return reply.is_error() && reply.string.starts_with("LATE "); };
    const auto ask_late = [&](const std::string& owner) {
        return fixture.send(digested<scripts::fair_acquire>, Fixture::waiting_as(owner, slot, fixture.now() - 1));
    };
    CHECK(late(ask_late("a")));
    CHECK(fixture.redis.keys().empty());
    fixture.wait("a");
    CHECK(late(ask_late("a")));
    CHECK(late(ask_late("b")));
    CHECK(fixture.redis.keys() == Words{"orders"});
    fixture.wait("b", slot / 4);
    const auto before = fixture.score("b");
    CHECK(late(
        fixture.send(digested<scripts::fair_refresh>, {std::to_string(slot), std::to_string(fixture.now() - 1), "b"})));
    CHECK(fixture.score("b") == before);
    fixture.release("a");
    CHECK(late(ask_late("b")));
    CHECK_FALSE(fixture.redis.exists("orders"));
    CHECK(fixture.waiting() == Words{"b"});
}

TEST_CASE("a waiter's time does not change when others arrive, acquire the lock or leave") {
    Fixture fixture;
    fixture.wait("a");
    fixture.wait("b");
    fixture.foreigner_waits("foreign", fixture.now() + 100'000);
    fixture.wait("c");
    fixture.wait("d");
    const auto foreign = fixture.score("foreign");
    const auto last = fixture.score("d");
    fixture.release("a");
    fixture.wait("b");
    fixture.leave("c");
    fixture.refresh({"b"});
    CHECK(fixture.score("foreign") == foreign);
    CHECK(fixture.score("d") == last);
}

TEST_CASE("a refresh keeps the waiters in the queue, reports the others, and puts none of them back") {
    Fixture fixture;
    fixture.wait("a");
    fixture.wait("b", slot / 4);
    fixture.wait("c", slot / 4);
    const auto kept = fixture.refresh({"b", "gone", "c"});
    REQUIRE(kept.size() == 3);
    CHECK(kept[0].integer == 1);
    CHECK(kept[1].integer == 0);
    CHECK(kept[2].integer == 1);
    CHECK(fixture.waiting() == Words{"b", "c"});
    CHECK(fixture.score("c") > fixture.now() + slot / 2);
    CHECK(fixture.redis.integer("ZCARD", slots) == 2);
    fixture.leave("b");
    CHECK(fixture.refresh({"b"}).at(0).integer == 0);
    CHECK(fixture.waiting() == Words{"c"});
}

TEST_CASE("a refresh notifies the head of a free lock, in case an earlier message was lost") {
    Fixture fixture;
    fixture.wait("a");
    fixture.wait("b");
    Messages to_b{fixture.server, channels + "b"};
    fixture.refresh({"b"});
    CHECK(to_b.take().empty());
    fixture.redis.call("DEL", "orders");
    fixture.refresh({"b"});
    CHECK(to_b.take() == Words{"0"});
}

TEST_CASE("our slots behind a foreign waiter outlast the time that it subtracts when its turn comes") {
    Fixture fixture;
    fixture.wait("a");
    fixture.foreigner_waits("foreign 1", fixture.now() + redisson_patience);
    fixture.foreigner_waits("foreign 2", fixture.now() + 2 * redisson_patience);
    fixture.wait("b");
    fixture.foreigner_waits("foreign 3", fixture.now() + 3 * redisson_patience);
    fixture.wait("c");
    for (int round = 0; round < 2; ++round) {
        CAPTURE(round);
        CHECK(is_about(fixture.score("b"), fixture.now() + slot + 2 * redisson_patience));
        CHECK(is_about(fixture.score("c"), fixture.now() + slot + 3 * redisson_patience));
        fixture.refresh({"b", "c"});  // has the same result again
    }
    for (const std::string foreign : {"foreign 1", "foreign 2"}) {
        fixture.redis.call("DEL", "orders");
        fixture.foreigner_purges(fixture.now());
        fixture.foreigner_takes(foreign);
    }
    fixture.redis.call("DEL", "orders");
    fixture.foreigner_purges(fixture.now());
    CHECK(fixture.waiting() == Words{"b", "foreign 3", "c"});
    CHECK(fixture.wait("b").is_nil());
    fixture.refresh({"c"});
    fixture.redis.call("DEL", "orders");
    fixture.foreigner_takes("foreign 3");
    fixture.redis.call("DEL", "orders");
    fixture.foreigner_purges(fixture.now());
    CHECK(fixture.wait("c").is_nil());
}

TEST_CASE("a dead waiter behind a foreign one is removed when its own slot ends, whatever time Redisson's set has") {
    Fixture fixture;
    fixture.wait("a");
    fixture.foreigner_waits("foreign", fixture.now() + redisson_patience);
    fixture.wait("b");
    fixture.wait("c");
    fixture.let_die("b");
    fixture.redis.call("DEL", "orders");
    fixture.foreigner_takes("foreign");
    Messages to_c{fixture.server, channels + "c"};
    fixture.redis.call("DEL", "orders");
    fixture.refresh({"c"});
    CHECK(fixture.waiting() == Words{"c"});
    CHECK(to_c.take() == Words{"0"});
}

TEST_CASE("the slots of waiters that a foreign client has removed are removed, too") {
    Fixture fixture;
    fixture.wait("a");
    fixture.wait("b", 3000);
    fixture.foreigner_waits("foreign", fixture.now() + redisson_patience);
    fixture.wait("c");
    fixture.foreigner_purges(fixture.now() + 10'000);
    CHECK(fixture.waiting() == Words{"foreign", "c"});
    REQUIRE(eventually([&] { return fixture.now() > fixture.redis.integer("ZSCORE", slots, "b"); }, 20s));
    fixture.refresh({"c"});
    CHECK(fixture.redis.list("ZRANGE", slots, 0, -1) == Words{"c"});
    CHECK(fixture.score("c") > fixture.now() + redisson_patience);
}

TEST_CASE("an abandoned queue expires, but not before a foreign waiter's time") {
    Fixture fixture;
    fixture.wait("a");
    fixture.foreigner_waits("foreign", fixture.now() + 10'000'000);
    fixture.wait("b");
    for (const std::string& key : {queue, timeouts, slots}) {
        CHECK(fixture.redis.pttl(key) > 10'000'000);
        CHECK(fixture.redis.pttl(key) < 20'000'000);
    }
}

TEST_CASE("without memory no waiter joins the queue, but waiters are refreshed, leave, and are served") {
    Fixture fixture;
    fixture.wait("a");
    fixture.wait("b");
    fixture.wait("c");
    fixture.redis.call("CONFIG", "SET", "maxmemory", 1);
    const RawReply refused = fixture.send(digested<scripts::fair_acquire>, Fixture::waiting_as("d"));
    CHECK(refused.is_error());
    CHECK(refused.string.find("OOM") != std::string::npos);
    CHECK(fixture.refresh({"b", "c"}).at(0).integer == 1);
    CHECK(fixture.waiting() == Words{"b", "c"});
    fixture.leave("b");
    Messages to_c{fixture.server, channels + "c"};
    CHECK(fixture.release("a").integer == 1);
    CHECK(to_c.take() == Words{"0"});
}

TEST_CASE("a key of a read-write lock is refused, and nothing is queued") {
    Fixture fixture;
    fixture.redis.call("HSET", "orders", "mode", "read", "a", 1);
    fixture.redis.call("PEXPIRE", "orders", 60'000);
    const RawReply refused = fixture.send(digested<scripts::fair_acquire>, Fixture::waiting_as("d"));
    CHECK(refused.string.starts_with("WRONGTYPE the key holds a read-write lock"));
    CHECK(fixture.redis.keys() == Words{"orders"});
}
