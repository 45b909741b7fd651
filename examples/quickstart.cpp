// SPDX-License-Identifier: MIT
// [readme]
#include <redlatch/redlatch.hpp>

#include <cstdlib>
#include <iostream>
#include <mutex>

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    redlatch::Client redis{url ? url : "redis://127.0.0.1:6379"};
    redlatch::RLock orders{redis, "orders"};
    {
        std::lock_guard guard{orders};  // one holder among all processes; the watchdog renews its lease
        std::cout << "holding \"" << orders.name() << "\": nobody else is in here\n";
    }
}
// [/readme]
