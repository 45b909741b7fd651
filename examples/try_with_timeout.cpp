// SPDX-License-Identifier: MIT
//
// Try with a timeout: wait for a lock that another thread holds, but only as long as this request has time.

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <latch>
#include <mutex>
#include <thread>

using namespace std::chrono_literals;

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    redlatch::Client redis{url ? url : "redis://127.0.0.1:6379"};
    redlatch::RLock report{redis, "example:try_with_timeout"};

    std::latch taken{1};
    std::latch finish{1};
    std::jthread colleague{[&] {
        std::lock_guard guard{report};
        taken.count_down();
        finish.wait();
    }};
    taken.wait();

    const bool at_once = report.try_lock();

    // std::unique_lock with a duration calls try_lock_for(). owns_lock() returns whether it holds the lock.
    const auto start = std::chrono::steady_clock::now();
    std::unique_lock impatient{report, 100ms};
    const auto waited = std::chrono::steady_clock::now() - start;
    const bool gave_up = !impatient.owns_lock();
    std::cout << "try_lock: " << (at_once ? "taken" : "busy") << '\n';
    std::cout << "try_lock_for 100 ms: " << (gave_up ? "busy" : "taken") << " after "
              << std::chrono::round<std::chrono::milliseconds>(waited).count() << " ms\n";

    // The release wakes the waiter before its timeout.
    finish.count_down();
    std::unique_lock patient{report, 5s};
    std::cout << "try_lock_for 5 s: " << (patient.owns_lock() ? "taken" : "busy") << '\n';

    return !at_once && gave_up && waited >= 100ms && patient.owns_lock() ? 0 : 1;
}
