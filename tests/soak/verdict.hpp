// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "faults.hpp"
#include "journal.hpp"
#include "support/waiting_checkers.hpp"

namespace redlatch::soak {

// What the soak has found, and how much it has seen.
struct ReplyClass {
    std::uint64_t cycles = 0;
    std::uint64_t overlaps = 0;
    std::uint64_t lost_updates = 0;
    std::uint64_t stale_writes = 0;
    std::uint64_t late_losses = 0;
    std::uint64_t leftovers = 0;
    std::int64_t max_wake_ms = 0;
    std::vector<std::string> complaints = {};  // everything that is wrong, in words
    std::vector<std::string> remarks = {};     // how much was seen

    void complain(std::uint64_t& count, const std::string& what) {
        if (++count <= 20) complaints.push_back(what);
    }
    void complain(const std::string& what) { complaints.push_back(what); }
};

// What the journal says, and what was seen in the queue of the fair lock. `began` is the time that messages count from.
void judge(const std::vector<Entry>& journal, const std::vector<Fault>& faults,
           const std::vector<test::QueueSight>& queue, std::int64_t began, ReplyClass& verdict);

// Whether enough happened for that to mean anything.
void judge_coverage(const std::vector<Entry>& journal, const std::vector<Fault>& faults, std::int64_t seconds,
                    ReplyClass& verdict);

}  // namespace redlatch::soak
