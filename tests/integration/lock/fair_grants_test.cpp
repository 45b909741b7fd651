// SPDX-License-Identifier: MIT
// The release of a FairLock grants it to the next waiter of the queue.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"
#include "support/plain_counter.hpp"
#include "support/without_grants.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::ClientOptions;
using redlatch::FairLock;
using redlatch::Lease;
using redlatch::detail::digested;
namespace scripts = redlatch::detail::scripts;

namespace {

const std::string queue = "redisson_lock_queue:{orders}";
const std::string timeouts = "redisson_lock_timeout:{orders}";
const std::string slots = "redlatch_lock_slots:{orders}";
const std::string channels = "redisson_lock__channel:{orders}:";

// A client with a lock, for which one thread waits.
struct Party {
    explicit Party(const RedisServer& server, ClientOptions options = {})
        : own(std::make_unique<Client>(server.url(), std::move(options))), client(*own), lock(client, "orders") {}
    // A thread of the same process.
    explicit Party(Party& party) : client(party.client), lock(client, "orders") {}

    // Waits for the lock in a new thread, and holds it until told to leave. Returns when the waiter is in the queue, and
    // listens.
    template <class... Tail>
    void come(RawRedis& redis, const Tail&... tail) {
        const long long before = redis.integer("LLEN", queue);
        visit = start([this, tail...] {
            lock.lock(tail...);
            entered = true;
            eventually([this] { return may_leave.load(); }, 60s);
            lock.unlock();
        });
        REQUIRE(eventually([&] { return redis.integer("LLEN", queue) == before + 1; }, 20s));
        id = redis.list("LRANGE", queue, -1, -1).at(0);
        REQUIRE(eventually([&] { return redis.lock_listeners(channels + id) == 1; }, 20s));
    }

    // The same for a waiter that can be granted the lock. Returns when a release may do that: it has asked once more
    // since it listens.
    void queue_up(RawRedis& redis) {
        come(redis);
        REQUIRE(eventually([&] { return redis.text("ZSCORE", slots, id).ends_with(".5"); }, 20s));
    }

    bool enters() {
        return eventually([this] { return entered.load(); }, 20s);
    }
    void leave() {
        may_leave = true;
        visit.get();
    }

    std::unique_ptr<Client> own;  // null if it shares that of another party
    Client& client;
    FairLock lock;
    std::string id;  // of its place in the queue
    std::atomic<bool> entered = false;
    std::atomic<bool> may_leave = false;
    std::future<void> visit;
};

bool is_left_empty(RawRedis& redis) {
    return eventually([&] { return redis.keys().empty(); }, 20s);
}

// Returns true if the waiter was told to ask, and nothing else. Each refresh of a slot tells the first waiter of a free
// lock again.
bool is_only_woken(Messages& messages) {
    const Words told = messages.take();
    return !told.empty() && told == Words(told.size(), "0");
}

// Queues somebody up who does not exist. `mark`: ".5" if it can be granted the lock.
void queue_up_ghost(RawRedis& redis, const std::string& ghost, const std::string& mark) {
    const std::string ends = std::to_string(std::stoll(redis.list("TIME").at(0)) * 1000 + 60'000);
    redis.integer("RPUSH", queue, ghost);
    redis.integer("ZADD", timeouts, ends, ghost);
    redis.integer("ZADD", slots, ends + mark, ghost);
}

}  // namespace

// Several threads of one process wait, and one of them receives the messages for all. While others of it still wait, it
// enters. Then the lock is granted to another process, and to them again.
TEST_CASE("a waiter hears of its grant at once, although the thread that received messages for it has left") {
    RedisServer server;
    RawRedis redis{server};
    int slow = 0;
    for (int round = 0; round < 16; ++round) {
        Party a{server}, other{server}, first{server};
        Party second{first}, last{first};
        a.lock.lock();
        first.queue_up(redis);
        second.queue_up(redis);
        other.queue_up(redis);
        last.queue_up(redis);
        a.lock.unlock();
        for (Party* party : {&first, &second, &other}) {
            REQUIRE(party->enters());
            party->leave();
        }
        const Stopwatch watch;
        REQUIRE(last.enters());
        if (!watch.within(1000ms)) ++slow;  // a refresh of the slot comes after 1.6 s
        last.leave();
        REQUIRE(is_left_empty(redis));
    }
    // The machine may be busy.
    CHECK(slow <= 2);
}

TEST_CASE("a release grants the lock to the first waiter, which sends nothing to enter") {
    RedisServer server;
    RawRedis redis{server};
    // On a busy machine a refresh of the slot, or the first renewal, may come before the count is read.
    CHECK(succeeds_once([&] {
        Party a{server}, b{server};
        a.lock.lock();
        b.queue_up(redis);
        ScriptWrites writes{server};
        const auto commands = b.client.stats().commands;
        a.lock.unlock();
        REQUIRE(b.enters());
        const bool sent_nothing = b.client.stats().commands == commands;
        CHECK(redis.hgetall("orders") == Fields{{b.id, "1"}});
        // Not the lease that is left: the first renewal may have come.
        const std::vector<Words> written = writes.take();
        CHECK(std::ranges::count(written, Words{"pexpire", "orders", "2000"}) == 1);
        CHECK_FALSE(redis.exists(queue));
        CHECK_FALSE(redis.exists(timeouts));
        CHECK_FALSE(redis.exists(slots));
        // Its renewal gives it the full lease.
        CHECK(eventually([&] { return redis.pttl("orders") > 20'000; }, 20s));
        CHECK(b.client.stats().lost_holds == 0);
        b.leave();
        CHECK(is_left_empty(redis));
        return sent_nothing;
    }));
}

TEST_CASE("a waiter whose slot was refreshed can still be granted the lock") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server};
    a.lock.lock();
    b.queue_up(redis);
    const auto slot = [&] { return redis.call("ZSCORE", slots, b.id).string; };
    const std::string before = slot();
    REQUIRE(before.ends_with(".5"));
    REQUIRE(eventually([&] { return slot() != before; }, 20s));
    CHECK(slot().ends_with(".5"));
    a.lock.unlock();
    REQUIRE(b.enters());
    b.leave();
    CHECK(is_left_empty(redis));
}

TEST_CASE("waiters are granted the lock in the order in which they came") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server}, c{server}, d{server};
    a.lock.lock();
    for (Party* party : {&b, &c, &d}) party->queue_up(redis);
    a.lock.unlock();
    for (Party* party : {&b, &c, &d}) {
        REQUIRE(party->enters());
        CHECK(b.entered + c.entered + d.entered == 1 + (party != &b) + (party == &d));
        party->leave();
    }
    CHECK(is_left_empty(redis));
}

TEST_CASE("an acquisition and its release are two commands, however many threads and clients contend") {
    RedisServer server;
    RawRedis redis{server};
    std::vector<std::unique_ptr<Party>> parties;
    for (int i = 0; i < 3; ++i) parties.push_back(std::make_unique<Party>(server));
    PlainCounter counter;
    constexpr int threads = 2, turns = 100;
    std::vector<std::future<void>> all;
    for (auto& party : parties)
        for (int thread = 0; thread < threads; ++thread)
            all.push_back(start([&counter, &lock = party->lock] {
                for (int i = 0; i < turns; ++i) {
                    const std::lock_guard guard{lock};
                    counter.add_one_unseen();
                }
            }));
    for (auto& one : all) one.get();
    const int total = 3 * threads * turns;
    CHECK(counter.value() == total);
    std::uint64_t commands = 0;
    for (auto& party : parties) {
        commands += party->client.stats().commands;
        CHECK(party->client.stats().lost_holds == 0);
    }
    CHECK(static_cast<double>(commands) / total <= 2.2);
    CHECK(is_left_empty(redis));
}

TEST_CASE("waiters that cannot be granted the lock are woken, and ask") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server};
    ClientOptions options;
    options.fair_waiter_timeout = 60s;  // no refresh meanwhile
    const auto is_woken = [&](Party& b, auto... tail) {
        b.may_leave = true;
        a.lock.lock();
        CommandMonitor monitor{server};
        b.come(redis, tail...);
        // It has asked once more since it listens.
        REQUIRE(monitor.take_until({{"subscribe", 1}, {"evalsha", 2}}, 20s));
        const std::string ends = redis.text("ZSCORE", slots, b.id);
        CHECK(ends.find('.') == std::string::npos);
        Messages messages{server, channels + b.id};
        const auto commands = b.client.stats().commands;
        a.lock.unlock();
        REQUIRE(ready(b.visit));
        CHECK(messages.take() == Words{"0"});
        CHECK(b.client.stats().commands == commands + 2);
        CHECK(is_left_empty(redis));
    };
    SUBCASE("with a fixed lease") {
        Party b{server, options};
        is_woken(b, Lease{10s});
    }
    SUBCASE("without the option") {
        Party b{server, without_grants(options)};
        is_woken(b);
    }
    SUBCASE("under a watchdog that is shorter than a grant") {
        options.watchdog_timeout = 1900ms;
        Party b{server, options};
        is_woken(b);
    }
}

TEST_CASE("a waiter that listens no more keeps its place, and the next one is granted the lock") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server};
    a.lock.lock();
    const std::string ghost = "00000000-0000-8000-8000-000000000000:7";
    queue_up_ghost(redis, ghost, ".5");
    b.queue_up(redis);
    a.lock.unlock();
    REQUIRE(b.enters());
    CHECK(redis.hgetall("orders") == Fields{{b.id, "1"}});
    CHECK(redis.list("LRANGE", queue, 0, -1) == Words{ghost});
    CHECK(redis.integer("ZCARD", slots) == 1);
    CHECK(redis.integer("ZCARD", timeouts) == 1);
    b.leave();
}

TEST_CASE("nobody is granted the lock before a waiter that does not listen yet") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server};
    a.lock.lock();
    const std::string ghost = "00000000-0000-8000-8000-000000000000:7";
    queue_up_ghost(redis, ghost, "");
    b.queue_up(redis);
    Messages woken{server, channels + ghost};
    a.lock.unlock();
    CHECK(is_only_woken(woken));
    CHECK_FALSE(redis.exists("orders"));
    CHECK_FALSE(b.entered);
    redis.integer("ZREM", slots, ghost);
    redis.integer("ZREM", timeouts, ghost);
    redis.integer("LREM", queue, 1, ghost);
    CHECK(b.enters());
    b.leave();
}

TEST_CASE("a waiter of Redisson's is woken and granted nothing") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server};
    a.lock.lock();
    const std::string java = "6a1b4b2a-3c0e-4b5f-9d3e-0a1b2c3d4e5f:1";
    redis.integer("RPUSH", queue, java);
    redis.integer("ZADD", timeouts, std::stoll(redis.list("TIME").at(0)) * 1000 + 60'000, java);
    b.queue_up(redis);
    Messages woken{server, channels + java};
    a.lock.unlock();
    CHECK(is_only_woken(woken));
    CHECK_FALSE(redis.exists("orders"));
    // It takes the lock and releases it as Redisson does.
    redis.integer("LREM", queue, 1, java);
    redis.integer("ZREM", timeouts, java);
    redis.integer("PUBLISH", channels + b.id, "0");
    CHECK(b.enters());
    b.leave();
}

TEST_CASE("a grant wakes a waiter of Redisson's that is next: it relies on the longer lease of the released hold") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server};
    a.lock.lock();
    b.queue_up(redis);
    const std::string java = "6a1b4b2a-3c0e-4b5f-9d3e-0a1b2c3d4e5f:1";
    redis.integer("RPUSH", queue, java);
    redis.integer("ZADD", timeouts, std::stoll(redis.list("TIME").at(0)) * 1000 + 60'000, java);
    Messages woken{server, channels + java};
    a.lock.unlock();
    CHECK(woken.take() == Words{"0"});
    CHECK(b.enters());
    b.leave();
    CHECK(woken.take() == Words{"0"});
}

TEST_CASE("a waiter that gives up leaves neither a place nor what it was granted") {
    RedisServer server;
    RawRedis redis{server};
    for (int round = 0; round < 20; ++round) {
        Party a{server}, b{server}, c{server};
        a.lock.lock();
        std::stop_source stop;
        auto gives_up = start([&] {
            const bool held = b.lock.lock(stop.get_token());
            if (held) b.lock.unlock();
        });
        REQUIRE(eventually([&] { return redis.integer("LLEN", queue) == 1; }, 20s));
        c.queue_up(redis);
        c.may_leave = true;
        // At about the same time.
        auto stopping = start([&] { stop.request_stop(); });
        a.lock.unlock();
        stopping.get();
        gives_up.get();
        REQUIRE(ready(c.visit));
        CHECK(is_left_empty(redis));
    }
}

TEST_CASE("a waiter whose grant was not told finds its hold when its slot is refreshed") {
    RedisServer server;
    RawRedis redis{server};
    ClientOptions options;
    options.fair_waiter_timeout = 3s;
    Party a{server}, b{server, options};
    a.lock.lock();
    b.queue_up(redis);
    // What a release does, but for the message. The lock is a's hold no more.
    const std::string write =
        "redis.call('del', KEYS[1]) redis.call('hset', KEYS[1], ARGV[1], '1') redis.call('pexpire', KEYS[1], '20000') "
        "redis.call('lrem', KEYS[2], '1', ARGV[1]) redis.call('zrem', KEYS[3], ARGV[1]) "
        "return redis.call('zrem', KEYS[4], ARGV[1])";
    redis.integer("EVAL", write, 4, "orders", queue, timeouts, slots, b.id);
    CHECK(b.enters());
    CHECK(redis.hgetall("orders") == Fields{{b.id, "1"}});
    b.leave();
}

TEST_CASE("the message of a grant that comes late lets nobody enter") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server};
    a.lock.lock();
    b.queue_up(redis);
    const std::string number = b.id.substr(b.id.rfind(':') + 1);
    const std::string earlier = std::to_string((std::stoll(redis.list("TIME").at(0)) - 3) * 1000);
    for (const std::string& message : {"grant " + number + " " + earlier + " 2000", std::string("grant 1 1 2000"),
                                       std::string("grant"), "grant " + number + " x 2000"}) {
        CAPTURE(message);
        REQUIRE(redis.integer("PUBLISH", channels + b.id, message) == 1);
        commands_when_quiet(b.client);
        CHECK_FALSE(b.entered);
        CHECK(a.lock.is_held());
    }
    a.lock.unlock();
    CHECK(b.enters());
    b.leave();
}

TEST_CASE("a waiter that has asked for its hold does not use its id again, because its grant may still be told") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server};
    a.lock.lock();
    b.queue_up(redis);
    const std::string earlier = b.id;
    b.may_leave = true;
    redis.integer("DEL", "orders");
    redis.integer("PUBLISH", channels + b.id, "0");
    b.leave();
    a.lock.lock();
    b.entered = b.may_leave = false;
    b.queue_up(redis);
    CHECK(b.id != earlier);
    a.lock.unlock();
    CHECK(b.enters());
    // After a grant it does: its channel is subscribed.
    const std::string granted = b.id;
    b.leave();
    a.lock.lock();
    b.entered = b.may_leave = false;
    b.queue_up(redis);
    CHECK(b.id == granted);
    a.lock.unlock();
    CHECK(b.enters());
    b.leave();
}

TEST_CASE("a waiter whose first question as a listener acquires the lock uses its id again") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server};
    a.lock.lock();
    b.visit = start([&] {
        CHECK(b.lock.is_locked());
        // The server accepts no connection more, so it cannot listen.
        RawRedis full{server};
        full.text("CONFIG", "SET", "maxclients", full.connected_clients());
        b.lock.lock();
        b.lock.unlock();
    });
    REQUIRE(eventually([&] { return redis.integer("LLEN", queue) == 1; }, 20s));
    const std::string earlier = redis.list("LRANGE", queue, 0, 0).at(0);
    redis.integer("DEL", "orders");
    redis.text("CONFIG", "SET", "maxclients", 10'000);
    b.visit.get();
    a.lock.lock();
    b.queue_up(redis);
    CHECK(b.id == earlier);
    a.lock.unlock();
    CHECK(b.enters());
    b.leave();
}

TEST_CASE("a release under maxmemory grants the lock, which no acquire could take") {
    RedisServer server;
    RawRedis redis{server};
    Party a{server}, b{server};
    a.lock.lock();
    b.queue_up(redis);
    redis.text("CONFIG", "SET", "maxmemory", "1");
    a.lock.unlock();
    CHECK(b.enters());
    redis.text("CONFIG", "SET", "maxmemory", "0");
    b.leave();
    CHECK(is_left_empty(redis));
}
