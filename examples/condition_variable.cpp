// SPDX-License-Identifier: MIT
//
// A condition variable: packers, in any processes, wait until there are orders.
// The orders are in a list that a lock protects.

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <mutex>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

namespace {

// Stands for a table in a database.
std::deque<int> orders;
bool is_closed = false;
int packed = 0;

// [readme]
void pack(redlatch::Client& redis) {
    redlatch::RLock table{redis, "example:orders"};
    redlatch::ConditionVariable changed{redis, "example:orders:changed"};
    std::unique_lock guard{table};
    for (;;) {
        changed.wait(guard, [] { return !orders.empty() || is_closed; });  // the lock is free meanwhile
        if (orders.empty()) return;
        orders.pop_front();
        ++packed;
    }
}

void add(redlatch::Client& redis, int order) {
    redlatch::RLock table{redis, "example:orders"};
    const std::lock_guard guard{table};
    orders.push_back(order);
    redlatch::ConditionVariable{redis, "example:orders:changed"}.notify_one();
}
// [/readme]

void close(redlatch::Client& redis) {
    redlatch::RLock table{redis, "example:orders"};
    const std::lock_guard guard{table};
    is_closed = true;
    redlatch::ConditionVariable{redis, "example:orders:changed"}.notify_all();
}

}  // namespace

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    redlatch::Client shop{url}, packer{url};  // stand for two processes
    std::vector<std::jthread> packers;
    for (int i = 0; i < 2; ++i) packers.emplace_back([&packer] { pack(packer); });
    for (int order = 0; order < 20; ++order) {
        add(shop, order);
        std::this_thread::sleep_for(5ms);
    }
    close(shop);
    packers.clear();  // joins them
    std::cout << packed << " of 20 orders are packed\n";
    return packed == 20 ? 0 : 1;
}
