// SPDX-License-Identifier: MIT
//
// A count-down latch: a report starts when three importers, in any processes, are done.

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    redlatch::Client redis{url ? url : "redis://127.0.0.1:6379"};
    redlatch::CountDownLatch imported{redis, "example:count_down_latch"};

    imported.reset();           // removes a count of an earlier run
    imported.try_set_count(3);  // false if there is a count already

    std::vector<std::jthread> importers;
    for (int i = 0; i < 3; ++i)
        importers.emplace_back([&] {
            std::this_thread::sleep_for(20ms);  // the import
            imported.count_down();
        });

    const bool all_there = imported.wait_for(10s);  // wakes by one message, without polling
    std::cout << (all_there ? "all three are done: the report starts\n" : "an importer is missing\n");
    return all_there && imported.count() == 0 ? 0 : 1;
}
