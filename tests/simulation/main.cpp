// SPDX-License-Identifier: MIT
// redlatch_simulation [--seed n] [--count n] [--kind name] [--trace] [--first]
// The kind `pairs` is an enumeration: there a seed is the number of a run. Without a kind and a count it follows the seeds
// of all other kinds.
#include "simulation/pairs.hpp"
#include "simulation/simulation.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <sys/single_threaded.h>

int main(int argc, char** argv) {
    // If this were 1, the standard library would skip the synchronization that only several threads need.
    __libc_single_threaded = 0;
    std::uint64_t first = 1;
    constexpr std::uint64_t all = 20'000;
    std::optional<std::uint64_t> wanted;
    std::string only;
    bool trace = false;
    std::uint64_t most_failures = 20;
    for (int i = 1; i < argc; ++i) {
        const std::string option = argv[i];
        if (option == "--trace") {
            trace = true;
        } else if (option == "--first") {  // stop after the first failure
            most_failures = 1;
        } else if (i + 1 < argc && option == "--seed") {
            first = std::strtoull(argv[++i], nullptr, 10);
        } else if (i + 1 < argc && option == "--count") {
            wanted = std::strtoull(argv[++i], nullptr, 10);
        } else if (i + 1 < argc && option == "--kind") {
            only = argv[++i];
        } else {
            std::fprintf(stderr, "usage: %s [--seed n] [--count n] [--kind name] [--trace] [--first]\n", argv[0]);
            return 2;
        }
    }
    if (only == "pairs") {
        const sim::PairsWanted runs{first, wanted.value_or(UINT64_MAX), most_failures, trace};
        return sim::run_pairs(runs) ? 0 : 1;
    }
    const std::uint64_t count = wanted.value_or(all);
    std::vector<sim::Kind> kinds;
    for (const auto* some : {&sim::lock_kinds(), &sim::quorum_kinds(), &sim::synchronizer_kinds(), &sim::around_kinds(),
                             &sim::meeting_kinds()})
        for (const sim::Kind& kind : *some) kinds.push_back(kind);

    std::uint64_t seeds = 0;
    std::uint64_t failures = 0;
    std::uint64_t turns = 0;
    double simulated = 0;
    for (std::uint64_t seed = first; seed < first + count; ++seed) {
        const sim::Kind& kind = kinds[seed % kinds.size()];
        if (!only.empty() && only != kind.name) continue;
        ++seeds;
        sim::Scheduler scheduler(seed, trace);
        const sim::Nanos begun = scheduler.now();
        std::string failure;
        try {
            failure = scheduler.run(kind.run);
        } catch (const std::exception& e) {
            failure = e.what();
        }
        turns += scheduler.turns();
        simulated += static_cast<double>(scheduler.now() - begun) / static_cast<double>(sim::second);
        if (failure.empty()) continue;
        ++failures;
        std::printf(
            "seed %llu (%s): %s\n    again, with all that happens: cmake -DSEED=%llu -DTRACE=ON -P "
            "cmake/simulation.cmake\n",
            static_cast<unsigned long long>(seed), kind.name, failure.c_str(), static_cast<unsigned long long>(seed));
        std::fflush(stdout);
        if (failures >= most_failures) break;
    }
    std::printf("simulation: seeds=%llu kinds=%zu switches=%llu simulated_hours=%.1f failures=%llu\n",
                static_cast<unsigned long long>(seeds), kinds.size(), static_cast<unsigned long long>(turns),
                simulated / 3600, static_cast<unsigned long long>(failures));
    std::printf("later than every mark and lease:%s\n", sim::late_arrivals().summary().c_str());
    // So many seeds must have seen each command that late.
    const std::string missing = sim::late_arrivals().missing();
    if (only.empty() && count >= all && !missing.empty()) {
        std::printf("never that late:%s\n", missing.c_str());
        return 1;
    }
    if (failures >= most_failures) return 1;
    // The same for each pair of happenings at each step of an operation.
    const bool is_whole = only.empty() && first == 1 && !wanted;
    const bool pairs_are_well = !is_whole || sim::run_pairs({.most_failures = most_failures, .trace = trace});
    return failures == 0 && pairs_are_well ? 0 : 1;
}
