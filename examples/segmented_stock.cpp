// SPDX-License-Identifier: MIT
//
// The stock of a flash sale in segments, which a cluster spreads over its nodes: a single counter would keep one node
// busy while the others idle. A unit is a permit: a reservation whose lease ends comes back by itself, a paid one stays.

#include <redlatch/redlatch.hpp>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

namespace {

// [readme]
struct Unit {
    std::size_t segment;
    redlatch::PermitId id;
};

class Stock {
public:
    // Names without a {tag}: a cluster gives each of them a slot of its own.
    Stock(redlatch::Client& redis, const std::string& name, std::size_t segments) {
        for (std::size_t i = 0; i < segments; ++i)
            segments_.push_back(
                std::make_unique<redlatch::PermitExpirableSemaphore>(redis, name + ':' + std::to_string(i)));
    }

    // Every seller may call it: only the first one fills a segment. It is gone after the sale.
    void fill(std::size_t units, std::chrono::hours sale) {
        for (std::size_t i = 0; i < segments_.size(); ++i) {
            const std::size_t share = units / segments_.size() + (i < units % segments_.size());
            segments_[i]->try_set_permits(static_cast<std::ptrdiff_t>(share), sale);
        }
    }

    // Returns nothing if every unit is reserved or sold. Begins anywhere, so that the sellers spread.
    std::optional<Unit> reserve(redlatch::Lease until_paid) {
        const std::size_t first = std::random_device{}();
        for (std::size_t i = 0; i < segments_.size(); ++i) {
            const std::size_t segment = (first + i) % segments_.size();
            if (const auto id = segments_[segment]->try_acquire(until_paid)) return Unit{segment, *id};
        }
        return std::nullopt;
    }

    // Returns false if the payment came too late: the unit may be somebody else's by now.
    [[nodiscard]] bool sell(const Unit& unit) {
        std::error_code ec;
        segments_[unit.segment]->update_lease(unit.id, redlatch::Lease::forever(), ec);
        if (ec && ec != redlatch::errc::unknown_permit) throw std::system_error(ec);
        return !ec;
    }

    std::ptrdiff_t taken() {
        std::ptrdiff_t sum = 0;
        for (const auto& segment : segments_) sum += segment->acquired_permits();
        return sum;
    }

private:
    std::vector<std::unique_ptr<redlatch::PermitExpirableSemaphore>> segments_;
};
// [/readme]

}  // namespace

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    const std::string name = "example:stock:" + std::to_string(::getpid());
    constexpr int units = 100;
    const auto deadline = std::chrono::steady_clock::now() + 45s;
    std::atomic<int> sold{0}, left{0};
    std::vector<std::jthread> sellers;
    for (int seller = 0; seller < 4; ++seller)
        sellers.emplace_back([&] {
            redlatch::Client redis{url};  // each stands for a process
            Stock stock{redis, name, 16};
            stock.fill(units, 1h);
            for (int customer = 1; sold < units && std::chrono::steady_clock::now() < deadline; ++customer) {
                const auto unit = stock.reserve(redlatch::Lease{1s});
                if (!unit) {
                    std::this_thread::sleep_for(20ms);  // a reservation may come back
                } else if (customer % 5 == 0) {
                    ++left;  // without paying: the reservation ends by itself
                } else {
                    sold += stock.sell(*unit);
                }
            }
        });
    sellers.clear();  // joins them

    redlatch::Client redis{url};
    Stock stock{redis, name, 16};
    std::cout << sold << " of " << units << " units sold, " << left << " customers left without paying\n";
    return sold == units && left > 0 && stock.taken() == units && !stock.reserve(redlatch::Lease{1s}) ? 0 : 1;
}
