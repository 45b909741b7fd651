// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "faults.hpp"
#include "holder_watch.hpp"
#include "journal.hpp"
#include "support/waiting_checkers.hpp"

namespace redlatch::soak {

// The findings of the soak, and the amount of evidence.
struct Findings {
    std::uint64_t cycles = 0;
    std::uint64_t overlaps = 0;
    std::uint64_t lost_updates = 0;
    std::uint64_t stale_writes = 0;
    std::uint64_t late_losses = 0;
    std::uint64_t leftovers = 0;
    std::int64_t max_wake_ms = 0;
    std::vector<std::string> complaints = {};  // descriptions of everything that is wrong
    std::vector<std::string> remarks = {};     // the amount of evidence

    void complain(std::uint64_t& count, const std::string& what) {
        if (++count <= 20) complaints.push_back(what);
    }
    void complain(const std::string& what) { complaints.push_back(what); }
};

// What was seen at the server.
struct Sights {
    const std::vector<test::QueueSight>& queue;  // of the fair lock
    const std::vector<HolderSight>& holders;
};

// Checks the journal and what was seen at the server. Times in messages count from `began`.
void check_journal(const std::vector<Entry>& journal, const std::vector<Fault>& faults,
                   const std::vector<test::LateArrival>& arrivals, const Sights& seen, std::int64_t began,
                   Findings& findings);

// Checks that enough happened for the result to mean anything.
void judge_coverage(const std::vector<Entry>& journal, const std::vector<Fault>& faults, std::int64_t seconds,
                    Findings& findings);

}  // namespace redlatch::soak
