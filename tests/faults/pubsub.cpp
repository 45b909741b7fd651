// SPDX-License-Identifier: MIT
// ctest: timeout=240
// Messages that are dropped, many channels at once, and a waiter that leaves while it is notified.
#include <atomic>
#include <future>
#include <memory>
#include <random>
#include <thread>

#include "faults/fault_kit.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

// So long that a lost wake-up shows.
ClientOptions long_lease() {
    ClientOptions options = quick();
    options.watchdog_timeout = 60s;
    options.command_timeout = 10s;
    return options;
}

// The number of a client in the first line of a CLIENT LIST: "id=7 ".
std::string first_client(RawRedis& redis) {
    const std::string list = redis.text("CLIENT", "LIST", "TYPE", "pubsub");
    return list.substr(0, list.find(' ') + 1);
}

// A lock that one client holds, and for which another one waits through a proxy.
struct Contest {
    explicit Contest(const ClientOptions& options = quick()) : client{path.url(), options} { theirs.lock(); }

    void begin_to_wait() {
        waiter = start([this] {
            orders.lock();
            orders.unlock();
        });
    }
    bool is_heard() {
        return eventually([&] { return listeners(path.redis, "orders") == 1; });
    }
    // Returns true if the connection of this number is given up, and another one listens.
    bool is_heard_anew(const std::string& before) {
        return eventually([&] { return first_client(path.redis) != before; }) && is_heard();
    }
    // An offer that nobody receives lasts 2 s.
    void check_that_release_is_told() {
        const Stopwatch watch;
        theirs.unlock();
        REQUIRE(ready(waiter, patient(10s)));
        CHECK(watch.elapsed_ms() < patient(1500ms));
        waiter.get();
    }

    FaultyPath path;
    Client other{path.server.url(), long_lease()};
    RLock theirs{other, "orders"};
    Client client;
    RLock orders{client, "orders"};
    std::future<void> waiter;
};

}  // namespace

TEST_CASE(
    "fault: message dropped by the output buffer limit: the waiter's connection is closed, and it asks the server "
    "itself") {
    FaultyPath path{false, {.args = {"--client-output-buffer-limit", "pubsub 256kb 128kb 1"}}};
    Client other{path.server.url(), long_lease()};
    RLock theirs{other, "orders"};
    theirs.lock();
    Client client{path.url(), quick()};
    RLock orders{client, "orders"};
    auto waiter = start([&] {
        const bool held = orders.try_lock_for(40s);
        if (held) orders.unlock();
        return held;
    });
    REQUIRE(eventually([&] { return listeners(path.redis, "orders") == 1; }));
    path.proxy.blackhole(true);
    const std::string flood(100'000, 'x');
    // The system's own buffers absorb some of it.
    REQUIRE(eventually(
        [&] {
            path.redis.call("PUBLISH", channel_of("orders") + ":" + client.id(), flood);
            return listeners(path.redis, "orders") == 0;
        },
        20s));
    theirs.unlock();  // the waiter does not receive it
    path.proxy.blackhole(false);
    REQUIRE(ready(waiter, patient(10s)));
    CHECK(waiter.get());
}

// Nobody closes the connection, and commands have one of their own. The server counts it as a listener, so each release
// would offer the lock to a process that does not receive the offer.
TEST_CASE("fault: a subscription that falls silent is given up, and the next one is told of the release") {
    Contest contest;
    FaultyPath& path = contest.path;
    bool at_once = false;
    SUBCASE("from its first reply on") { at_once = true; }
    SUBCASE("later") {}
    if (at_once) path.proxy.drop_next_replies(1, "SUBSCRIBE", Then::silence);
    contest.begin_to_wait();
    if (at_once) {
        REQUIRE(
            eventually([&] { return path.redis.subscribe_calls() >= 2; }));  // the second one is of the next connection
        REQUIRE(contest.is_heard());
    } else {
        REQUIRE(contest.is_heard());
        const std::string before = first_client(path.redis);
        path.proxy.drop_next_replies(1, "SUBSCRIBE", Then::silence);  // that of the check
        REQUIRE(contest.is_heard_anew(before));
    }
    CHECK(path.proxy.counts().dropped == 1);
    contest.check_that_release_is_told();
}

// Bytes arrive all the time, but what the server says now comes behind all that has gathered.
TEST_CASE("fault: a subscription that falls far behind is given up, and the next one is told of the release") {
    Contest contest;
    FaultyPath& path = contest.path;
    contest.begin_to_wait();
    REQUIRE(contest.is_heard());
    const std::string before = first_client(path.redis);
    path.proxy.trickle(1, 1ms);
    for (const std::string& channel : path.redis.pubsub_channels())
        path.redis.integer("PUBLISH", channel, std::string(200'000, 'x'));  // takes 200 s
    REQUIRE(contest.is_heard_anew(before));
    contest.check_that_release_is_told();
}

TEST_CASE("a subscription without messages is checked after ping_interval, and never without one") {
    ClientOptions options = long_lease();
    bool is_checked = false;
    SUBCASE("with an interval") { is_checked = true; }
    SUBCASE("without") {}
    options.ping_interval = is_checked ? 2000ms : 0ms;
    Contest contest{options};
    RawRedis& redis = contest.path.redis;
    const Stopwatch watch;
    contest.begin_to_wait();
    REQUIRE(contest.is_heard());
    // The wait has made one call.
    const auto is_repeated = [&] { return redis.subscribe_calls() > 1; };
    CHECK(eventually(is_repeated, is_checked ? 20s : 4s) == is_checked);
    if (is_checked) CHECK(watch.elapsed() >= options.ping_interval);
    contest.theirs.unlock();
    REQUIRE(ready(contest.waiter, patient(10s)));
    contest.waiter.get();
}

TEST_CASE(
    "fault: a subscription without messages is kept while the server replies, and its waiter sends nothing else") {
    ClientOptions options = quick();
    options.command_timeout = paced(1s);  // has time for a reply on a busy machine
    Contest contest{options};
    FaultyPath& path = contest.path;
    contest.begin_to_wait();
    REQUIRE(contest.is_heard());
    const std::string before = first_client(path.redis);
    const long long scripts = path.redis.script_calls();
    const long long first = path.redis.subscribe_calls();
    REQUIRE(eventually([&] { return path.redis.subscribe_calls() >= first + 3; }));
    CHECK(path.redis.script_calls() <= scripts + 1);  // the waiter's question after it has begun to listen
    CHECK(first_client(path.redis) == before);
    contest.theirs.unlock();
    REQUIRE(ready(contest.waiter, patient(10s)));
    contest.waiter.get();
}

TEST_CASE("fault: ten thousand channels within seconds: the client subscribes to all, and unsubscribes again") {
    RedisServer server;
    RawRedis redis{server};
    constexpr int names = 10'000, threads = 4;
    for (int i = 0; i < names; ++i) {
        redis.call("HSET", "n" + std::to_string(i), "somebody", 1);
        redis.call("PEXPIRE", "n" + std::to_string(i), 600'000);
    }
    Client client{server.url(), long_lease()};
    std::vector<std::unique_ptr<RLock>> locks(names);
    std::atomic<int> refused{0};
    std::size_t most = 0;
    {
        std::vector<std::jthread> workers;
        for (int worker = 0; worker < threads; ++worker)
            workers.emplace_back([&, worker] {
                for (int i = worker; i < names; i += threads) {
                    auto& lock = locks[static_cast<std::size_t>(i)];
                    lock = std::make_unique<RLock>(client, "n" + std::to_string(i));
                    if (!lock->try_lock_for(1ms)) ++refused;
                }
            });
        while (refused < names) {
            most = std::max(most, redis.pubsub_channels().size());
            std::this_thread::sleep_for(10ms);
        }
    }
    CHECK(most > 1000);
    CHECK(client.stats().lost_holds == 0);
    // Subscriptions are kept for some seconds, and then given up.
    CHECK(eventually([&] { return redis.pubsub_channels().empty(); }, 30s));
    // The connection still works.
    Client other{server.url(), long_lease()};
    RLock theirs{other, "fresh"}, ours{client, "fresh"};
    theirs.lock();
    auto waiter = start([&] { return ours.try_lock_for(20s) && (ours.unlock(), true); });
    REQUIRE(eventually([&] { return listeners(redis, "fresh") == 1; }));
    theirs.unlock();
    CHECK(waiter.get());
}

TEST_CASE("fault: a waiter times out just as it is notified: the next one is woken all the same") {
    RedisServer server;
    RawRedis redis{server};
    Client other{server.url(), long_lease()};
    Client client{server.url(), long_lease()};
    RLock theirs{other, "orders"}, ours{client, "orders"};
    std::mt19937 random{20};
    int timed_out = 0, got_it = 0;
    for (int round = 0; round < 300; ++round) {
        CAPTURE(round);
        theirs.lock();
        const auto at = std::chrono::steady_clock::now() + 6ms;
        const auto first_leaves = at + std::chrono::microseconds(random() % 4000) - 2ms;
        auto first = start([&] {
            const bool held = ours.try_lock_until(first_leaves);
            if (held) ours.unlock();
            return held;
        });
        auto second = start([&] {
            const bool held = ours.try_lock_for(30s);
            if (held) ours.unlock();
            return held;
        });
        std::this_thread::sleep_until(at);
        theirs.unlock();
        first.get() ? ++got_it : ++timed_out;
        REQUIRE(ready(second, 20s));
        CHECK(second.get());
    }
    CHECK(timed_out > 0);
    CHECK(got_it > 0);
}
