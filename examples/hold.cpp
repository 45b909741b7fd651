// SPDX-License-Identifier: MIT
//
// A hold that moves: the thread that acquires the lock is not the one that releases it.

#include <redlatch/redlatch.hpp>

#include <cstdlib>
#include <iostream>
#include <system_error>
#include <thread>
#include <utility>

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    redlatch::Client redis{url ? url : "redis://127.0.0.1:6379"};
    redlatch::RLock report{redis, "example:hold"};

    // The thread that takes requests decides who makes the report ...
    redlatch::Hold hold = report.try_hold();
    if (!hold) return 1;  // somebody else makes it

    // ... and a worker makes it. The hold moves into the task. Without the unlock() it would end with the task.
    std::error_code released;
    std::thread worker{[&released, hold = std::move(hold)]() mutable {
        std::cout << "making the report, with a hold of \"" << hold.name() << "\"\n";
        if (!hold.lost().stop_requested()) released = hold.unlock();
    }};
    worker.join();
    std::cout << (report.is_locked() ? "still held\n" : "released by the worker\n");

    return !released && !report.is_locked() ? 0 : 1;
}
