// SPDX-License-Identifier: MIT
// ctest: long without=address,thread
// Ten thousand holds at once that can no longer be renewed: each loss is reported by the hold's valid_until(), as far
// as the machine lets a thread run on time.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "faults/fault_kit.hpp"
#include "support/history.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

constexpr std::size_t many = 10'000;

// How long reporting itself may take, apart from the delay of the scheduler.
constexpr std::chrono::milliseconds telling = patient(50ms);

// Measures how late the machine wakes a thread that sleeps until one instant after another.
class SchedulingDelay {
public:
    SchedulingDelay() : thread_([this](const std::stop_token& done) { measure(done); }) {}

    // Returns the longest delay so far.
    std::chrono::nanoseconds longest() const { return std::chrono::nanoseconds{longest_.load()}; }

private:
    void measure(const std::stop_token& done) {
        while (!done.stop_requested()) {
            const auto due = Clock::now() + 2ms;
            std::this_thread::sleep_until(due);
            longest_ = std::max<std::int64_t>(longest_, std::chrono::nanoseconds{Clock::now() - due}.count());
        }
    }

    std::atomic<std::int64_t> longest_{0};
    std::jthread thread_;
};

// Locks that one thread holds. Records when the loss of each was reported.
class ManyHolds {
public:
    explicit ManyHolds(Client& client) {
        all_.reserve(many);
        for (std::size_t number = 0; number < many; ++number) {
            Held& held = *all_.emplace_back(std::make_unique<Held>(client, number));
            held.on_lost.emplace(held.lock.lost(), [this, &held] {
                held.told = monotonic_ns();
                ++told_;
            });
        }
    }

    // Call this when nothing renews the locks any more. Waits until all losses have been reported. Returns how long
    // after its valid_until() the last one was.
    std::chrono::nanoseconds lateness() {
        // The replies to the last renewals may still be on their way.
        while (told_ == 0) {
            for (const auto& held : all_)
                if (const auto until = held->lock.valid_until(); until != Clock::time_point::min())
                    held->valid_until = monotonic_ns(until);
            std::this_thread::sleep_for(100ms);
        }
        REQUIRE(eventually([&] { return told_ == many; }, patient(60s)));
        std::int64_t latest = INT64_MIN;
        for (const auto& held : all_) latest = std::max(latest, held->told - held->valid_until);
        return std::chrono::nanoseconds{latest};
    }

    // Returns whether no hold was lost early because the machine stood still.
    bool is_whole() const { return told_ == 0; }

    void give_back() {
        for (const auto& held : all_) {
            std::error_code ec;
            held->lock.unlock(ec);
            CHECK(ec == errc::hold_lost);
        }
    }

private:
    struct Held {
        Held(Client& client, std::size_t number) : lock(client, "order" + std::to_string(number)) { lock.lock(); }

        RLock lock;
        std::atomic<std::int64_t> told{0};
        std::int64_t valid_until = 0;
        std::optional<std::stop_callback<std::function<void()>>> on_lost;
    };

    std::vector<std::unique_ptr<Held>> all_;
    std::atomic<std::size_t> told_{0};
};

// `strike(path)` makes the server unreachable. Repeated up to five times for busy machines.
template <class Strike, class Mend>
void tells_in_time(Strike strike, Mend mend) {
    bool in_time = false;
    for (int rounds = 0; rounds < 5 && !in_time; ++rounds) {
        FaultyPath path;
        ClientOptions options;
        options.watchdog_timeout = paced(4s);
        Client client{path.url(), options};
        ManyHolds holds{client};
        REQUIRE(eventually([&] { return client.stats().renewals >= 2 * many; }, patient(30s)));
        if (!holds.is_whole()) continue;
        strike(path);
        const SchedulingDelay beside;
        const auto lateness = holds.lateness();
        in_time = lateness <= beside.longest() + telling;
        CHECK(client.stats().lost_holds == many);
        mend(path);
        holds.give_back();
    }
    CHECK(in_time);
}

}  // namespace

TEST_CASE("fault: server frozen with ten thousand holds: each loss is reported in time") {
    tells_in_time([](FaultyPath& path) { path.server.stop(); }, [](FaultyPath& path) { path.server.cont(); });
}

TEST_CASE("fault: network silent with ten thousand holds: each loss is reported in time") {
    tells_in_time([](FaultyPath& path) { path.proxy.blackhole(true); },
                  [](FaultyPath& path) { path.proxy.blackhole(false); });
}

TEST_CASE("fault: connections refused with ten thousand holds: each loss is reported in time") {
    tells_in_time(
        [](FaultyPath& path) {
            path.server.kill();
            path.proxy.refuse(true);
        },
        [](FaultyPath&) {});
}
