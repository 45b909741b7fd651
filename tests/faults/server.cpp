// SPDX-License-Identifier: MIT
// ctest: long
// A server that stops, restarts, freezes, drops its clients or loses its scripts.
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "faults/fault_kit.hpp"
#include "faults/kinds_kit.hpp"
#include "support/history.hpp"
#include "support/plain_counter.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

constexpr std::chrono::milliseconds margin = 50ms + late;
constexpr std::chrono::milliseconds restart_lease = patient(9000ms);

// Waits for the lock in a thread of its own and releases it at once. The result is when it got the lock.
template <class AnyClient>
std::future<std::int64_t> waiter(AnyClient& client) {
    return start([&client] {
        RLock orders{client, "orders"};
        std::error_code ec;
        if (!orders.try_lock_for(60s, ec) || ec) return std::int64_t{0};
        const std::int64_t when = monotonic_ns();
        orders.unlock(ec);
        return when;
    });
}

bool is_waiting(RawRedis& redis, long long waiters = 1) {
    return eventually([&] { return listeners(redis, "orders") == waiters; }, 20s);
}

}  // namespace

TEST_CASE("fault: restart with the data intact: the holder keeps its hold, and the waiter gets its turn") {
    RedisServer server{{.appendonly = true}};
    EventLog log;
    const ClientOptions options = log.in(unhurried(restart_lease));
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    orders.lock();
    const std::stop_token lost = orders.lost();
    Client other{server.url(), unhurried()};
    auto waiting = waiter(other);
    {
        RawRedis redis{server};
        REQUIRE(is_waiting(redis));
    }
    const Stopwatch watch;
    server.kill();
    server.restart();
    REQUIRE(watch.elapsed() < restart_lease);
    RawRedis redis{server};
    REQUIRE(is_waiting(redis));
    const auto renewals = client.stats().renewals;
    REQUIRE(eventually([&] { return client.stats().renewals > renewals; }, restart_lease));
    CHECK(hold_counts(redis, "orders") == std::vector<std::string>{"1"});
    CHECK(orders.is_held());
    CHECK_FALSE(lost.stop_requested());
    CHECK_FALSE(ready(waiting, 0ms));
    std::error_code ec;
    const auto released = monotonic_ns();
    orders.unlock(ec);
    CHECK_FALSE(ec);
    REQUIRE(ready(waiting, 5s));
    CHECK(waiting.get() > released);
    CHECK(log.count(Event::Kind::hold_lost) == 0);
    CHECK(client.stats().reconnects > 0);
}

TEST_CASE(
    "fault: restart with the data lost: lost() is requested within a renewal period, and the waiter gets the lock") {
    RedisServer server;
    EventLog log;
    // The lease is longer than a renewal period plus the delay of a busy machine.
    ClientOptions options = log.in(quick());
    options.watchdog_timeout = paced(9s);
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    orders.lock();
    const std::stop_token lost = orders.lost();
    Client other{server.url(), unhurried()};
    auto waiting = waiter(other);
    {
        RawRedis redis{server};
        REQUIRE(is_waiting(redis));
    }
    server.restart();
    const Stopwatch since_back;
    REQUIRE(eventually([&] { return lost.stop_requested(); }, 20s));
    CHECK(since_back.elapsed() < options.watchdog_timeout / 3 + margin);
    CHECK(ready(waiting, 5s));
    CHECK(waiting.get() != 0);
    CHECK(orders.valid_until() == std::chrono::steady_clock::time_point::min());
    std::error_code ec;
    orders.unlock(ec);
    CHECK(ec == errc::hold_lost);
    CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 1; }));
    CHECK(RawRedis{server}.keys("orders").empty());
}

TEST_CASE("lock() while the server is down: it continues when the server is back") {
    RedisServer server;
    ClientOptions options = quick();
    options.watchdog_timeout = options.unreachable_timeout = 30s;
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    orders.lock();
    orders.unlock();
    server.kill();
    auto locking = start([&] { return code_of([&] { orders.lock(); }); });
    CHECK(eventually([&] { return client.stats().resends > 0; }));
    CHECK_FALSE(ready(locking, 0ms));
    server.restart();
    REQUIRE(ready(locking, 20s));
    CHECK_FALSE(locking.get());
    RawRedis redis{server};
    CHECK(hold_counts(redis, "orders") == std::vector<std::string>{"1"});
    CHECK(orders.force_unlock());
}

TEST_CASE("fault: subscription killed while waiting: a release wakes the waiter soon after the connection is back") {
    FaultyPath path;
    Client other{path.server.url(), unhurried()};
    RLock held{other, "orders"};
    Client client{path.url(), unhurried()};
    // The subscription stays as long as a lock object exists. Otherwise that of the last round could be taken for the
    // next one's.
    const RLock kept{client, "orders"};
    std::uint64_t waits = 0;
    for (const std::string type : {"pubsub", "normal"}) {
        CAPTURE(type);
        // So long a lease that its end wakes no waiter.
        held.lock(Lease{60s});
        auto waiting = waiter(client);
        ++waits;
        REQUIRE(eventually([&] { return client.stats().waits == waits; }));
        REQUIRE(is_waiting(path.redis));
        const auto refused = path.proxy.counts().refused;
        path.proxy.refuse(true);
        if (type == "normal") {
            // This kills the waiter's command connection, and the holder's with it, which comes back by itself.
            CHECK(path.redis.kill_clients("normal") > 0);
        }
        CHECK(path.redis.kill_clients("pubsub") == 1);
        REQUIRE(eventually([&] { return path.proxy.counts().refused > refused; }, 10s));
        std::error_code ec;
        held.unlock(ec);
        CHECK_FALSE(ec);
        CHECK_FALSE(ready(waiting, 0ms));
        path.proxy.refuse(false);
        const Stopwatch watch;
        REQUIRE(ready(waiting, 30s));
        CHECK(waiting.get() != 0);
        // The longest back-off is a second.
        CHECK(watch.within(1000ms + margin));
        CHECK_FALSE(path.redis.exists("orders"));
    }
}

TEST_CASE("fault: all connections killed again and again: mutual exclusion holds, and no hold or wake-up is lost") {
    RedisServer server;
    EventLog log;
    Client first{server.url(), log.in(unhurried())};
    Client second{server.url(), log.in(unhurried())};
    PlainCounter counter;
    std::atomic<bool> stopping{false};
    std::atomic<long long> killed{0};
    std::atomic<int> failed{0};
    std::thread killer{[&] {
        RawRedis redis{server};
        while (!stopping) {
            for (const char* type : {"normal", "pubsub"}) {
                killed += redis.kill_clients(type);
                std::this_thread::sleep_for(15ms);
            }
        }
    }};
    constexpr std::uint64_t sections = 40;
    std::vector<std::future<std::uint64_t>> workers;
    for (auto* client : {&first, &second, &first, &second}) {
        workers.push_back(start([&, client] {
            RLock orders{*client, "orders"};
            std::uint64_t done = 0;
            std::error_code ec;
            // Continue for longer if the killer had no time to run.
            while (done < sections || (killed <= 4 && done < 100 * sections)) {
                orders.lock(ec);
                if (!ec) {
                    counter.add_one_unseen(1ms);
                    ++done;
                    orders.unlock(ec);
                }
                if (ec) {
                    ++failed;
                    break;
                }
            }
            return done;
        }));
    }
    std::uint64_t done = 0;
    for (auto& worker : workers) done += worker.get();
    stopping = true;
    killer.join();
    INFO(log.text());
    CHECK(failed == 0);
    CHECK(done >= 4 * sections);
    CHECK(counter.value() == done);
    CHECK(killed > 4);
    CHECK(first.stats().reconnects > 0);
    CHECK(log.count(Event::Kind::hold_lost) == 0);
    RawRedis redis{server};
    CHECK(eventually([&] { return !redis.exists("orders"); }));
}

TEST_CASE("fault: SCRIPT FLUSH at any moment: callers do not notice") {
    RedisServer server;
    Client client{server.url(), unhurried()};
    PlainCounter counter;
    std::atomic<bool> stopping{false};
    std::atomic<int> flushes{0};
    std::thread flusher{[&] {
        RawRedis redis{server};
        while (!stopping) {
            redis.text("SCRIPT", "FLUSH");
            ++flushes;
        }
    }};
    CHECK(eventually([&] { return flushes > 10; }));
    std::vector<std::future<bool>> workers;
    for (int i = 0; i < 4; ++i) {
        workers.push_back(start([&] {
            RLock orders{client, "orders"};
            std::error_code first;
            for (int round = 0; round < 100; ++round) {
                std::error_code ec;
                orders.lock(ec);
                if (!ec) orders.lock(ec);
                if (!ec) counter.add_one();
                std::error_code partly;
                orders.unlock(partly);
                if (!ec) orders.unlock(ec);
                if (ec || partly) return false;
            }
            return true;
        }));
    }
    for (auto& worker : workers) CHECK(worker.get());
    stopping = true;
    flusher.join();
    CHECK(counter.value() == 400);
    RawRedis redis{server};
    CHECK(redis.info("errorstats", "errorstat_NOSCRIPT").starts_with("count="));
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("fault: SCRIPT FLUSH before a renewal: the renewal succeeds all the same") {
    RedisServer server;
    Client client{server.url(), unhurried(paced(4500ms))};
    RLock orders{client, "orders"};
    orders.lock();
    RawRedis redis{server};
    for (std::uint64_t renewals = 1; renewals <= 3; ++renewals) {
        redis.text("SCRIPT", "FLUSH");
        REQUIRE(eventually([&] { return client.stats().renewals >= renewals; }, 20s));
    }
    CHECK_FALSE(orders.lost().stop_requested());
    orders.unlock();
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("fault: CLIENT PAUSE: holders keep their locks and waiters keep their deadlines") {
    RedisServer server;
    RawRedis redis{server};
    EventLog log;
    ClientOptions options = log.in(quick());
    options.watchdog_timeout = paced(20s);
    options.command_timeout = paced(2s);
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    RLock others{client, "others"};
    orders.lock();
    const std::stop_token lost = orders.lost();
    const auto pause = paced(4000ms);
    const Stopwatch paused;  // the pause begins before the reply
    CHECK(redis.text("CLIENT", "PAUSE", pause.count(), "WRITE") == "OK");
    const Stopwatch watch;

    CHECK_FALSE(others.try_lock_for(100ms));
    CHECK(watch.within(100ms + margin));
    // A client's commands are answered in order, so use another client.
    Client fresh{server.url(), unhurried()};
    RLock same_others{fresh, "others"};
    same_others.lock();
    CHECK(paused.elapsed() >= pause);
    CHECK(hold_counts(redis, "others") == std::vector<std::string>{"1"});
    same_others.unlock();
    CHECK(orders.is_held());
    CHECK_FALSE(lost.stop_requested());
    std::error_code ec;
    orders.unlock(ec);
    CHECK_FALSE(ec);
    CHECK(log.count(Event::Kind::hold_lost) == 0);
    CHECK(eventually([&] { return redis.keys("o*").empty(); }));
}

TEST_CASE("lost() is requested before the lease ends at the server, so before another client enters") {
    FaultyPath path;
    Client other{path.server.url(), quick()};
    // Returns whether the loss was reported before the next owner entered. The library reports it 2 ms before the lease
    // can end. Its thread has to run for that, so a busy machine gets several rounds.
    const auto is_told_first = [&](bool watched) {
        EventLog log;
        ClientOptions options = log.in(quick());
        options.watchdog_timeout = paced(600ms);
        Client client{path.url(), options};
        RLock orders{client, "orders"};
        if (watched)
            orders.lock();
        else
            orders.lock(Lease{options.watchdog_timeout});
        std::atomic<std::int64_t> told{0};
        const std::stop_token lost = orders.lost();
        const std::stop_callback on_lost{lost, [&] { told = monotonic_ns(); }};
        path.proxy.blackhole(true);  // blocks all renewals
        auto waiting = waiter(other);
        const std::int64_t entered = waiting.get();
        REQUIRE(entered != 0);
        REQUIRE(eventually([&] { return told != 0; }));
        CHECK(orders.valid_until() == std::chrono::steady_clock::time_point::min());
        path.proxy.blackhole(false);
        std::error_code ec;
        orders.unlock(ec);
        CHECK(ec == errc::hold_lost);
        CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 1; }));
        CHECK(client.stats().lost_holds == 1);
        CHECK(eventually([&] { return !path.redis.exists("orders"); }));
        return told < entered;
    };
    for (const bool watched : {false, true}) {
        CAPTURE(watched);
        bool is_told = false;
        for (int tries = 0; tries < 8 && !is_told; ++tries) is_told = is_told_first(watched);
        CHECK(is_told);
    }
}

TEST_CASE("fault: server frozen longer than a lease: the loss is reported, and the hold is not revived") {
    RedisServer server;
    ClientOptions options = quick();
    options.watchdog_timeout = paced(2400ms);
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    orders.lock();
    std::atomic<std::int64_t> told{0};
    const std::stop_token lost = orders.lost();
    const std::stop_callback on_lost{lost, [&] { told = monotonic_ns(); }};
    REQUIRE(eventually([&] { return client.stats().renewals > 0; }));
    server.stop();
    std::int64_t valid_until = monotonic_ns(orders.valid_until());
    // A last renewal may have been on its way.
    while (!lost.stop_requested() && monotonic_ns() < valid_until) {
        if (const auto now = orders.valid_until(); now != std::chrono::steady_clock::time_point::min())
            valid_until = monotonic_ns(now);
        std::this_thread::sleep_for(1ms);
    }
    REQUIRE(eventually([&] { return told != 0; }));
    CHECK(told <= valid_until + std::chrono::nanoseconds(late).count());

    // Stays frozen until the lease is over on the server, too.
    const std::int64_t over = told + std::chrono::nanoseconds(options.watchdog_timeout).count();
    REQUIRE(eventually([&] { return monotonic_ns() > over; }, 10s));
    Client other{server.url(), unhurried()};
    auto waiting = waiter(other);
    server.cont();
    REQUIRE(ready(waiting, 10s));
    CHECK(waiting.get() > told);
    std::error_code ec;
    orders.unlock(ec);
    CHECK(ec == errc::hold_lost);
    RawRedis redis{server};
    CHECK(eventually([&] { return !redis.exists("orders"); }));
    CHECK(orders.try_lock_for(10s));
    orders.unlock();
}

TEST_CASE("the end of a guard with the server dead: it does not throw, and ends in time") {
    RedisServer server;
    EventLog log;
    Client client{server.url(), log.in(quick())};
    RLock orders{client, "orders"};
    RLock twice{client, "twice"};
    Stopwatch watch;
    {
        const std::lock_guard guard{orders};
        const std::lock_guard outer{twice};
        const std::lock_guard inner{twice};
        server.kill();
        watch.restart();
    }
    CHECK(watch.within(3 * command_timeout + margin));
    // Finally it is reported: as not delivered, or as lost if the lease ended before.
    CHECK(eventually(
        [&] { return log.count(Event::Kind::unlock_not_delivered) + log.count(Event::Kind::hold_lost) >= 2; },
        watchdog_timeout + late + patient(2000ms)));
    CHECK(code_of([&] { orders.unlock(); }) == errc::not_owner);
    server.restart();
    CHECK(orders.try_lock_for(10s));
    orders.unlock();
    RawRedis redis{server};
    CHECK(eventually([&] { return redis.keys("orders").empty(); }));
}

TEST_CASE("a release while the server is down: it is delivered when the server is back in time") {
    RedisServer server{{.appendonly = true}};
    EventLog log;
    ClientOptions options = log.in(quick());
    options.watchdog_timeout = patient(30s);
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    orders.lock();
    RawRedis{server}.text("SET", "witness", "that the data are there");
    server.kill();
    std::error_code ec;
    orders.unlock(ec);
    CHECK(ec == errc::unreachable);
    server.restart();
    RawRedis redis{server};
    // Check this key and not the lock: the release may be faster than this check.
    CHECK(redis.exists("witness"));
    CHECK(eventually([&] { return !redis.exists("orders"); }, patient(10s)));
    CHECK(log.count(Event::Kind::unlock_not_delivered) == 0);
}

// Only the watchdog uses the server here. No other thread waits or calls.
TEST_CASE("on_event reports that the server is away, and that it is back") {
    RedisServer server;
    EventLog log;
    // With short time-outs of commands, a busy machine would disconnect before.
    Client client{server.url(), log.in(unhurried(watchdog_timeout))};
    RLock orders{client, "orders"};
    orders.lock();
    server.kill();
    CHECK(eventually([&] { return log.count(Event::Kind::disconnected) == 1; }, watchdog_timeout + margin));
    CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 1; }, watchdog_timeout + margin));
    server.restart();
    CHECK_FALSE(start([&] { return orders.is_locked(); }).get());
    CHECK(eventually([&] { return log.count(Event::Kind::reconnected) == 1; }));
}

TEST_CASE("calls to a dead server end on time, with the right error") {
    RedisServer server;
    ClientOptions options = quick();
    const auto unreachable = options.unreachable_timeout = paced(800ms);
    Client hasty{server.url(), options};
    RLock wanted{hasty, "orders"};
    std::error_code unknown;
    static_cast<void>(wanted.is_locked(unknown));  // opens a connection, as a rule
    // Too long to end a call.
    options.unreachable_timeout = 60s;
    Client client{server.url(), options};
    RLock orders{client, "orders"};
    REQUIRE(orders.try_lock_for(10s));
    orders.unlock();
    server.kill();
    // Each in a thread of its own, so that the pending release of one does not affect the next.
    start([&] {
        const Stopwatch watch;
        std::error_code ec;
        CHECK_FALSE(orders.try_lock_for(200ms, ec));
        CHECK(watch.within(200ms + margin));
        CHECK((!ec || ec == errc::unreachable));
    }).get();
    start([&] {
        const Stopwatch watch;
        CHECK(code_of([&] { return orders.try_lock(); }) == errc::unreachable);
        CHECK(watch.within(command_timeout + margin));
    }).get();
    start([&] {
        const Stopwatch watch;
        CHECK(code_of([&] { wanted.lock(); }) == errc::unreachable);
        CHECK(watch.within(unreachable + margin));
        CHECK(watch.elapsed() >= unreachable);
    }).get();
    std::stop_source stop;
    auto waiting = start([&] {
        std::error_code ec;
        return orders.lock(stop.get_token(), ec);
    });
    CHECK_FALSE(ready(waiting, 20ms));
    const Stopwatch watch;
    stop.request_stop();
    CHECK_FALSE(waiting.get());
    CHECK(watch.within(command_timeout + margin));
}

TEST_CASE("fault: server frozen, a hundred commands queued: a timed call of any kind ends soon after its deadline") {
    constexpr std::size_t queued = 100;
    constexpr int most_rounds = 4;
    constexpr auto deadline = 5ms;
    // The first command of a call has a quarter of a second, whatever the deadline.
    constexpr auto bound = deadline + patient(500ms);
    RedisServer server;
    Client client{server.url(), unhurried()};
    Client beside{server.url(), unhurried()};
    const auto name = [](int round) { return "orders" + std::to_string(round); };
    for (int round = 0; round < most_rounds; ++round)
        for (const AnyKind& kind : kinds_of(beside, name(round))) kind.prepare();
    std::set<std::string> late_ones;
    for (const AnyKind& kind : kinds_of(client, "orders")) late_ones.insert(kind.kind);
    server.stop();
    const auto before = client.stats().commands;
    std::vector<std::thread> callers;
    for (std::size_t i = 0; i < queued; ++i)
        callers.emplace_back([&client, i] {
            std::error_code ec;
            static_cast<void>(RLock{client, "queued" + std::to_string(i)}.is_locked(ec));
        });
    CHECK(eventually([&] { return client.stats().commands >= before + queued; }, 20s));
    // A busy machine gets several rounds.
    for (int round = 0; round < most_rounds && !late_ones.empty(); ++round) {
        for (const AnyKind& kind : kinds_of(client, name(round))) {
            if (!late_ones.contains(kind.kind)) continue;
            const Stopwatch watch;
            CHECK_FALSE(kind.try_for(deadline));
            if (watch.within(bound)) late_ones.erase(kind.kind);
        }
    }
    server.cont();
    for (std::thread& caller : callers) caller.join();
    for (const std::string& kind : late_ones) FAIL_CHECK(kind);
    // What was sent late is undone.
    for (const AnyKind& kind : kinds_of(beside, name(0))) {
        CAPTURE(kind.kind);
        CHECK(kind.try_for(10s));
    }
}

TEST_CASE("threads that wait together: the unreachable time-out covers all of them at once") {
    RedisServer server;
    ClientOptions options = quick();
    options.watchdog_timeout = paced(600ms);
    options.unreachable_timeout = paced(1500ms);
    Client other{server.url(), quick()};
    RLock held{other, "orders"};
    const Lease lease{paced(4s)};  // long enough for all of them to find it held
    held.lock(lease);
    Client client{server.url(), options};
    constexpr std::uint64_t threads = 12;
    std::vector<std::future<std::error_code>> waiting;
    for (std::uint64_t i = 0; i < threads; ++i) {
        waiting.push_back(start([&] {
            RLock orders{client, "orders"};
            return code_of([&] { orders.lock(); });
        }));
    }
    REQUIRE(eventually([&] { return client.stats().waits == threads; }));
    server.kill();
    const Stopwatch watch;
    for (auto& one : waiting) CHECK(one.get() == errc::unreachable);
    CHECK(watch.within(lease.length() + options.unreachable_timeout + threads * 100ms + late));
}

// An acquire of unknown outcome leaves a release to be delivered, which can take as long as the lease. Meanwhile a
// thread that asks again must not wait longer than for an unreachable server.
TEST_CASE("a second lock() after an acquire of unknown outcome: it ends as unreachable in time, too") {
    FaultyPath path;
    ClientOptions options = quick();
    options.unreachable_timeout = paced(500ms);
    Client client{path.url(), options};
    RLock orders{client, "orders"};
    // Opens the connection. The short time-out may strike on a busy machine.
    std::error_code unknown;
    REQUIRE(eventually([&] { return !orders.is_locked(unknown) && !unknown; }));
    path.proxy.blackhole(true);
    CHECK(code_of([&] { orders.lock(Lease{std::chrono::hours{1}}); }) == errc::unreachable);
    auto second = start([&] {
        const Stopwatch watch;
        RLock same_orders{client, "orders"};
        std::error_code ec;
        static_cast<void>(same_orders.try_lock_for(command_timeout, Lease{std::chrono::hours{1}}, ec));
        // Then the same thread asks without a deadline of its own.
        const Stopwatch without;
        std::stop_source stop;
        // Ends a call that would not end by itself.
        std::thread end{[&] {
            eventually([&] { return stop.stop_requested(); }, options.unreachable_timeout + margin + patient(2000ms));
            stop.request_stop();
        }};
        static_cast<void>(same_orders.lock(stop.get_token(), ec));
        const bool in_time = without.within(options.unreachable_timeout + margin);
        stop.request_stop();
        end.join();
        return ec == errc::unreachable && in_time;
    });
    CHECK(second.get());
    path.proxy.blackhole(false);
    CHECK(eventually([&] { return !path.redis.exists("orders"); }, 10s));
}
