// SPDX-License-Identifier: MIT
//
// A stop token: a service that shuts down cancels its waiting threads. They leave nothing in Redis.

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <stop_token>
#include <thread>

using namespace std::chrono_literals;

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    redlatch::Client redis{url ? url : "redis://127.0.0.1:6379"};
    redlatch::RLock migration{redis, "example:stop_token"};
    bool called_back = false;
    std::chrono::steady_clock::duration took{};
    {
        std::lock_guard guard{migration};

        std::jthread worker{[&](std::stop_token stop) {
            if (migration.lock(stop)) {
                std::lock_guard held{migration, std::adopt_lock};  // the migration
            } else {
                called_back = true;
            }
        }};
        std::this_thread::sleep_for(100ms);  // let it wait: a stop at once would prevent the wait

        const auto asked = std::chrono::steady_clock::now();
        worker.request_stop();
        worker.join();
        took = std::chrono::steady_clock::now() - asked;
    }
    std::cout << (called_back ? "the waiter gave up " : "the waiter got the lock ")
              << std::chrono::round<std::chrono::milliseconds>(took).count() << " ms after it was asked to\n";

    const std::unique_lock next{migration, 1s};  // whoever comes next gets it
    return called_back && took < 1s && next.owns_lock() ? 0 : 1;
}
