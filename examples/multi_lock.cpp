// SPDX-License-Identifier: MIT
//
// Several locks as one: money moves between two accounts, each with its own lock. Threads that name the accounts in
// opposite orders neither deadlock nor see money that is in neither account.

#include <redlatch/redlatch.hpp>

#include <array>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t accounts = 3;
std::array<int, accounts> balance{100, 100, 100};  // plain numbers: the locks protect them

void transfer(redlatch::Client& redis, std::size_t from, std::size_t to, int amount) {
    redlatch::RLock source{redis, "example:account:" + std::to_string(from)};
    redlatch::RLock target{redis, "example:account:" + std::to_string(to)};
    redlatch::MultiLock both{source, target};
    const std::lock_guard guard{both};  // both accounts or none, in one round trip
    balance[from] -= amount;
    std::this_thread::yield();
    balance[to] += amount;
}

}  // namespace

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    redlatch::Client redis{url ? url : "redis://127.0.0.1:6379"};
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < accounts; ++i)
        threads.emplace_back([&redis, i] {
            for (int n = 0; n < 20; ++n) {
                transfer(redis, i, (i + 1) % accounts, 5);
                transfer(redis, (i + 1) % accounts, i, 3);
            }
        });
    for (std::thread& thread : threads) thread.join();
    const int total = balance[0] + balance[1] + balance[2];
    std::cout << "accounts: " << balance[0] << ", " << balance[1] << ", " << balance[2] << "; together " << total
              << '\n';
    return total == 300 ? 0 : 1;
}
