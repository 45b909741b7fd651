// SPDX-License-Identifier: MIT
#pragma once

#include <string>
#include <vector>

#include "match.hpp"

namespace redlatch::test {

/// A row of the table. It is run once for each way to give the two parts to Java and C++.
struct Row {
    enum class Event {
        none,           // `run` is all
        killed,         // then the holder's process is killed, and `after` looks
        waiter_killed,  // the same with the waiter's; holder goes on
        restarted,      // then the server is restarted, its data kept, and `after` looks
    };

    Pairing pairing;
    std::string title;
    void (*run)(Match&) = nullptr;
    Event event = Event::none;
    void (*after)(Match&) = nullptr;
    std::string note = {};  // one line, where Redisson is to be taken as it is
};

/// A row with one cell: both languages at once add to a plain counter, each pair under the next kind of `add`, and
/// others look at it under `look`, if that is not empty.
struct CrowdRow {
    std::string title;
    std::string kind_title;
    std::vector<std::string> add;
    std::string look;
    int permits = 0;  // to set before
};

std::vector<Row> lock_rows();
std::vector<Row> read_write_rows();
std::vector<Row> mixed_kind_rows();
std::vector<Row> multi_rows();
std::vector<Row> semaphore_rows();
std::vector<Row> latch_rows();
std::vector<CrowdRow> crowd_rows();

}  // namespace redlatch::test
