// SPDX-License-Identifier: MIT
// Eight processes of four threads on one key, as fast as possible, for REDLATCH_STRESS_SECONDS (20) in each test.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <iostream>
#include <memory>
#include <redlatch/redlatch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "stress/duration.hpp"
#include "support/history.hpp"
#include "support/plain_counter.hpp"
#include "support/process.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"
#include "support/shared_memory.hpp"
#include "support/temp_dir.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t processes = 8;
constexpr std::size_t threads = 4;

struct Shared {
    std::atomic<std::size_t> ready{0};
    std::atomic<std::int64_t> end{0};  // 0: not yet begun
    PlainCounter counter;
    std::array<std::atomic<std::uint64_t>, processes * threads> turns{};
    std::atomic<std::uint64_t> failed{0};  // calls that returned an error
    std::atomic<std::uint64_t> waits{0};
    std::atomic<std::uint64_t> handoffs{0};
    std::atomic<std::uint64_t> reconnects{0};
    std::atomic<std::uint64_t> lost{0};
};

void work(RLock& lock, std::size_t me, Shared& shared, const HistoryFile& history) {
    ++shared.ready;
    eventually([&] { return shared.end != 0; }, 60s);
    while (monotonic_ns() < shared.end) {
        std::error_code ec;
        lock.lock(ec);
        if (ec) {
            std::cerr << "lock: " << ec.message() << std::endl;
            ++shared.failed;
            continue;
        }
        Interval interval{me, monotonic_ns(), 0};
        shared.counter.add_one_unseen();
        ++shared.turns[me];
        interval.until = std::min(monotonic_ns(), monotonic_ns(lock.valid_until()));
        lock.unlock(ec);
        if (ec) {
            std::cerr << "unlock: " << ec.message() << std::endl;
            ++shared.failed;
        }
        history.append(interval);
    }
}

// Every other process shares one client among its threads, so it hands holds over inside. In the others each thread has
// its own client.
int run_worker(std::span<const std::string> args) {
    auto shared = SharedMemory<Shared>::open(args[1]);
    const HistoryFile history{args[2]};
    const std::size_t number = std::stoul(args[3]);
    std::vector<std::unique_ptr<Client>> clients;
    ClientOptions options;
    options.watchdog_timeout = 10s;
    for (std::size_t i = 0; i < (number % 2 == 0 ? 1 : threads); ++i)
        clients.push_back(std::make_unique<Client>(args[0], options));
    std::vector<std::thread> workers;
    for (std::size_t i = 0; i < threads; ++i) {
        workers.emplace_back([&, i] {
            RLock lock{*clients[i % clients.size()], "stressed"};
            work(lock, number * threads + i, *shared, history);
        });
    }
    for (std::thread& worker : workers) worker.join();
    for (const auto& client : clients) {
        const Stats stats = client->stats();
        shared->waits += stats.waits;
        shared->handoffs += stats.handoffs;
        shared->reconnects += stats.reconnects;
        shared->lost += stats.lost_holds;
    }
    return 0;
}

const Role worker_role{"stress: worker", run_worker};

// Runs the workers. Until they end, repeats the disturbance.
template <class Disturb>
void stress(RedisServer& server, Shared& shared, const TempDir& dir, long long other_connections, Disturb disturb) {
    const HistoryFile history{dir.file("history")};
    std::vector<ChildProcess> workers;
    for (std::size_t i = 0; i < processes; ++i) {
        workers.push_back(
            spawn_self("stress: worker", {server.url(), dir.file("shared"), dir.file("history"), std::to_string(i)}));
    }
    REQUIRE(eventually([&] { return shared.ready == processes * threads; }, patient(30s)));
    const auto end = std::chrono::steady_clock::now() + stress_duration(10s);
    shared.end = monotonic_ns(end);
    while (std::chrono::steady_clock::now() < end) disturb();
    for (ChildProcess& worker : workers) {
        const auto status = worker.wait(patient(30s));
        REQUIRE(status);
        CHECK(status->code == 0);
    }

    std::uint64_t sections = 0;
    std::size_t with_a_turn = 0;
    for (const auto& turns : shared.turns) {
        sections += turns;
        if (turns > 0) ++with_a_turn;
    }
    MESSAGE(sections << " sections, " << shared.handoffs.load() << " by hand-over, " << shared.waits.load()
                     << " after waiting, " << shared.reconnects.load() << " reconnects");
    CHECK(shared.counter.value() == sections);
    CHECK(with_a_turn == processes * threads);
    CHECK(sections > processes * threads * 10);
    CHECK(shared.waits > 0);
    CHECK(shared.handoffs > 0);
    CHECK(shared.failed == 0);
    CHECK(shared.lost == 0);
    const std::vector<Interval> intervals = history.read();
    CHECK(intervals.size() == sections);
    CHECK_FALSE(find_overlap(intervals));

    RawRedis redis{server};
    CHECK(eventually([&] { return redis.keys().empty(); }, std::chrono::seconds{20}));
    CHECK(eventually([&] { return redis.pubsub_channels().empty(); }));
    CHECK(eventually([&] { return redis.connected_clients() == other_connections; }));
}

}  // namespace

TEST_CASE("eight processes of four threads never hold one lock together, and each gets its turn") {
    RedisServer server;
    const TempDir dir;
    auto shared = SharedMemory<Shared>::create(dir.file("shared"));
    stress(server, *shared, dir, 0, [] { std::this_thread::sleep_for(10ms); });
    CHECK(eventually([&] { return RawRedis{server}.keys().empty(); }, std::chrono::seconds{20}));
    CHECK(shared->reconnects == 0);
}

TEST_CASE("eight processes of four threads exclude each other while connections are killed and scripts flushed") {
    RedisServer server;
    RawRedis redis{server};
    const TempDir dir;
    auto shared = SharedMemory<Shared>::create(dir.file("shared"));
    long long killed = 0;
    int turn = 0;
    stress(server, *shared, dir, 1, [&] {
        std::this_thread::sleep_for(60ms);
        switch (turn++ % 3) {
            case 0: killed += redis.kill_clients("normal"); break;
            case 1: killed += redis.kill_clients("pubsub"); break;
            default: redis.text("SCRIPT", "FLUSH");
        }
    });
    CHECK(killed > 0);
    CHECK(shared->reconnects > 0);
    CHECK(redis.info("errorstats", "errorstat_NOSCRIPT").starts_with("count="));
}
