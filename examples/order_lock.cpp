// SPDX-License-Identifier: MIT
//
// A lock per order id: two payments of one order exclude each other, those of different orders do not. So an order whose
// payment is announced three times is charged once.

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

namespace {

// Stands for the table of orders in a database.
struct Order {
    std::atomic<bool> charged{false};
    std::atomic<int> charges{0};
};
std::array<Order, 12> orders;
std::atomic<int> at_once{0}, most_at_once{0};

void charge(Order& order) {
    const int now = ++at_once;
    for (int before = most_at_once; before < now && !most_at_once.compare_exchange_weak(before, now);) continue;
    std::this_thread::sleep_for(50ms);  // the bank
    --at_once;
    ++order.charges;
}

// [readme]
void on_payment(redlatch::Client& redis, std::size_t id) {
    redlatch::RLock lock{redis, "example:order:" + std::to_string(id)};  // sends nothing; a free lock has no key
    const std::lock_guard guard{lock};
    Order& order = orders[id];
    if (order.charged) return;
    // A long pause may have ended the lease. Then another process may be at it: let the queue deliver this one again.
    if (std::chrono::steady_clock::now() >= lock.valid_until()) throw std::runtime_error("the lock is lost");
    charge(order);
    order.charged = true;
}
// [/readme]

}  // namespace

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    redlatch::Client one{url}, two{url}, three{url};  // stand for three processes
    std::vector<std::jthread> consumers;
    for (redlatch::Client* redis : {&one, &two, &three})
        for (std::size_t id = 0; id < orders.size(); ++id)
            consumers.emplace_back([redis, id] { on_payment(*redis, id); });
    consumers.clear();  // joins them

    const bool once = std::ranges::all_of(orders, [](const Order& order) { return order.charges == 1; });
    std::cout << "every order was charged " << (once ? "once" : "wrongly") << ", up to " << most_at_once
              << " orders at a time\n";
    return once && most_at_once > 1 ? 0 : 1;
}
