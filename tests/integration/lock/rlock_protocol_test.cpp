// SPDX-License-Identifier: MIT
// The keys of an RLock in Redis, and how it handles those of Redisson.
#include <doctest/doctest.h>

#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::Lease;
using redlatch::RLock;

namespace {

/// Returns true for a TTL that was set to this value just now.
bool is_fresh(long long pttl, std::chrono::milliseconds lease) {
    return pttl <= lease.count() && pttl > lease.count() - patient(5s).count();
}

/// Acquires the lock like the Java client with this id.
void hold_like_redisson(RawRedis& redis, const std::string& key, const std::string& owner,
                        std::chrono::milliseconds lease) {
    redis.integer("HSET", key, owner, 1);
    redis.integer("PEXPIRE", key, lease.count());
}

/// What a client without a place, or one that queues up, wants of the lock: see queue_acquire_free.
enum class Way { once = 0, queue = 1, beside = 2 };

/// Asks for the lock by the script that knows its queue.
RawReply queue_acquire(RawRedis& redis, const std::string& owner, Way way, int lease = 30'000, int count = 1,
                       const char* publish = "PUBLISH") {
    return redis.call("EVAL", redlatch::detail::scripts::queue_acquire.join(), 4, "orders", channel_of("orders"),
                      "queue", "places", owner, count, lease, always, publish, static_cast<int>(way));
}

const std::string java_owner = "b983c153-7421-469a-addb-44fb92259a1b:42";

/// Returns true if there is another round. The best of some rounds must be in time, because a busy machine may delay
/// the others: all of the first ones at times.
bool goes_on(int round, bool in_time, const Stopwatch& since) { return round < 5 || (!in_time && since.within(30s)); }

}  // namespace

TEST_CASE("lock, reentry, partial unlock and unlock create the same keys as Redisson") {
    RedisServer server;
    RawRedis redis{server};
    Messages messages{server, "redisson_lock__channel:{orders}"};
    Client client{server.url()};
    RLock orders{client, "orders"};

    orders.lock();
    const std::string owner = owner_of(client, orders);
    CHECK(redis.text("TYPE", "orders") == "hash");
    CHECK(redis.hgetall("orders") == Fields{{owner, "1"}});
    CHECK(is_fresh(redis.pttl("orders"), 30s));
    CHECK(redis.keys() == Words{"orders"});

    redis.integer("PEXPIRE", "orders", 7000);
    orders.lock();
    CHECK(redis.hgetall("orders") == Fields{{owner, "2"}});
    CHECK(is_fresh(redis.pttl("orders"), 30s));

    redis.integer("PEXPIRE", "orders", 7000);
    orders.unlock();
    CHECK(redis.hgetall("orders") == Fields{{owner, "1"}});
    CHECK(is_fresh(redis.pttl("orders"), 30s));
    CHECK(redis.keys() == Words{"orders"});
    CHECK(messages.take().empty());

    orders.unlock();
    CHECK(redis.keys().empty());
    CHECK(messages.take() == Words{"0"});
}

TEST_CASE("the server executes the writes of the wire format and no others") {
    RedisServer server;
    ScriptWrites writes{server};
    Client client{server.url()};
    RLock orders{client, "orders"};

    orders.lock();
    const std::string owner = owner_of(client, orders);
    CHECK(writes.take() == std::vector<Words>{{"hincrby", "orders", owner, "1"}, {"pexpire", "orders", "30000"}});

    RawRedis{server}.integer("PEXPIRE", "orders", 7000);
    orders.lock();
    CHECK(writes.take() == std::vector<Words>{{"hincrby", "orders", owner, "1"}, {"pexpire", "orders", "30000"}});

    // A release begins with HDEL or DEL, because a server without memory permits no other first write. Nothing is written
    // after PEXPIRE, which may delete the key.
    RawRedis{server}.integer("PEXPIRE", "orders", 7000);
    orders.unlock();
    CHECK(writes.take() == std::vector<Words>{{"hdel", "orders", ""},
                                              {"hincrby", "orders", owner, "-1"},
                                              {"pexpire", "orders", "30000"}});

    orders.unlock();
    CHECK(writes.take() == std::vector<Words>{{"del", "orders"}, {"publish", "redisson_lock__channel:{orders}", "0"}});

    orders.lock(Lease{61'234ms});
    CHECK(writes.take() ==
          std::vector<Words>{{"hincrby", "orders", owner_of(client, orders), "1"}, {"pexpire", "orders", "61234"}});
    CHECK(orders.force_unlock());
    CHECK(writes.take() == std::vector<Words>{{"del", "orders"}, {"publish", "redisson_lock__channel:{orders}", "0"}});
}

TEST_CASE("a renewal is a PEXPIRE of the whole watchdog timeout") {
    RedisServer server;
    Client client{server.url(), with_watchdog(short_lease)};
    RLock orders{client, "orders"};
    ScriptWrites writes{server};
    orders.lock();
    REQUIRE(eventually([&] { return client.stats().renewals >= 1; }, 20s));
    const std::vector<Words> seen = writes.take();
    REQUIRE(seen.size() >= 3);  // the acquire is two writes
    CHECK(seen[2] == Words{"pexpire", "orders", std::to_string(short_lease.count())});
    orders.unlock();
}

// The hold expired while the hand-over was resent several times. The successor must not take the third reply for a grant.
TEST_CASE("a hand-over without a hold returns nil, however often it is sent") {
    RedisServer server;
    RawRedis redis{server};
    const std::string script = redlatch::detail::scripts::rlock_hand_over.join();
    const auto hand_over = [&] {
        return redis.call("EVAL", script, 2, "orders", channel_of("orders"), "me", "successor", 10'000, "PUBLISH",
                          always);
    };
    CHECK(hand_over().is_nil());
    CHECK(hand_over().is_nil());
    redis.integer("HSET", "orders", "another", 1);
    CHECK(hand_over().is_nil());
    redis.call("DEL", "orders");
    redis.integer("HSET", "orders", "me", 1);
    for (int sending = 0; sending < 3; ++sending) CHECK(hand_over().integer == 1);
    CHECK(redis.hgetall("orders") == Fields{{"successor", "1"}});
    // The successor has released it.
    redis.call("DEL", "orders");
    CHECK(hand_over().is_nil());
    CHECK(redis.keys().empty());
}

TEST_CASE("a command that arrives too late returns the server's time and changes nothing") {
    namespace scripts = redlatch::detail::scripts;
    RedisServer server;
    RawRedis redis{server};
    for (const bool is_held : {false, true}) {
        CAPTURE(is_held);
        if (is_held) {
            redis.integer("HSET", "orders", "me", 1);
            redis.integer("PEXPIRE", "orders", 5000);
        }
        const Fields before = redis.hgetall("orders");
        const auto late = [&](const RawReply& reply, long long sent) {
            REQUIRE(reply.is_error());
            REQUIRE(reply.string.starts_with("LATE "));
            const long long shown = std::stoll(reply.string.substr(5));
            CHECK(shown >= sent);
            CHECK(shown <= redis.now());
            CHECK(redis.hgetall("orders") == before);
            CHECK(redis.pttl("orders") <= 5000);
        };
        // A first hold, and one more level.
        for (const int count : {1, 2}) {
            const long long now = redis.now();
            late(redis.command({"EVAL", scripts::rlock_acquire.join(), "1", "orders", "me", std::to_string(count),
                                "30000", std::to_string(now - 1)}),
                 now);
        }
        const long long now = redis.now();
        late(
            redis.command({"EVAL", scripts::rlock_renew.join(), "1", "orders", "30000", std::to_string(now - 1), "me"}),
            now);
        if (!is_held) continue;
        late(redis.command({"EVAL", scripts::rlock_hand_over.join(), "2", "orders", channel_of("orders"), "me",
                            "successor", "30000", "PUBLISH", std::to_string(now - 1)}),
             now);
        // In time.
        CHECK(redis.integer("EVAL", scripts::rlock_hand_over.join(), 2, "orders", channel_of("orders"), "me",
                            "successor", 5000, "PUBLISH", redis.now() + 60'000) == 1);
        CHECK(redis.hgetall("orders") == Fields{{"successor", "1"}});
    }
}

TEST_CASE("a reentry of a hold that is gone is told so, whoever has the lock now, and does not queue up") {
    namespace scripts = redlatch::detail::scripts;
    RedisServer server;
    RawRedis redis{server};
    for (const bool is_taken : {false, true}) {
        CAPTURE(is_taken);
        if (is_taken) hold_like_redisson(redis, "orders", "another", 60s);
        CHECK(redis.integer("EVAL", scripts::rlock_acquire.join(), 1, "orders", "me", 2, 30'000, always) == -2);
        CHECK(queue_acquire(redis, "me", Way::queue, 30'000, 2).integer == -2);
        CHECK(redis.keys() == (is_taken ? Words{"orders"} : Words{}));
        CHECK(redis.hgetall("orders") == (is_taken ? Fields{{"another", "1"}} : Fields{}));
    }
}

TEST_CASE("in the turn of those who do not queue, the others wait for a free lock") {
    RedisServer server;
    RawRedis redis{server};
    const std::string client(36, 'c');
    CHECK(succeeds_once([&] {  // a busy machine may be later than the end of the turn
        redis.text("FLUSHALL");
        const long long turn = redis.now() + 450;
        redis.integer("HSET", "places", "turn", turn);
        const RawReply once = queue_acquire(redis, client + ":1", Way::once);
        const RawReply queued = queue_acquire(redis, client + ":1", Way::queue);
        const Words queue = redis.list("LRANGE", "queue", 0, -1);
        const RawReply beside_the_queue = queue_acquire(redis, client + ":1", Way::beside);
        if (redis.now() >= turn) return false;
        CHECK(once.integer > 0);
        REQUIRE(queued.elements.size() == 2);
        CHECK(queued.elements[0].integer > 0);
        CHECK(queue == Words{client});
        CHECK(beside_the_queue.is_nil());
        CHECK(redis.hgetall("orders") == Fields{{client + ":1", "1"}});
        CHECK_FALSE(redis.exists("queue"));  // the number has left its place
        return true;
    }));
}

TEST_CASE("the head of the queue is told of a new holder whose lease ends before it would ask") {
    RedisServer server;
    RawRedis redis{server};
    const std::string waiter(36, 'w');
    Messages heard{server, channel_of("orders") + ":" + waiter};
    hold_like_redisson(redis, "orders", std::string(36, 'h') + ":1", 60s);
    REQUIRE(queue_acquire(redis, waiter + ":1", Way::queue).elements.size() == 2);
    redis.integer("DEL", "orders");
    CHECK(heard.take().empty());
    CHECK(queue_acquire(redis, std::string(36, 'n') + ":1", Way::once, 5000).is_nil());
    CHECK(heard.take() == Words{"look 5000"});
}

// PUBLISH counts the subscribers of its node only. In lower case it is for a cluster on which they may be anywhere.
TEST_CASE("nobody queues up where the listeners cannot be counted") {
    RedisServer server;
    RawRedis redis{server};
    hold_like_redisson(redis, "orders", std::string(36, 'h') + ":1", 60s);
    const RawReply blocked = queue_acquire(redis, std::string(36, 'w') + ":1", Way::queue, 30'000, 1, "publish");
    CHECK(blocked.integer > 0);
    CHECK(redis.keys() == Words{"orders"});
}

TEST_CASE("a read-write lock is refused, also to those who hold a side of it, and draws no token") {
    namespace scripts = redlatch::detail::scripts;
    RedisServer server;
    RawRedis redis{server};
    const Fields readers{{"me", "1"}, {"mode", "read"}};
    for (const auto& [field, value] : readers) redis.integer("HSET", "orders", field, value);
    redis.integer("PEXPIRE", "orders", 60'000);
    for (const char* owner : {"me", "another"}) {
        for (const RawReply& reply :
             {redis.call("EVAL", scripts::rlock_acquire.join(), 1, "orders", owner, 1, 30'000, always),
              redis.call("EVAL", scripts::fenced_acquire.join(), 2, "orders", "counter", owner, 1, 30'000, always)}) {
            CHECK(reply.is_error());
            CHECK(reply.string.starts_with("WRONGTYPE "));
        }
        CHECK(redis.keys() == Words{"orders"});
        CHECK(redis.hgetall("orders") == readers);
    }
}

TEST_CASE("a hold that stays for a while does so under another number, and the waiters are told") {
    namespace scripts = redlatch::detail::scripts;
    RedisServer server;
    RawRedis redis{server};
    Messages messages{server, channel_of("orders")};
    for (const bool with_queue : {false, true}) {
        CAPTURE(with_queue);
        hold_like_redisson(redis, "orders", "me", 60s);
        const auto stay = [&](const char* owner) {
            if (with_queue)
                return redis.integer("EVAL", scripts::queue_stay.join(), 4, "orders", channel_of("orders"), "queue",
                                     "places", owner, "nobody", 5000, "PUBLISH");
            return redis.integer("EVAL", scripts::rlock_stay.join(), 2, "orders", channel_of("orders"), owner, "nobody",
                                 5000, "PUBLISH");
        };
        CHECK(stay("another") < 0);
        CHECK(redis.hgetall("orders") == Fields{{"me", "1"}});
        CHECK(messages.take().empty());
        CHECK(stay("me") > 0);
        CHECK(redis.hgetall("orders") == Fields{{"nobody", "1"}});
        CHECK(redis.pttl("orders") <= 5000);
        CHECK(messages.take() == Words{"0"});
        CHECK(stay("me") < 0);
        CHECK(redis.hgetall("orders") == Fields{{"nobody", "1"}});
        redis.integer("DEL", "orders");
    }
}

TEST_CASE("giving up ends the holds of the named owners only, and returns the server's time") {
    RedisServer server;
    RawRedis redis{server};
    Messages messages{server, channel_of("orders")};
    const auto give_up = [&](const std::string& one, const std::string& two) {
        const long long before = redis.now();
        const long long now = redis.integer("EVAL", redlatch::detail::scripts::rlock_give_up.join(), 2, "orders",
                                            channel_of("orders"), "PUBLISH", "", one, two);
        CHECK(now >= before);
        CHECK(now <= redis.now());
    };
    redis.integer("HSET", "orders", "other", 2);
    give_up("me", "successor");
    CHECK(redis.hgetall("orders") == Fields{{"other", "2"}});
    CHECK(messages.take().empty());
    for (const std::string owner : {"me", "successor"}) {
        redis.call("DEL", "orders");
        redis.integer("HSET", "orders", owner, 2);
        give_up("me", "successor");
        CHECK(redis.keys().empty());
        CHECK(messages.take() == Words{"0"});
    }
}

TEST_CASE("a hand-over within a process replaces the owner, renews the lease and publishes nothing") {
    RedisServer server;
    RawRedis redis{server};
    Messages messages{server, channel_of("orders")};
    ScriptWrites writes{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    const std::string queue_key = "redlatch_lock_queue:{orders}", places_key = "redlatch_lock_places:{orders}";
    std::vector<Words> seen;
    std::string giver;
    const auto [successor, held, pttl] = handed_over(client, orders, giver, [&] {
        orders.lock();
        const long long left = redis.pttl("orders");
        // Its place in the queue is left in the background. Until then a release may grant the lock to it in vain.
        CHECK(eventually([&] { return !redis.exists(places_key) && !redis.exists(queue_key); }, 20s));
        seen = writes.take();
        std::erase_if(seen, [&](const Words& write) { return write.at(1) == places_key || write.at(1) == queue_key; });
        const std::tuple result{owner_of(client, orders), redis.hgetall("orders"), left};
        messages.take();
        orders.unlock();
        return result;
    });
    CHECK(held == Fields{{successor, "1"}});
    CHECK(is_fresh(pttl, 30s));
    const std::vector<Words> expected{{"hdel", "orders", ""},
                                      {"hincrby", "orders", successor, "1"},
                                      {"hdel", "orders", giver},
                                      {"pexpire", "orders", "30000"}};
    REQUIRE(seen.size() >= 4);
    CHECK(std::vector<Words>(seen.end() - 4, seen.end()) == expected);
    CHECK(messages.take() == Words{"0"});  // that of the second unlock()
    CHECK(redis.keys().empty());
}

TEST_CASE("keys and channels of names with a hash tag or a prefix follow Redisson's rules") {
    RedisServer server;
    RawRedis redis{server};
    redlatch::ClientOptions options;
    options.key_prefix = "shop:";
    Client plain{server.url()};
    Client prefixed{server.url(), options};
    struct Case {
        Client& client;
        const char* name;
        const char* key;
        const char* channel;
    };
    const Case cases[] = {{plain, "x", "x", "redisson_lock__channel:{x}"},
                          {plain, "{x}y", "{x}y", "redisson_lock__channel:{x}y"},
                          {plain, "x{y}z", "x{y}z", "redisson_lock__channel:x{y}z"},
                          {plain, "with space", "with space", "redisson_lock__channel:{with space}"},
                          {plain, "größe", "größe", "redisson_lock__channel:{größe}"},
                          {prefixed, "x", "shop:x", "redisson_lock__channel:{shop:x}"},
                          {prefixed, "{x}y", "shop:{x}y", "redisson_lock__channel:shop:{x}y"}};
    for (const Case& c : cases) {
        CAPTURE(c.key);
        Messages messages{server, c.channel};
        RLock lock{c.client, c.name};
        CHECK(lock.name() == c.name);
        lock.lock();
        CHECK(redis.keys() == Words{c.key});
        lock.unlock();
        CHECK(redis.keys().empty());
        CHECK(messages.take() == Words{"0"});
    }
}

TEST_CASE("a name may contain any bytes") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    const std::string name{"zero\0 newline\r\n quote\" \xff\xfe", 25};
    RLock lock{client, name};
    lock.lock();
    CHECK(redis.keys() == Words{name});
    CHECK(lock.hold_count() == 1);
    lock.unlock();
    CHECK(redis.keys().empty());
}

TEST_CASE("acquire and release, script by script: replies, keys and messages") {
    RedisServer server;
    RawRedis redis{server};
    Messages messages{server, channel_of("L")};
    const std::string a = "11111111-1111-4111-8111-111111111111:1";
    const std::string b = "22222222-2222-4222-8222-222222222222:1";
    const auto acquire = [&](const std::string& owner, int count) {
        return redis.call("EVAL", redlatch::detail::scripts::rlock_acquire.join(), 1, "L", owner, count, 30000, always);
    };
    const auto release = [&](const std::string& owner, int left) {
        return redis.call("EVAL", redlatch::detail::scripts::rlock_release.join(), 2, "L", channel_of("L"), owner, left,
                          30000, "PUBLISH");
    };

    CHECK(acquire(a, 1).is_nil());
    CHECK(acquire(a, 2).is_nil());
    CHECK(is_fresh(acquire(b, 1).integer, 30s));
    CHECK(redis.hgetall("L") == Fields{{a, "2"}});
    CHECK(acquire(a, 2).is_nil());  // resent: not counted again
    CHECK(redis.hgetall("L") == Fields{{a, "2"}});

    CHECK(release(a, 1).integer == -1);
    CHECK(release(a, 1).integer == -1);  // resent, too
    CHECK(redis.hgetall("L") == Fields{{a, "1"}});
    CHECK(release(b, 0).is_nil());  // another owner changes nothing
    CHECK(redis.hgetall("L") == Fields{{a, "1"}});
    CHECK(messages.take().empty());

    CHECK(release(a, 0).integer == 1);  // one listener
    CHECK_FALSE(redis.exists("L"));
    CHECK(messages.take() == Words{"0"});

    CHECK(release(a, 0).is_nil());  // resent: publishes nothing again
    CHECK(redis.keys().empty());
    CHECK(messages.take().empty());

    // A reentry into a hold that is gone has another reply than being blocked.
    CHECK(acquire(a, 2).integer == -2);
    CHECK_FALSE(redis.exists("L"));
    CHECK(acquire(b, 1).is_nil());
    CHECK(acquire(a, 2).integer == -2);
    CHECK(redis.hgetall("L") == Fields{{b, "1"}});
    // A key without a TTL is not a lock, but its holder may continue.
    redis.integer("PERSIST", "L");
    CHECK(redis
              .command({"EVAL", redlatch::detail::scripts::rlock_acquire.join(), "1", "L", a, "1", "30000",
                        std::to_string(always)})
              .string.starts_with("WRONGTYPE"));
    CHECK(redis.pttl("L") == -1);
    CHECK(acquire(b, 2).is_nil());
    CHECK(is_fresh(redis.pttl("L"), 30s));
}

TEST_CASE("a Redisson holder blocks us, and its release wakes us within 100 ms") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    auto best = std::chrono::milliseconds::max();
    const Stopwatch since;
    for (int round = 0; goes_on(round, best <= 100ms, since); ++round) {
        hold_like_redisson(redis, "orders", java_owner, 60s);
        CHECK_FALSE(orders.try_lock());
        CHECK(orders.is_locked());
        CHECK_FALSE(orders.is_held());
        CHECK(is_fresh(orders.remaining_lease().value_or(0ms).count(), 60s));
        const auto waits = client.stats().waits;
        auto waiter = start([&] {
            orders.lock();
            const auto entered = std::chrono::steady_clock::now();
            orders.unlock();
            return entered;
        });
        REQUIRE(has_waiters(client, waits + 1));
        REQUIRE(is_listened_to(redis, "orders"));
        CHECK_FALSE(ready(waiter, 50ms));
        redis.integer("DEL", "orders");
        const auto released = std::chrono::steady_clock::now();
        redis.integer("PUBLISH", channel_of("orders"), "0");
        REQUIRE(ready(waiter));
        const auto entered = waiter.get();
        best = std::min(best, std::chrono::duration_cast<std::chrono::milliseconds>(entered - released));
    }
    CHECK(best <= 100ms);
    CHECK(eventually([&] { return redis.keys().empty(); }, 20s));
}

TEST_CASE("a Redisson holder whose lease expires lets us in without a message") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    auto best = std::chrono::milliseconds::max();
    const Stopwatch since;
    for (int round = 0; goes_on(round, best <= 400ms, since); ++round) {
        hold_like_redisson(redis, "orders", java_owner, 300ms);
        const Stopwatch watch;
        orders.lock();
        best = std::min(best, watch.elapsed_ms());
        CHECK(redis.hgetall("orders") == Fields{{owner_of(client, orders), "1"}});
        orders.unlock();
    }
    CHECK(best <= 400ms);
}

// Neither Redisson nor redlatch leaves such a key. It would never expire, so every wait for it would be endless.
TEST_CASE("a holder without a lease: every way to acquire the lock reports wrong_type at once, and changes nothing") {
    RedisServer server;
    RawRedis redis{server};
    redis.integer("HSET", "orders", java_owner, 1);
    Client client{server.url()};
    RLock orders{client, "orders"};
    CHECK(code_of([&] { static_cast<void>(orders.try_lock()); }) == redlatch::errc::wrong_type);
    CHECK(code_of([&] { static_cast<void>(orders.try_lock_for(600s)); }) == redlatch::errc::wrong_type);
    CHECK(code_of([&] { orders.lock(); }) == redlatch::errc::wrong_type);
    CHECK(orders.remaining_lease() == std::chrono::milliseconds::max());
    CHECK(redis.hgetall("orders") == Fields{{java_owner, "1"}});
    CHECK(redis.pttl("orders") == -1);
    // A thread that already waits gets the error at its next try.
    redis.integer("PEXPIRE", "orders", 600'000);
    auto waiter = start([&] { return code_of([&] { orders.lock(); }); });
    REQUIRE(is_listened_to(redis, "orders"));
    redis.integer("PERSIST", "orders");
    redis.integer("PUBLISH", channel_of("orders"), "0");
    REQUIRE(ready(waiter));
    CHECK(waiter.get() == redlatch::errc::wrong_type);
    redis.integer("DEL", "orders");
    CHECK(orders.try_lock());
    orders.unlock();
}

TEST_CASE("a Redisson reentry under our owner id works on our hash") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    orders.lock();
    const std::string owner = owner_of(client, orders);
    redis.integer("HINCRBY", "orders", owner, 1);
    redis.integer("PEXPIRE", "orders", 30000);
    CHECK(orders.hold_count() == 2);
    redis.integer("HINCRBY", "orders", owner, -1);
    CHECK(orders.hold_count() == 1);
    orders.unlock();
    CHECK(redis.keys().empty());
}

TEST_CASE("our release wakes a Redisson waiter") {
    RedisServer server;
    Client client{server.url()};
    RLock orders{client, "orders"};
    RawRedis java{server};
    java.call("SUBSCRIBE", channel_of("orders"));
    orders.lock();
    orders.unlock();
    const auto message = java.receive_within(10s);
    REQUIRE(message);
    CHECK(message->elements.at(2).string == "0");
}

TEST_CASE("unknown payloads, and messages without a waiter, do no harm") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    RLock orders{client, "orders"};
    hold_like_redisson(redis, "orders", java_owner, 60s);
    auto waiter = start([&] {
        orders.lock();
        orders.unlock();
    });
    REQUIRE(is_listened_to(redis, "orders"));
    for (const char* payload : {"1", "2", "-1", "", "not a number", "99999999999999999999"})
        redis.integer("PUBLISH", channel_of("orders"), payload);
    CHECK_FALSE(ready(waiter, 50ms));
    redis.integer("DEL", "orders");
    redis.integer("PUBLISH", channel_of("orders"), "0");
    CHECK(ready(waiter));
    redis.integer("PUBLISH", channel_of("orders"), "0");  // the channel is still subscribed
    CHECK(orders.try_lock());
    orders.unlock();
}
