// SPDX-License-Identifier: MIT
//
// A fair lock: whoever came first is served first, whichever process it is in. An RLock would serve whom it likes, the
// releasing process's own threads above all; a counter with customers before it should not.

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    redlatch::Client shop{url};
    redlatch::Client branch{url};  // stands for another process: to Redis, every client is somebody else
    redlatch::FairLock counter{shop, "example:fair_lock"};
    redlatch::FairLock same_counter{branch, "example:fair_lock"};

    std::vector<std::string> served;  // only touched by whoever holds the lock
    std::vector<std::jthread> customers;
    {
        std::lock_guard still_closed{counter};
        for (const std::string name : {"Ada", "Ben", "Cleo", "Dan"}) {
            redlatch::FairLock<>& nearest = customers.size() % 2 == 0 ? counter : same_counter;
            redlatch::Client<>& client = customers.size() % 2 == 0 ? shop : branch;
            const auto waits = client.stats().waits;
            customers.emplace_back([&served, &nearest, name] {
                std::lock_guard turn{nearest};
                served.push_back(name);
            });
            // One after the other, so that there is an order to be kept: a waiter is counted when it stands in the
            // queue.
            while (client.stats().waits == waits) std::this_thread::sleep_for(1ms);
        }

        // Who does not want to wait passes nobody, and does not queue up either.
        std::jthread hurried{
            [&] { std::cout << "in a hurry: " << (counter.try_lock() ? "served" : "not now") << '\n'; }};
    }
    customers.clear();

    for (const std::string& name : served) std::cout << name << ' ';
    std::cout << '\n';
    return served == std::vector<std::string>{"Ada", "Ben", "Cleo", "Dan"} ? 0 : 1;
}
