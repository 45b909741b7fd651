// SPDX-License-Identifier: MIT
// ctest: without=address
// Processes that die, freeze, fork, or compete in large numbers.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "faults/fault_kit.hpp"
#include "support/history.hpp"
#include "support/plain_counter.hpp"
#include "support/shared_memory.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

constexpr std::chrono::milliseconds margin = 50ms + late;
constexpr std::chrono::milliseconds short_lease = paced(3000ms);

ClientOptions with_short_lease() { return unhurried(short_lease); }

struct Shared {
    std::atomic<int> holding{0};
    std::atomic<int> waiting{0};
    std::atomic<int> resumed{0};
    PlainCounter counter;
};

// Holds the lock until it is killed.
int hold_until_killed(std::span<const std::string> args) {
    auto shared = SharedMemory<Shared>::open(args[1]);
    Client client{args[0], with_short_lease()};
    RLock orders{client, "orders"};
    orders.lock();
    for (;;) {
        shared->holding = static_cast<int>(client.stats().renewals) + 1;
        std::this_thread::sleep_for(1ms);
    }
    return 0;
}

const Role holder_role{"fault: holder", hold_until_killed};

// Waits for the lock until it is killed.
int wait_until_killed(std::span<const std::string> args) {
    auto shared = SharedMemory<Shared>::open(args[1]);
    Client client{args[0], with_short_lease()};
    RLock orders{client, "orders"};
    ++shared->waiting;
    orders.lock();
    ++shared->holding;
    return 0;
}

const Role waiter_role{"fault: waiter", wait_until_killed};

// Holds the lock, is frozen for longer than the lease, and checks its hold when it continues.
int be_frozen(std::span<const std::string> args) {
    auto shared = SharedMemory<Shared>::open(args[1]);
    const HistoryFile history{args[2]};
    Client client{args[0], with_short_lease()};
    RLock orders{client, "orders"};
    orders.lock();
    Interval belief{1, monotonic_ns(), 0};
    const std::stop_token lost = orders.lost();
    auto last_look = std::chrono::steady_clock::now();
    for (;;) {
        const auto valid_until = orders.valid_until();
        const auto now = std::chrono::steady_clock::now();
        // Frozen between two checks: the first check afterwards must find that the hold is not certain any more.
        if (now - last_look > short_lease) {
            if (valid_until > now) return 1;
            break;
        }
        if (valid_until <= now) return 2;  // lost without having been frozen: the machine is too busy for this test
        belief.until = monotonic_ns(valid_until);
        shared->holding = 1;
        last_look = now;
        std::this_thread::sleep_for(1ms);
    }
    history.append(belief);
    shared->resumed = 1;
    if (!eventually([&] { return lost.stop_requested(); }, margin)) return 3;
    std::error_code ec;
    orders.unlock(ec);
    if (ec != errc::hold_lost) return 4;
    // It may acquire the lock again in its turn.
    if (!orders.try_lock_for(20s, ec)) return 5;
    history.append({1, monotonic_ns(), monotonic_ns() + 1});
    orders.unlock(ec);
    return ec ? 6 : 0;
}

const Role frozen_role{"fault: frozen holder", be_frozen};

const Role counting_role{
    "fault: counting", [](std::span<const std::string> args) {
        auto shared = SharedMemory<Shared>::open(args[1]);
        const HistoryFile history{args[2]};
        const auto me = static_cast<std::uint64_t>(::getpid());
        Client client{args[0], unhurried()};
        RLock orders{client, "orders"};
        ++shared->waiting;
        eventually([&] { return shared->waiting == 8; }, 60s);
        for (int i = 0; i < std::stoi(args[3]); ++i) {
            const std::lock_guard guard{orders};
            const Interval interval{me, monotonic_ns(), 0};
            shared->counter.add_one_unseen();
            history.append({me, interval.from, std::min(monotonic_ns(), monotonic_ns(orders.valid_until()))});
        }
        return 0;
    }};

}  // namespace

TEST_CASE("fault: holder killed: another process enters after its lease, and not before") {
    RedisServer server;
    const TempDir dir;
    auto shared = SharedMemory<Shared>::create(dir.file("shared"));
    Client client{server.url(), unhurried()};
    RLock orders{client, "orders"};
    for (int round = 0; round < 3; ++round) {
        shared->holding = 0;
        ChildProcess holder = spawn_self("fault: holder", {server.url(), dir.file("shared")});
        // Kill it after a renewal, so that the renewed lease is the one that must run out.
        REQUIRE(eventually([&] { return shared->holding > 1; }, 30s));
        auto waiting = start([&] {
            const bool held = orders.try_lock_for(60s);
            const auto entered = std::chrono::steady_clock::now();
            if (held) orders.unlock();
            return std::pair{held, entered};
        });
        RawRedis redis{server};
        REQUIRE(eventually([&] { return listeners(redis, "orders") == 1; }, 10s));
        holder.kill();
        // Read the clock before PTTL: the time until its reply must not count towards the rest of the lease.
        const auto killed = std::chrono::steady_clock::now();
        const auto left = std::chrono::milliseconds(redis.pttl("orders"));
        const auto [held, entered] = waiting.get();
        CHECK(held);
        CHECK(left > 0ms);
        CHECK(entered - killed <= short_lease + margin);
        CHECK(entered - killed >= left - 5ms);
        CHECK(holder.wait()->signal == SIGKILL);
    }
}

TEST_CASE("a waiter that is killed delays no other client, and leaves nothing behind") {
    RedisServer server;
    RawRedis redis{server};
    const TempDir dir;
    auto shared = SharedMemory<Shared>::create(dir.file("shared"));
    Client client{server.url(), unhurried()};
    RLock orders{client, "orders"};
    orders.lock();
    ChildProcess waiter = spawn_self("fault: waiter", {server.url(), dir.file("shared")});
    REQUIRE(eventually([&] { return listeners(redis, "orders") == 1; }, 30s));
    waiter.kill();
    CHECK(eventually([&] { return listeners(redis, "orders") == 0; }));
    orders.unlock();
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
    CHECK(orders.try_lock());
    orders.unlock();
    CHECK(shared->holding == 0);
}

TEST_CASE("fault: holder frozen beyond its lease: it notices the loss at once, and does not disturb the next holder") {
    RedisServer server;
    const TempDir dir;
    auto shared = SharedMemory<Shared>::create(dir.file("shared"));
    const HistoryFile history{dir.file("history")};
    ChildProcess frozen = spawn_self("fault: frozen holder", {server.url(), dir.file("shared"), dir.file("history")});
    REQUIRE(eventually([&] { return shared->holding == 1 || !frozen.running(); }, 30s));
    if (!frozen.running()) FAIL("the holder gave up with " << frozen.wait()->code);
    Client client{server.url(), unhurried()};
    RLock orders{client, "orders"};
    frozen.stop();
    const Stopwatch watch;
    REQUIRE(orders.try_lock_for(30s));
    CHECK(watch.within(short_lease + margin));
    Interval mine{2, monotonic_ns(), 0};
    // In any case it is frozen for longer than its lease.
    REQUIRE(eventually([&] { return watch.elapsed() > short_lease + 100ms; }, 30s));
    frozen.cont();
    REQUIRE(eventually([&] { return shared->resumed == 1 || !frozen.running(); }, 30s));
    CHECK(orders.is_held());
    CHECK(orders.hold_count() == 1);
    CHECK_FALSE(orders.lost().stop_requested());
    mine.until = monotonic_ns();
    history.append(mine);
    orders.unlock();
    const auto status = frozen.wait(30s);
    REQUIRE(status);
    CHECK(status->code == 0);
    CHECK(history.read().size() == 3);
    CHECK_FALSE(find_overlap(history.read()));
    CHECK(eventually([&] { return RawRedis{server}.keys().empty(); }, std::chrono::seconds{20}));
}

TEST_CASE("eight processes on one key: mutual exclusion holds, and no count is lost") {
    RedisServer server;
    const TempDir dir;
    auto shared = SharedMemory<Shared>::create(dir.file("shared"));
    const HistoryFile history{dir.file("history")};
    constexpr int sections = 50;
    std::vector<ChildProcess> processes;
    for (int i = 0; i < 8; ++i) {
        processes.push_back(spawn_self(
            "fault: counting", {server.url(), dir.file("shared"), dir.file("history"), std::to_string(sections)}));
    }
    for (ChildProcess& process : processes) {
        const auto status = process.wait(90s);
        REQUIRE(status);
        CHECK(status->code == 0);
    }
    CHECK(shared->counter.value() == 8 * sections);
    CHECK(history.read().size() == 8 * sections);
    CHECK_FALSE(find_overlap(history.read()));
    RawRedis redis{server};
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
    CHECK(eventually([&] { return redis.connected_clients() == 0; }));
}

namespace {

// Forks while threads hold, wait, and are in the middle of commands. The child must act only on its own behalf.
int fork_in_the_middle(const std::string& url) {
    EventLog log;
    Client client{url, log.in(unhurried(paced(4500ms)))};
    RLock orders{client, "orders"};
    RLock busy{client, "busy"};
    RLock held{client, "held"};
    orders.lock();
    const std::string parent_id = client.id();

    std::atomic<bool> stopping{false};
    std::atomic<int> rounds{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) {
        threads.emplace_back([&] {
            RLock own{client, "own"};
            while (!stopping) {
                const std::lock_guard guard{own};
                const std::lock_guard another{busy};
                ++rounds;
            }
        });
    }
    int result = 0;
    for (int round = 0; round < 5 && result == 0; ++round) {
        const int before = rounds;
        if (!eventually([&] { return rounds > before + 20; }, 20s)) result = 10;
        const pid_t child = ::fork();
        if (child == 0) {
            std::error_code ec;
            // The parent's hold does not belong to the child, although the thread looks the same. A guard that is
            // unwound here must do nothing.
            orders.unlock(ec);
            if (ec != errc::hold_lost) ::_exit(20);
            if (client.id() == parent_id) ::_exit(21);
            if (orders.try_lock(ec) || ec) ::_exit(22);
            if (!orders.is_locked(ec) || ec) ::_exit(23);
            if (orders.is_held(ec) || ec) ::_exit(24);
            held.lock(ec);
            if (ec) ::_exit(25);
            if (held.hold_count() != 1) ::_exit(26);
            // A thread of the child renews it.
            if (!eventually([&] { return client.stats().renewals > 0; }, 20s)) ::_exit(27);
            held.unlock(ec);
            if (ec) ::_exit(28);
            if (!busy.try_lock_for(20s, ec)) ::_exit(29);
            busy.unlock(ec);
            ::_exit(ec ? 30 : 0);
        }
        int status = 0;
        if (child < 0 || ::waitpid(child, &status, 0) != child) return 11;
        if (!WIFEXITED(status)) return 12;
        if (WEXITSTATUS(status) != 0) result = WEXITSTATUS(status);
        if (!orders.is_held() || orders.lost().stop_requested()) result = 13;
    }
    stopping = true;
    for (std::thread& thread : threads) thread.join();
    std::error_code ec;
    orders.unlock(ec);
    if (ec) result = 14;
    if (log.count(Event::Kind::hold_lost) != 0) result = 15;
    return result;
}

// The child destroys the objects of the parent without sending anything.
int destroy_in_the_child(const std::string& url) {
    auto client = std::make_unique<Client>(url, unhurried());
    auto orders = std::make_unique<RLock>(*client, "orders");
    orders->lock();
    const pid_t child = ::fork();
    if (child == 0) {
        const Stopwatch watch;
        orders.reset();
        client.reset();
        ::_exit(watch.within(margin) ? 0 : 1);
    }
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 2;
    if (WEXITSTATUS(status) != 0) return 1;
    if (!orders->is_held()) return 3;
    std::error_code ec;
    orders->unlock(ec);
    return ec ? 4 : 0;
}

const Role forking_role{"fault: forking",
                        [](std::span<const std::string> args) { return fork_in_the_middle(args[0]); }};
const Role destroying_role{"fault: destroying",
                           [](std::span<const std::string> args) { return destroy_in_the_child(args[0]); }};

}  // namespace

TEST_CASE("fault: fork in the middle of use: the parent is undisturbed and the child has an identity of its own") {
    RedisServer server;
    ChildProcess process = spawn_self("fault: forking", {server.url()});
    const auto status = process.wait(100s);
    REQUIRE(status);
    CHECK(status->code == 0);
    RawRedis redis{server};
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
    CHECK(eventually([&] { return redis.connected_clients() == 0; }));
}

TEST_CASE("a forked child that only destroys the objects it inherited: the parent is undisturbed") {
    RedisServer server;
    ChildProcess process = spawn_self("fault: destroying", {server.url()});
    const auto status = process.wait(60s);
    REQUIRE(status);
    CHECK(status->code == 0);
    CHECK(eventually([&] { return RawRedis{server}.keys().empty(); }, std::chrono::seconds{20}));
}

// --- leaks --------------------------------------------------------------------------------------------------------

namespace {

std::size_t entries(const char* directory) {
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator{directory}) ++count;
    return count;
}

void use_in_every_way(FaultyPath& path) {
    ClientOptions options = quick();
    options.watchdog_timeout = 30s;
    Client client{path.url(), options};
    RLock orders{client, "orders"};
    orders.lock();
    auto waiting = start([&] {
        const bool held = orders.try_lock_for(20s);
        if (held) orders.unlock();
        return held;
    });
    CHECK(eventually([&] { return listeners(path.redis, "orders") == 1; }));
    path.redis.kill_clients("pubsub");
    path.redis.kill_clients("normal");
    CHECK(orders.is_held());
    orders.unlock();
    CHECK(waiting.get());
    // Destroyed while held, and with a release that cannot be delivered.
    RLock left{client, "left"};
    left.lock(Lease{paced(300ms)});
    RLock lost{client, "lost"};
    lost.lock(Lease{paced(300ms)});
    path.proxy.refuse(true);
    path.proxy.kill_all();
    std::error_code ec;
    lost.unlock(ec);
    CHECK(ec);
    path.proxy.refuse(false);
}

}  // namespace

TEST_CASE("clients destroyed: descriptors, threads, keys and channels are as before") {
    FaultyPath path;
    // The first use may open descriptors that stay open.
    use_in_every_way(path);
    REQUIRE(eventually([&] { return path.proxy.counts().open == 0; }));
    const std::size_t descriptors = entries("/proc/self/fd");
    const std::size_t threads = entries("/proc/self/task");
    for (int round = 0; round < 5; ++round) use_in_every_way(path);
    CHECK(eventually([&] { return path.proxy.counts().open == 0; }));
    CHECK(eventually([&] { return entries("/proc/self/fd") == descriptors; }));
    // The kernel may have counted a thread that was just ending.
    CHECK(eventually([&] { return entries("/proc/self/task") <= threads; }));
    CHECK(eventually([&] { return path.redis.pubsub_channels().empty(); }));
    CHECK(eventually([&] {
        return path.redis.keys("left").empty() && path.redis.keys("orders").empty() && path.redis.keys("lost").empty();
    }));
    // The marks that a resent release leaves against its own delayed copies expire.
    for (const std::string& key : path.redis.keys()) CHECK(path.redis.pttl(key) != -1);
}

TEST_CASE("client destroyed while the server is frozen: its destructor ends within a command's time") {
    RedisServer server;
    auto client = std::make_unique<Client>(server.url(), quick());
    auto orders = std::make_unique<RLock>(*client, "orders");
    orders->lock();
    server.stop();
    std::error_code ec;
    orders->unlock(ec);
    CHECK(ec == errc::unreachable);
    const Stopwatch watch;
    orders.reset();
    client.reset();
    CHECK(watch.within(2 * command_timeout + margin));
    server.cont();
}
