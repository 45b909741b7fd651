// SPDX-License-Identifier: MIT
// ctest: timeout=300
// Four processes on one RedLock over five servers. Meanwhile one server is frozen, one is killed, and one is restarted
// without its data. There are at least REDLATCH_STRESS_CYCLES (4000) holds, none of which may overlap with another.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <redlatch/redlatch.hpp>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "support/history.hpp"
#include "support/plain_counter.hpp"
#include "support/process.hpp"
#include "support/raw_redis.hpp"
#include "support/redis_server.hpp"
#include "support/shared_memory.hpp"
#include "support/temp_dir.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t processes = 4;
constexpr std::size_t servers = 5;
constexpr auto lease = patient(4000ms);

std::uint64_t wanted_cycles() {
    const char* wanted = std::getenv("REDLATCH_STRESS_CYCLES");
    const int cycles = wanted != nullptr ? std::atoi(wanted) : 0;
    return cycles > 0 ? static_cast<std::uint64_t>(cycles) : 4000;
}

struct Shared {
    std::atomic<std::size_t> ready{0};
    std::atomic<bool> begin{false};
    std::atomic<bool> end{false};
    PlainCounter counter;
    std::array<std::atomic<std::uint64_t>, processes> turns{};
    std::atomic<std::uint64_t> failed{0};  // calls that returned an error
    std::atomic<std::uint64_t> lost{0};    // holds that ended before their unlock

    std::uint64_t done() const {
        std::uint64_t sum = 0;
        for (const auto& turn : turns) sum += turn;
        return sum;
    }
};

// One hold, recorded from after its acquire until its release or the end of its validity.
void hold_once(RedLock& lock, std::size_t me, Shared& shared, const HistoryFile& history) {
    std::error_code ec;
    lock.lock(ec);
    if (ec) {
        std::cerr << "lock: " << ec.message() << std::endl;
        ++shared.failed;
        return;
    }
    Interval interval{me + 1, monotonic_ns(), 0};
    const auto valid_until = lock.valid_until();
    if (valid_until > Clock::now()) shared.counter.add_one_unseen();
    interval.until = std::min(monotonic_ns(), monotonic_ns(valid_until));
    lock.unlock(ec);
    if (ec == errc::hold_lost)
        ++shared.lost;
    else if (ec && ec != errc::unreachable)
        ++shared.failed;
    history.append(interval);
    ++shared.turns[me];
}

int run_worker(std::span<const std::string> args) {
    const std::size_t me = std::stoul(args[0]);
    auto shared = SharedMemory<Shared>::open(args[1]);
    const HistoryFile history{args[2]};
    ClientOptions options;
    options.watchdog_timeout = lease;
    std::deque<Client> clients;
    std::deque<RLock> locks;
    for (const std::string& url : args.subspan(3)) {
        clients.emplace_back(url, options);
        locks.emplace_back(clients.back(), "stressed");
    }
    RedLock lock{locks, {.node_timeout = patient(500ms)}};
    ++shared->ready;
    eventually([&] { return shared->begin.load(); }, 60s);
    while (!shared->end) hold_once(lock, me, *shared, history);
    return 0;
}

const Role worker_role{"red lock stress: worker", run_worker};

}  // namespace

TEST_CASE("four processes never hold a RedLock together while its servers freeze, die and lose their data") {
    std::array<RedisServer, servers> all;
    const TempDir dir;
    auto shared = SharedMemory<Shared>::create(dir.file("shared"));
    const HistoryFile history{dir.file("history")};
    std::vector<ChildProcess> workers;
    for (std::size_t i = 0; i < processes; ++i) {
        std::vector<std::string> args{std::to_string(i), dir.file("shared"), dir.file("history")};
        for (const RedisServer& server : all) args.push_back(server.url());
        workers.push_back(spawn_self("red lock stress: worker", args));
    }
    REQUIRE(eventually([&] { return shared->ready == processes; }, patient(60s)));
    shared->begin = true;
    const auto wait_for_holds = [&](const char* phase, std::uint64_t percent) {
        CAPTURE(phase);
        const std::uint64_t from = shared->done();
        const bool came =
            eventually([&] { return (shared->done() - from) * 100 >= wanted_cycles() * percent; }, patient(50s), 5ms);
        CAPTURE(shared->done() - from);
        REQUIRE(came);
    };
    // One fault at a time, so a majority with votes is always left. That it works shows in the holds, which continue.
    const Stopwatch watch;
    wait_for_holds("all servers", 15);
    all[0].stop();
    wait_for_holds("one is frozen", 20);
    all[1].restart();  // empty, and too young to vote for a while
    wait_for_holds("one is frozen, one is too young", 25);
    RawRedis second{all[1]};
    REQUIRE(eventually([&] { return std::stoll(second.info("server", "uptime_in_seconds")) * 1s > lease + 2s; }, 60s,
                       20ms));
    all[2].kill();
    wait_for_holds("one is frozen, one is dead", 40);
    shared->end = true;
    const auto took = watch.elapsed_ms();
    all[0].cont();
    for (ChildProcess& worker : workers) {
        const auto status = worker.wait(patient(60s));
        REQUIRE(status);
        CHECK(status->code == 0);
    }

    const std::uint64_t sections = shared->done();
    MESSAGE(sections << " holds in " << took.count() << " ms, " << shared->lost.load() << " of them lost");
    CHECK(shared->failed == 0);
    CHECK(shared->lost == 0);
    CHECK(shared->counter.value() == sections);
    for (const auto& turns : shared->turns) CHECK(turns > 0);
    const std::vector<Interval> intervals = history.read();
    CHECK(intervals.size() == sections);
    CHECK_FALSE(find_overlap(intervals));
    for (const std::size_t i : {0U, 1U, 3U, 4U}) {
        RawRedis redis{all[i]};
        CHECK(eventually([&] { return !redis.exists("stressed"); }, lease + patient(5s)));
    }
}
