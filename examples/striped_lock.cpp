// SPDX-License-Identifier: MIT
//
// A lock per account, for any number of accounts, on 64 keys. Transfers lock two accounts at once, in any order.

#include <redlatch/redlatch.hpp>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace {

// Stands for the table of accounts in a database.
std::array<long, 10> balances{};

// [readme]
void transfer(redlatch::StripedLock& accounts, std::size_t from, std::size_t to, long amount) {
    redlatch::MultiLock both = accounts.locks_for({std::to_string(from), std::to_string(to)});
    const std::lock_guard guard{both};  // in any order: who waits holds neither
    balances[from] -= amount;
    balances[to] += amount;
}

void pay_in(redlatch::StripedLock& accounts, std::size_t account, long amount) {
    const std::lock_guard guard{accounts.lock_for(std::to_string(account))};
    balances[account] += amount;
}
// [/readme]

}  // namespace

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    redlatch::Client redis{url ? url : "redis://127.0.0.1:6379"};
    redlatch::StripedLock accounts{redis, "example:accounts", 64};

    std::vector<std::jthread> tellers;
    for (std::size_t me = 0; me < 4; ++me)
        tellers.emplace_back([&accounts, me] {
            for (std::size_t i = 0; i < 50; ++i) {
                pay_in(accounts, (me + i) % balances.size(), 10);
                transfer(accounts, (me + i) % balances.size(), (7 * me + 3 * i) % balances.size(), 5);
            }
        });
    tellers.clear();  // joins them

    const long sum = std::accumulate(balances.begin(), balances.end(), 0L);
    std::cout << "200 payments and 200 transfers: " << sum << " in all accounts\n";
    return sum == 2000 ? 0 : 1;
}
