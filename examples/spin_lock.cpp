// SPDX-License-Identifier: MIT
//
// A spin lock is the same lock as an RLock with that name, but its waiters need no message of its release. They watch the
// key, and poll with short pauses where the server cannot tell them of changes. Use it where this program may not subscribe
// to the channel of the lock.

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    redlatch::Client redis{url ? url : "redis://127.0.0.1:6379"};
    redlatch::SpinLock tally{redis, "example:spin_lock", {.initial_delay = 1ms, .max_delay = 16ms}};
    int sum = 0;
    std::vector<std::jthread> workers;
    for (int worker = 0; worker < 4; ++worker)
        workers.emplace_back([&] {
            for (int i = 0; i < 25; ++i) {
                const std::lock_guard guard{tally};
                ++sum;
            }
        });
    workers.clear();
    std::cout << "counted to " << sum << '\n';
    return sum == 100 ? 0 : 1;
}
