// SPDX-License-Identifier: MIT
// FairLock on a real server: the order of service across threads and processes, waiters that die, freeze or leave, and
// the number of commands.
#include <doctest/doctest.h>
#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "integration/rlock_helpers.hpp"
#include "support/command_monitor.hpp"
#include "support/plain_counter.hpp"
#include "support/process.hpp"
#include "support/shared_memory.hpp"
#include "support/temp_dir.hpp"

using namespace redlatch::test;
using namespace std::chrono_literals;
using redlatch::Client;
using redlatch::errc;
using redlatch::FairLock;
using redlatch::Lease;
using redlatch::RLock;

namespace {

using SteadyClock = std::chrono::steady_clock;

const std::string queue = "redisson_lock_queue:{orders}";
const std::string timeouts = "redisson_lock_timeout:{orders}";
const std::string slots = "redlatch_lock_slots:{orders}";
const std::string channels = "redisson_lock__channel:{orders}:";

// A slot lasts a sixth of it. A process may get no CPU for two thirds of a slot and still keeps its slots.
constexpr std::chrono::milliseconds quick_watchdog{slow_build_factor > 1 ? 24'000 : 15'000};
constexpr std::chrono::milliseconds quick_slot = quick_watchdog / 6;

Words waiting(RawRedis& redis) { return redis.list("LRANGE", queue, 0, -1); }

// Waits until `count` waiters are in the queue, all of them subscribed except `foreign` ones.
bool are_waiting(RawRedis& redis, std::size_t count, std::size_t foreign = 0) {
    return eventually(
        [&] {
            return waiting(redis).size() == count && redis.pubsub_channels(channels + "*").size() == count - foreign;
        },
        20s);
}

// Returns true once the places of dead waiters are over: the next visitor removes them.
bool is_left_empty(RawRedis& redis, FairLock& orders) {
    return eventually([&] { return orders.lock(), orders.unlock(), redis.keys().empty(); }, 20s);
}

// Counts the script calls since the last look. A refresh may find the lock free before its notified head has acquired
// it. Then the head is notified again, and asks once more.
struct ScriptCalls {
    explicit ScriptCalls(CommandMonitor& monitor) {
        for (const std::string& line : monitor.take_lines()) {
            if (line.find("\"EVALSHA\"") == std::string::npos) continue;
            const std::string refresh{redlatch::detail::digested<redlatch::detail::scripts::fair_refresh>.digest()};
            ++(line.find(refresh) == std::string::npos ? others : refreshes);
        }
    }
    long long others = 0;
    long long refreshes = 0;
};

// The names of the holders, in order.
class Served {
public:
    void add(const std::string& name) {
        const std::lock_guard guard{mutex_};
        names_.push_back(name);
    }
    Words names() const {
        const std::lock_guard guard{mutex_};
        return names_;
    }

private:
    mutable std::mutex mutex_;
    Words names_;
};

// A thread that waits for the lock, records its name, and releases the lock. It is in the queue once constructed.
class Visitor {
public:
    Visitor(RawRedis& redis, FairLock& lock, std::string name, Served& served) {
        const std::size_t before = waiting(redis).size();
        future_ = start([&lock, &served, name = std::move(name), token = stop.get_token()] {
            if (!lock.lock(token)) return false;
            served.add(name);
            lock.unlock();
            return true;
        });
        REQUIRE(eventually([&] { return waiting(redis).size() > before; }, 20s));
    }

    bool is_served(std::chrono::milliseconds deadline = 20s) { return ready(future_, deadline) && future_.get(); }
    bool has_left() { return ready(future_) && !future_.get(); }

    std::stop_source stop;

private:
    std::future<bool> future_;
};

struct Shop {
    std::atomic<bool> go = false;
    PlainCounter counter;
};

// Threads that wait for the lock `times` times each, and append themselves to the list "served" while they hold it. The
// process runs until `go` is set.
const Role crowd{"a crowd before a fair lock", [](std::span<const std::string> args) {
                     auto shop = SharedMemory<Shop>::open(args[1]);
                     Client client{args[0]};
                     FairLock lock{client, "orders"};
                     const int times = std::stoi(args[3]);
                     std::vector<std::jthread> threads;
                     for (int t = std::stoi(args[2]); t > 0; --t)
                         threads.emplace_back([&] {
                             RawRedis redis{args[0]};
                             for (int i = 0; i < times; ++i) {
                                 const std::lock_guard guard{lock};
                                 if (times == 1) redis.call("RPUSH", "served", owner_of(client, lock));
                                 shop->counter.add_one_unseen();
                             }
                         });
                     threads.clear();
                     return eventually([&] { return shop->go.load(); }, 60s) ? 0 : 1;
                 }};

// Waits for the lock, records that it was served, and releases it.
const Role customer{"one customer", [](std::span<const std::string> args) {
                        Client client{args[0], with_watchdog(quick_watchdog)};
                        FairLock lock{client, "orders"};
                        lock.lock();
                        RawRedis{args[0]}.call("SET", "customer served", 1);
                        lock.unlock();
                        return 0;
                    }};

}  // namespace

TEST_CASE("a fair lock behaves like any other lock") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    FairLock orders{client, "orders"};
    {
        const std::lock_guard guard{orders};
        CHECK(redis.hgetall("orders") == Fields{{owner_of(client, orders), "1"}});
        CHECK(redis.pttl("orders") > 20'000);
        CHECK(orders.is_held());
        CHECK_FALSE(elsewhere([&] { return orders.try_lock(); }));
        Client other{server.url()};
        CHECK_FALSE(FairLock(other, "orders").try_lock());
        CHECK_FALSE(RLock(other, "orders").try_lock());
        // Within one client, another kind of lock with that name is an error.
        CHECK(elsewhere([&] { return code_of([&] { return RLock(client, "orders").try_lock(); }); }) ==
              errc::wrong_type);
        CHECK(redis.keys() == Words{"orders"});
        orders.lock(Lease{10s});
        CHECK(orders.hold_count() == 2);
        orders.unlock();
        CHECK(orders.hold_count() == 1);
        CHECK(orders.valid_until() > redlatch::Clock::now());
        CHECK_FALSE(orders.lost().stop_requested());
    }
    CHECK(redis.keys().empty());
    std::error_code ec;
    orders.unlock(ec);
    CHECK(ec == errc::not_owner);
    orders.lock();
    redis.call("DEL", "orders");
    orders.unlock(ec);
    CHECK(ec == errc::hold_lost);
    orders.lock();
    CHECK(orders.force_unlock());
    CHECK(orders.lost().stop_requested());
    orders.unlock();
    CHECK(code_of([&] { FairLock(client, ""); }) == errc::invalid_argument);
}

TEST_CASE("the watchdog renews a fair hold") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url(), with_watchdog(short_lease)};
    FairLock orders{client, "orders"};
    const std::lock_guard guard{orders};
    REQUIRE(eventually([&] { return client.stats().renewals >= 2; }, 20s));
    CHECK(orders.is_held());
}

TEST_CASE("an uncontended fair lock and unlock are two commands") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    FairLock orders{client, "orders"};
    for (int i = 0; i < 2; ++i) {
        orders.lock();
        orders.unlock();
    }
    const auto before = redis.client_commands();
    for (int i = 0; i < 100; ++i) {
        orders.lock();
        orders.unlock();
    }
    CHECK(redis.client_commands() - before == 200);
}

TEST_CASE("waiters of four processes are served in order of arrival, with at most three commands per hand-off") {
    for (const int threads : {8, 1}) {
        CAPTURE(threads);
        RedisServer server;
        RawRedis redis{server};
        TempDir dir;
        auto shop = SharedMemory<Shop>::create(dir.file("shop"));
        Client client{server.url()};
        FairLock orders{client, "orders"};
        orders.lock();
        orders.unlock();  // the server has the scripts cached
        orders.lock();
        const int processes = threads == 1 ? 2 : 4;
        const int all = processes * threads;
        CommandMonitor monitor{server};
        std::vector<ChildProcess> children;
        for (int p = 0; p < processes; ++p)
            children.push_back(spawn_self("a crowd before a fair lock",
                                          {server.url(), dir.file("shop"), std::to_string(threads), "1"}));
        REQUIRE(are_waiting(redis, static_cast<std::size_t>(all)));
        long long asked = 0;  // one more command each, when their subscription is confirmed
        REQUIRE(eventually([&] { return (asked += ScriptCalls{monitor}.others) >= 2 * all; }, 20s));
        const Words arrived = waiting(redis);
        const auto subscriptions = redis.subscribe_calls();
        orders.unlock();
        CHECK(eventually([&] { return redis.integer("LLEN", "served") == all && !redis.exists("orders"); }, 60s));
        const ScriptCalls calls{monitor};
        CHECK(calls.others <= 3 * all + calls.refreshes);
        CHECK(redis.subscribe_calls() == subscriptions);
        shop->go = true;
        for (ChildProcess& child : children) CHECK(child.wait(60s) == ExitStatus{0, 0});
        CHECK(redis.list("LRANGE", "served", 0, -1) == arrived);
        CHECK(shop->counter.value() == static_cast<std::uint64_t>(all));
        redis.call("DEL", "served");
        CHECK(redis.keys().empty());
        CHECK(redis.pubsub_channels().empty());
    }
}

TEST_CASE("threads that wait repeatedly get the lock in turn, with at most three commands each time") {
    RedisServer server;
    RawRedis redis{server};
    TempDir dir;
    auto shop = SharedMemory<Shop>::create(dir.file("shop"));
    CommandMonitor monitor{server};
    constexpr int times = 50;
    shop->go = true;
    {
        std::vector<ChildProcess> children;
        for (int p = 0; p < 4; ++p)
            children.push_back(
                spawn_self("a crowd before a fair lock", {server.url(), dir.file("shop"), "2", std::to_string(times)}));
        for (ChildProcess& child : children) CHECK(child.wait(60s) == ExitStatus{0, 0});
    }
    CHECK(shop->counter.value() == 8 * times);
    const ScriptCalls calls{monitor};
    // The first wait of each thread asks once more, when its subscription is confirmed.
    CHECK(calls.others <= 3 * 8 * times + 2 * 8 + calls.refreshes);
    CHECK(redis.keys().empty());
}

TEST_CASE("neither try_lock() nor a thread of the releasing process passes a waiter") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    Client other{server.url()};
    FairLock orders{client, "orders"};
    FairLock same_orders{other, "orders"};
    Served served;
    orders.lock();
    Visitor far{redis, same_orders, "far", served};
    Visitor near{redis, orders, "near", served};
    Visitor far_too{redis, same_orders, "far too", served};
    CHECK_FALSE(elsewhere([&] { return orders.try_lock(); }));
    orders.unlock();
    CHECK(far_too.is_served());
    CHECK(near.is_served());
    CHECK(far.is_served());
    CHECK(served.names() == Words{"far", "near", "far too"});
    CHECK(redis.keys().empty());
}

TEST_CASE(
    "fault: head of the queue killed or frozen: the next waiter is delayed by one slot at most, and keeps its place") {
    for (const bool kill : {true, false}) {
        CAPTURE(kill);
        RedisServer server;
        RawRedis redis{server};
        Client client{server.url(), with_watchdog(quick_watchdog)};
        FairLock orders{client, "orders"};
        Served served;
        orders.lock();
        auto child = spawn_self("one customer", {server.url()});
        REQUIRE(are_waiting(redis, 1));
        Visitor second{redis, orders, "second", served};
        Visitor third{redis, orders, "third", served};
        REQUIRE(are_waiting(redis, 3));
        const Words arrived = waiting(redis);
        // Longer than a slot, so all three are refreshed.
        const auto until = redis.now() + quick_slot.count() * 3 / 2;
        REQUIRE(eventually([&] { return redis.now() > until; }, 20s));
        CHECK(waiting(redis) == arrived);
        if (kill)
            child.kill();
        else
            child.stop();
        const auto before = redis.script_calls();
        const Stopwatch watch;
        orders.unlock();
        CHECK(second.is_served());
        CHECK(watch.within(quick_slot + quick_slot / 3 + patient(1500ms)));
        CHECK(third.is_served());
        CHECK(redis.script_calls() - before < 20);
        CHECK(served.names() == Words{"second", "third"});
        if (!kill) {
            // It finds its slot gone, joins the queue again, and is served.
            child.cont();
            CHECK(child.wait(20s) == ExitStatus{0, 0});
            CHECK(redis.exists("customer served"));
            redis.call("DEL", "customer served");
        }
        CHECK(is_left_empty(redis, orders));
    }
}

TEST_CASE("a killed holder delays the queue by its lease, and the order stays") {
    CHECK(succeeds_once(
        [] {
            RedisServer server;
            RawRedis redis{server};
            Client client{server.url(), with_watchdog(quick_watchdog)};
            FairLock orders{client, "orders"};
            Served served;
            redis.call("HSET", "orders", "killed", 1);
            redis.call("PEXPIRE", "orders", 10'000);  // by then both are in the queue
            Visitor first{redis, orders, "first", served};
            Visitor second{redis, orders, "second", served};
            const Stopwatch watch;
            CHECK(first.is_served());
            CHECK(second.is_served());
            const bool in_time = watch.within(10s + patient(1500ms));
            CHECK(served.names() == Words{"first", "second"});
            return in_time;
        },
        3));
}

// The waiters behind it know only the lease of the holder that they found.
TEST_CASE("the end of a lease that a waiter acquired lets the next waiter in") {
    for (const bool same_client : {false, true}) {
        CAPTURE(same_client);
        const auto comes_soon = [&] {
            RedisServer server;
            RawRedis redis{server};
            CommandMonitor monitor{server};
            Client client{server.url()};
            Client second{server.url()};
            Client third{server.url()};
            FairLock orders{client, "orders"};
            FairLock next{second, "orders"};
            FairLock last{same_client ? second : third, "orders"};
            orders.lock();
            auto leased = start([&] {
                next.lock(Lease{500ms});
                return SteadyClock::now();
            });
            REQUIRE(are_waiting(redis, 1));
            auto waiting = start([&] {
                last.lock();
                const auto now = SteadyClock::now();
                last.unlock();
                return now;
            });
            REQUIRE(are_waiting(redis, 2));
            falls_silent(monitor);  // a waiter asks once more when it has subscribed
            const auto released = SteadyClock::now();
            orders.unlock();
            const auto entered = leased.get();
            const auto came = waiting.get();
            CHECK(came - released >= 499ms);                          // Redis counts whole milliseconds
            CHECK(eventually([&] { return redis.keys().empty(); }));  // the caller with the lease may have come late
            return came - entered < 500ms + patient(250ms);
        };
        CHECK(succeeds_once(comes_soon, 4));
    }
}

TEST_CASE("eight threads with leases that nobody releases: each gets the lock in turn") {
    constexpr auto lease = 1000ms;
    RedisServer server;
    Client client{server.url()};
    Client other{server.url()};
    struct Turn {
        SteadyClock::time_point held;
        SteadyClock::time_point valid_until;
    };
    std::vector<std::future<std::optional<Turn>>> all;
    for (int i = 0; i < 8; ++i)
        all.push_back(start([&, i]() -> std::optional<Turn> {
            FairLock orders{i % 2 == 0 ? client : other, "orders"};
            if (!orders.try_lock_for(60s, Lease{lease})) return std::nullopt;
            return Turn{SteadyClock::now(), orders.valid_until()};
        }));
    std::vector<Turn> turns;
    for (auto& one : all)
        if (const auto turn = one.get()) turns.push_back(*turn);
    REQUIRE(turns.size() == 8);
    // A thread that got no CPU until its lease was over may have read the clock in the next one's turn.
    std::erase_if(turns, [](const Turn& turn) { return turn.held >= turn.valid_until; });
    std::sort(turns.begin(), turns.end(), [](const Turn& a, const Turn& b) { return a.held < b.held; });
    for (std::size_t i = 1; i < turns.size(); ++i) CHECK(turns[i - 1].valid_until <= turns[i].held);
}

TEST_CASE("a waiter that gives up leaves nothing on the server, and the next one gets the turn") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    FairLock orders{client, "orders"};
    Served served;
    orders.lock();
    const auto held_only = [&] { return redis.keys() == Words{"orders"} && redis.pubsub_channels().empty(); };
    CHECK_FALSE(elsewhere([&] { return orders.try_lock_for(50ms); }));
    CHECK(eventually(held_only, 20s));
    {
        Visitor stopped{redis, orders, "stopped", served};
        stopped.stop.request_stop();
        CHECK(stopped.has_left());
        CHECK(eventually(held_only, 20s));
    }
    // The lock is free without a message. The head, which would acquire it a little later, leaves, and the next waiter
    // is notified. A refresh just then would notify the head, too.
    CommandMonitor monitor{server};
    const auto passes_on = [&] {
        Visitor head{redis, orders, "head", served};
        Visitor next{redis, orders, "next", served};
        REQUIRE(are_waiting(redis, 2));
        monitor.take();
        redis.call("DEL", "orders");
        head.stop.request_stop();
        CHECK(next.is_served());
        const bool refreshed = ScriptCalls{monitor}.refreshes > 0;
        const bool has_left = head.has_left();
        std::error_code ec;
        orders.unlock(ec);
        CHECK(ec == errc::hold_lost);
        CHECK(eventually([&] { return redis.keys().empty(); }, 20s));
        orders.lock();
        return has_left && !refreshed;
    };
    CHECK(succeeds_once(passes_on));
    orders.unlock();
    CHECK(redis.keys().empty());
}

TEST_CASE("a waiter that may not subscribe fails, and leaves nothing on the server") {
    RedisServer server;
    RawRedis redis{server};
    redis.call("ACL", "SETUSER", "deaf", "on", "nopass", "~*", "resetchannels", "+@all");
    Client holder{server.url()};
    FairLock held{holder, "orders"};
    held.lock();
    Client client{"unix://deaf:x@" + server.socket_path()};
    FairLock orders{client, "orders"};
    std::error_code ec;
    CHECK_FALSE(elsewhere([&] { return orders.try_lock_for(20s, ec); }));
    CHECK(ec == errc::rejected);
    CHECK(eventually([&] { return redis.keys() == Words{"orders"}; }, 20s));
}

TEST_CASE("a foreign waiter in the queue gets its turn") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    FairLock orders{client, "orders"};
    Served served;
    orders.lock();
    const auto until = redis.now() + 330'000;
    redis.call("RPUSH", queue, "foreign:1");
    redis.call("ZADD", timeouts, until, "foreign:1");
    Messages to_foreigner{server, channels + "foreign:1"};
    Visitor ours{redis, orders, "ours", served};
    REQUIRE(eventually([&] { return redis.pubsub_channels(channels + "*").size() == 2; }, 20s));
    const std::string our_channel = channels + waiting(redis).at(1);
    Messages to_ours{server, our_channel};
    orders.unlock();
    const Words told = to_foreigner.take();
    CHECK_FALSE(told.empty());
    CHECK(told == Words(told.size(), "0"));  // again by each refresh before its turn
    CHECK(to_ours.take().empty());
    CHECK_FALSE(orders.try_lock());
    CHECK(redis.integer("ZSCORE", timeouts, "foreign:1") == until);
    // It acquires the lock as Redisson does, in one step, and releases it.
    const char* const take =
        "redis.call('lpop', KEYS[1]) redis.call('zrem', KEYS[2], ARGV[1]) "
        "redis.call('zincrby', KEYS[2], '-300000', redis.call('lindex', KEYS[1], 0)) "
        "redis.call('hset', KEYS[3], ARGV[1], 1) return redis.call('pexpire', KEYS[3], 30000)";
    REQUIRE(redis.integer("EVAL", take, 3, queue, timeouts, "orders", "foreign:1") == 1);
    CHECK(served.names().empty());
    redis.call("DEL", "orders");
    redis.call("PUBLISH", our_channel, 0);
    CHECK(ours.is_served());
    CHECK(redis.keys().empty());
}

TEST_CASE("a foreign waiter that does not come blocks the queue until its time is over, while the others sleep") {
    CHECK(succeeds_once(
        [] {
            RedisServer server;
            RawRedis redis{server};
            Client client{server.url(), with_watchdog(quick_watchdog)};
            FairLock orders{client, "orders"};
            Served served;
            redis.call("RPUSH", queue, "foreign:1");
            const Stopwatch watch;
            // By then our waiters are in the queue.
            redis.call("ZADD", timeouts, redis.now() + 6000, "foreign:1");
            const auto before = redis.script_calls();
            Visitor first{redis, orders, "first", served};
            Visitor second{redis, orders, "second", served};
            CHECK(first.is_served());
            CHECK(watch.elapsed() >= 5950ms);
            CHECK(second.is_served());
            const bool in_time = watch.within(6s + patient(1500ms));
            CHECK(redis.script_calls() - before < 25);
            CHECK(served.names() == Words{"first", "second"});
            return in_time;
        },
        3));
}

TEST_CASE(
    "a waiter keeps its place for the time of its own client, and is skipped then, by clients with another time") {
    constexpr std::chrono::milliseconds time = patient(1500ms);
    RedisServer server;
    auto child = ChildProcess::run([&] {
        redlatch::ClientOptions options;
        options.fair_waiter_timeout = time;
        Client client{server.url(), options};
        FairLock orders{client, "orders"};
        RawRedis redis{server};
        if (!eventually([&] { return redis.exists("orders"); }, 20s)) return 1;
        orders.lock();
        return 0;
    });
    RawRedis redis{server};
    Client client{server.url()};
    FairLock orders{client, "orders"};
    orders.lock();
    REQUIRE(are_waiting(redis, 1));
    const std::string first = waiting(redis).at(0);
    const auto left = [&] { return redis.integer("ZSCORE", slots, first) - redis.now(); };
    CHECK(left() <= time.count());
    auto second = start([&] { return orders.try_lock_for(60s) ? (orders.unlock(), true) : false; });
    REQUIRE(are_waiting(redis, 2));
    // It is refreshed.
    std::this_thread::sleep_for(2 * time);
    CHECK(waiting(redis).at(0) == first);
    CHECK(left() <= time.count());
    child.kill();
    const Stopwatch watch;
    orders.unlock();
    CHECK(second.get());
    // The second waiter looks every third of five seconds.
    CHECK(watch.within(time + 5000ms / 3 + patient(1500ms)));
    CHECK(is_left_empty(redis, orders));
}

TEST_CASE("waiters survive a server that restarts empty") {
    RedisServer server;
    Client client{server.url(), with_watchdog(quick_watchdog)};
    FairLock orders{client, "orders"};
    Served served;
    {
        RawRedis redis{server};
        redis.call("HSET", "orders", "somebody", 1);
        redis.call("PEXPIRE", "orders", 600'000);
        Visitor visitor{redis, orders, "visitor", served};
        // Its slot is gone, which the next refresh detects at the latest.
        redis.call("DEL", queue, timeouts, slots);
        REQUIRE(are_waiting(redis, 1));
        server.restart();
        CHECK(visitor.is_served());
    }
    CHECK(served.names() == Words{"visitor"});
}

TEST_CASE("a forked child has its own name in the queue") {
    RedisServer server;
    RawRedis redis{server};
    Client client{server.url()};
    FairLock orders{client, "orders"};
    orders.lock();
    auto child = ChildProcess::run([&] {
        if (orders.is_held() || orders.try_lock()) return 1;
        orders.lock();
        const bool held = orders.is_held();
        orders.unlock();
        return held ? 0 : 2;
    });
    REQUIRE(are_waiting(redis, 1));
    CHECK_FALSE(waiting(redis).at(0).starts_with(client.id()));
    orders.unlock();
    CHECK(child.wait(20s) == ExitStatus{0, 0});
    CHECK(redis.keys().empty());
}
