// SPDX-License-Identifier: MIT
//
// The stock of a flash sale in segments, which a cluster spreads over its nodes: a single counter would keep one node
// busy while the others idle. A unit is a permit: a reservation whose lease ends comes back by itself, a paid one stays.

#include <redlatch/redlatch.hpp>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

namespace {

// [readme]
// Sells a unit to a customer who pays in time. Returns false if there was none, or if the payment came too late: then the
// unit may be somebody else's by now.
bool sell(redlatch::SegmentedSemaphore& stock, bool (*pays)(int customer), int customer) {
    // The lease is the time to pay. Waits a little, because a reservation may come back.
    const std::optional<redlatch::SegmentPermit> unit = stock.try_acquire_for(100ms, redlatch::Lease{1s});
    if (!unit || !pays(customer)) return false;
    std::error_code ec;
    stock.update_lease(*unit, redlatch::Lease::forever(), ec);
    if (ec && ec != redlatch::errc::unknown_permit) throw std::system_error(ec);
    return !ec;
}
// [/readme]

constexpr int units = 100;
constexpr std::size_t segments = 16;
std::atomic<int> left{0};

// Every fifth customer leaves without paying: the reservation ends by itself.
bool pays(int customer) {
    if (customer % 5 != 0) return true;
    ++left;
    return false;
}

}  // namespace

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    const std::string name = "example:stock:" + std::to_string(::getpid());
    const auto deadline = std::chrono::steady_clock::now() + 45s;
    std::atomic<int> sold{0};
    std::vector<std::jthread> sellers;
    for (int seller = 0; seller < 4; ++seller)
        sellers.emplace_back([&] {
            redlatch::Client redis{url};  // each stands for a process
            redlatch::SegmentedSemaphore stock{redis, name, segments};
            stock.try_set_permits(units, 1h);  // only the first one fills the segments. They are gone after the sale
            for (int customer = 1; sold < units && std::chrono::steady_clock::now() < deadline; ++customer)
                sold += sell(stock, pays, customer) ? 1 : 0;
        });
    sellers.clear();  // joins them

    redlatch::Client redis{url};
    redlatch::SegmentedSemaphore stock{redis, name, segments};
    std::cout << sold << " of " << units << " units sold, " << left << " customers left without paying\n";
    return sold == units && left > 0 && stock.acquired_permits() == units && !stock.try_acquire() ? 0 : 1;
}
