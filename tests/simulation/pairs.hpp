// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace sim {

// Which of the runs of pairs. They are numbered from 1 on, and always the same.
struct PairsWanted {
    std::uint64_t first = 1;
    std::uint64_t count = UINT64_MAX;
    std::uint64_t most_failures = 20;
    bool trace = false;
};

// Forces each pair of happenings at each step of an operation's life: see PairRun. Prints the runs that failed, and a line
// `pairs: ... failures=0`. Returns whether none failed and, if all were wanted, each pair was hit at each step.
bool run_pairs(const PairsWanted& wanted);

}  // namespace sim
