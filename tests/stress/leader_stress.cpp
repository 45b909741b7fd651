// SPDX-License-Identifier: MIT
// ctest: timeout=300 without=address
// Four candidates, one a process, of which one is killed or frozen again and again, for REDLATCH_STRESS_SECONDS (12):
// never two leaders at a time, and always another one.
#include <doctest/doctest.h>

#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <optional>
#include <redlatch/redlatch.hpp>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "stress/duration.hpp"
#include "support/history.hpp"
#include "support/process.hpp"
#include "support/redis_server.hpp"
#include "support/shared_memory.hpp"
#include "support/temp_dir.hpp"
#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t processes = 4;
constexpr auto lease = patient(1500ms);

struct Shared {
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> terms{0};
    std::atomic<std::uint64_t> lost{0};
};

ClientOptions options() {
    ClientOptions options;
    options.watchdog_timeout = lease;
    return options;
}

// Leads in terms of up to 60 ms. Its record of a term is extended while it leads, so what it believed before it was
// killed is known: is_leader() is asked after the clock is read.
int be_candidate(std::span<const std::string> args) {
    auto shared = SharedMemory<Shared>::open(args[1]);
    const HistoryFile history{args[2]};
    Client client{args[0], options()};
    LeaderElection election{client, "scheduler", args[3]};
    while (!shared->stop) {
        election.lead([&](const std::stop_token& ending, const Term& term) {
            ++shared->terms;
            Interval belief{static_cast<std::uint64_t>(::getpid()), monotonic_ns(), 0};
            belief.token = static_cast<std::uint64_t>(term.token());
            const auto ends = Clock::now() + 60ms;
            while (!ending.stop_requested() && Clock::now() < ends && !shared->stop) {
                const std::int64_t now = monotonic_ns();
                if (!term.is_leader()) break;
                belief.until = now;
                history.append(belief);
                std::this_thread::sleep_for(2ms);
            }
            if (ending.stop_requested()) ++shared->lost;
        });
    }
    return 0;
}

const Role candidate_role{"stress: candidate", be_candidate};

}  // namespace

TEST_CASE("candidates that are killed and frozen: never two leaders at a time, and always another one") {
    RedisServer server;
    const TempDir dir;
    auto shared = SharedMemory<Shared>::create(dir.file("shared"));
    const HistoryFile history{dir.file("history")};
    int number = 0;
    const auto spawn = [&] {
        return spawn_self("stress: candidate",
                          {server.url(), dir.file("shared"), dir.file("history"), "c" + std::to_string(++number)});
    };
    std::vector<ChildProcess> candidates;
    for (std::size_t i = 0; i < processes; ++i) candidates.push_back(spawn());
    Client client{server.url(), options()};
    LeaderElection election{client, "scheduler", "operator"};
    const auto end = Clock::now() + stress_duration(12s);
    for (std::size_t round = 0; Clock::now() < end; ++round) {
        const std::uint64_t before = shared->terms;
        REQUIRE(eventually([&] { return shared->terms > before + 2; }, 60s));
        ChildProcess& victim = candidates[round / 2 % processes];
        if (round % 2 == 0) {
            victim.kill();
            victim = spawn();
        } else {
            // Frozen for longer than a lease. The others go on meanwhile, and it wakes up into the term of another one.
            victim.stop();
            const Stopwatch watch;
            const std::uint64_t meanwhile = shared->terms;
            CHECK(eventually([&] { return watch.elapsed() > lease + 100ms && shared->terms > meanwhile; }, 60s));
            victim.cont();
        }
    }
    shared->stop = true;
    for (ChildProcess& candidate : candidates) {
        const auto status = candidate.wait(60s);
        REQUIRE(status);
        CHECK(status->code == 0);
    }
    const std::vector<Interval> terms = history.read();
    std::cout << shared->terms << " terms of " << number << " processes, " << shared->lost << " lost\n";
    CHECK(terms.size() > 10);
    CHECK_FALSE(find_overlap(terms));
    CHECK_FALSE(find_stale_token(terms));
    CHECK(election.try_campaign().token() > 0);
}
