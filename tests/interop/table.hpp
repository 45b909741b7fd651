// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "match.hpp"

namespace redlatch::test {

/// A row of the table. It is run once for each combination of Java and C++ in the two parts.
struct Row {
    enum class Event {
        none,           // there is only `run`
        killed,         // then the holder's process is killed, and `after` checks
        waiter_killed,  // the same with the waiter's; the holder continues
        restarted,      // then the server is restarted with its data, and `after` checks
    };

    Pairing pairing;
    std::string title;
    void (*run)(Match&) = nullptr;
    Event event = Event::none;
    void (*after)(Match&) = nullptr;
    std::string note = {};  // one line, if Redisson deviates and that is accepted
};

/// Which processes of a crowd are killed half-way, as how many they are.
enum class Kills : std::size_t { none = 0, cpp = 1, one_of_each = 2 };

/// A row with one cell. Both languages at once add to a plain counter, each pair with the next kind of `add`. Others
/// read it with `look`, if that is not empty. In a soak, no language may wait `most_unfair` times as long as the other.
struct CrowdRow {
    std::string title;
    std::string kind_title;
    std::vector<std::string> add;
    std::string look;
    int permits = 0;      // to be set before
    bool grants = false;  // C++ has ClientOptions::grants
    Kills kills = Kills::none;
    double most_unfair = 0;  // 0: not checked
};

std::vector<Row> lock_rows();
std::vector<Row> read_write_rows();
std::vector<Row> mixed_kind_rows();
std::vector<Row> multi_rows();
std::vector<Row> semaphore_rows();
std::vector<Row> latch_rows();
std::vector<CrowdRow> crowd_rows();

}  // namespace redlatch::test
