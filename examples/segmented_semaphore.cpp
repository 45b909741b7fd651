// SPDX-License-Identifier: MIT
//
// A limit that many processes share, in segments that a cluster spreads over its nodes: at most ten at work at a time.

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    redlatch::Client redis{url ? url : "redis://127.0.0.1:6379"};
    redlatch::SegmentedSemaphore slots{redis, "example:slots", 4};
    slots.remove();             // removes the permits of an earlier run
    slots.try_set_permits(10);  // 3, 3, 2 and 2

    std::atomic<int> at_work{0}, most{0};
    std::vector<std::jthread> workers;
    for (int i = 0; i < 30; ++i)
        workers.emplace_back([&] {
            // From the near segment if it has a permit, else from another. Waits in all of them if none has one.
            const redlatch::Permits slot = slots.hold();
            const int now = ++at_work;
            for (int before = most; before < now && !most.compare_exchange_weak(before, now);) continue;
            std::this_thread::sleep_for(20ms);  // the work
            --at_work;
        });
    workers.clear();  // joins them

    std::cout << "30 workers, at most " << most << " at a time\n";
    slots.remove();
    return most > 1 && most <= 10 ? 0 : 1;
}
