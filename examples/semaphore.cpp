// SPDX-License-Identifier: MIT
//
// A semaphore: at most two workers of all processes talk to a slow partner at a time.

#include <redlatch/redlatch.hpp>

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
    redlatch::Semaphore partner{redis, "example:semaphore"};

    partner.try_set_permits(2);  // does nothing if the semaphore exists already

    std::atomic<int> talking = 0;
    std::atomic<int> most = 0;
    std::vector<std::jthread> workers;
    for (int i = 0; i < 6; ++i)
        workers.emplace_back([&] {
            partner.acquire();
            const int now = ++talking;
            for (int before = most; before < now && !most.compare_exchange_weak(before, now);) {
            }
            std::this_thread::sleep_for(5ms);
            --talking;
            partner.release();
        });
    workers.clear();  // joins them

    const bool gave_up = !partner.try_acquire_for(20ms, 3);  // more than there are
    std::cout << most << " at most at once; " << partner.available_permits() << " permits in the end\n";
    return most <= 2 && gave_up && partner.available_permits() == 2 ? 0 : 1;
}
