// SPDX-License-Identifier: MIT
//
// A fair lock serves waiters in order of arrival, across processes. An RLock prefers threads of the releasing process, and
// keeps an order only among processes. A shop counter with a queue needs the order.

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
    redlatch::Client branch{url};  // stands for another process: Redis cannot tell the difference
    redlatch::FairLock counter{shop, "example:fair_lock"};
    redlatch::FairLock same_counter{branch, "example:fair_lock"};

    std::vector<std::string> served;  // accessed only while the lock is held
    std::vector<std::jthread> customers;
    {
        std::lock_guard still_closed{counter};
        for (const std::string name : {"Ada", "Ben", "Cleo", "Dan"}) {
            redlatch::FairLock& nearest = customers.size() % 2 == 0 ? counter : same_counter;
            redlatch::Client& client = customers.size() % 2 == 0 ? shop : branch;
            const auto waits = client.stats().waits;
            customers.emplace_back([&served, &nearest, name] {
                std::lock_guard turn{nearest};
                served.push_back(name);
            });
            // Start the customers one after another, so that there is an order to keep. A waiter is counted once it is in
            // the queue.
            while (client.stats().waits == waits) std::this_thread::sleep_for(1ms);
        }

        // try_lock() passes no waiter and does not join the queue.
        std::jthread hurried{
            [&] { std::cout << "in a hurry: " << (counter.try_lock() ? "served" : "not now") << '\n'; }};
    }
    customers.clear();

    for (const std::string& name : served) std::cout << name << ' ';
    std::cout << '\n';
    return served == std::vector<std::string>{"Ada", "Ben", "Cleo", "Dan"} ? 0 : 1;
}
