// SPDX-License-Identifier: MIT
// ctest: long serial without=address,thread
// Thousands of holds at once that can no longer be renewed: each loss is reported by the hold's valid_until(), as far
// as the machine lets a thread run on time.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
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

constexpr std::size_t many = 9'000;

// How long reporting itself may take, apart from the delay of the scheduler.
constexpr std::chrono::nanoseconds telling = 10ms;

// Measures for how long the machine keeps a thread from running that sleeps until one instant after another.
class SchedulingDelay {
public:
    SchedulingDelay() : thread_([this](const std::stop_token& done) { measure(done); }) {}

    // Returns for how long in all the thread was kept from running in that time. Ends the measurement.
    std::chrono::nanoseconds in(std::int64_t from, std::int64_t until) {
        thread_.request_stop();
        if (thread_.joinable()) thread_.join();
        auto nap = std::partition_point(naps_.begin(), naps_.end(), [&](const Nap& one) { return one.woken <= from; });
        std::int64_t sum = 0;
        for (; nap != naps_.end() && nap->due < until; ++nap)
            sum += std::min(nap->woken, until) - std::max(nap->due, from);
        return std::chrono::nanoseconds{sum};
    }

private:
    struct Nap {
        std::int64_t due = 0;
        std::int64_t woken = 0;
    };

    void measure(const std::stop_token& done) {
        while (!done.stop_requested()) {
            const auto due = Clock::now() + 1ms;
            std::this_thread::sleep_until(due);
            naps_.push_back({monotonic_ns(due), monotonic_ns()});
        }
    }

    std::vector<Nap> naps_;
    std::jthread thread_;
};

// Locks of several kinds that one thread holds. Records when the loss of each was reported.
class ManyHolds {
public:
    explicit ManyHolds(Client& client) {
        all_.reserve(many);
        for (std::size_t number = 0; number < many; ++number) {
            Held& held = *all_.emplace_back(std::make_unique<Held>(client, number));
            held.on_lost.emplace(held.lock->lost(), [this, &held] {
                held.told = monotonic_ns();
                ++told_;
            });
        }
    }

    // Call this when nothing renews the locks any more. Waits until all losses have been reported.
    void await_losses() {
        // The replies to the last renewals may still be on their way.
        while (told_ == 0) {
            for (const auto& held : all_)
                if (const auto until = held->lock->valid_until(); until != Clock::time_point::min())
                    held->valid_until = monotonic_ns(until);
            std::this_thread::sleep_for(100ms);
        }
        REQUIRE(eventually([&] { return told_ == many; }, patient(60s)));
    }

    // Returns by how much the latest loss was reported after its hold's valid_until(), beyond the time for which the
    // machine kept a thread from running just then.
    std::chrono::nanoseconds lateness(SchedulingDelay& delay) const {
        constexpr std::int64_t just_before = std::chrono::nanoseconds{20ms}.count();
        std::chrono::nanoseconds latest{INT64_MIN};
        for (const auto& held : all_)
            latest = std::max(latest, std::chrono::nanoseconds{held->told - held->valid_until} -
                                          delay.in(held->valid_until - just_before, held->told));
        return latest;
    }

    // Returns whether no hold was lost early because the machine stood still.
    bool is_whole() const { return told_ == 0; }

    void give_back() {
        for (const auto& held : all_) {
            std::error_code ec;
            held->lock->unlock(ec);
            CHECK(ec == errc::hold_lost);
        }
    }

private:
    // Of ten, one is fair, one is a reader, and one is a lock over two others.
    struct Held {
        Held(Client& client, std::size_t number) {
            const std::string name = "order" + std::to_string(number);
            if (number % 10 == 1) {
                lock = std::make_shared<FairLock>(client, name);
            } else if (number % 10 == 2) {
                const auto both = std::make_shared<ReadWriteLock>(client, name);
                lock = {both, &both->read_lock()};
            } else if (number % 10 == 3) {
                for (const std::string part : {"a", "b"}) members.emplace_back(client, name + part);
                lock = std::make_shared<MultiLock>(members);
            } else {
                lock = std::make_shared<RLock>(client, name);
            }
            lock->lock();
        }

        std::deque<RLock> members;
        std::shared_ptr<LockApi> lock;
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
        REQUIRE(eventually([&] { return client.stats().renewals >= 2 * many || !holds.is_whole(); }, patient(30s)));
        if (!holds.is_whole()) continue;
        strike(path);
        SchedulingDelay delay;
        holds.await_losses();
        const auto lateness = holds.lateness(delay);
        in_time = lateness <= telling;
        MESSAGE("at most " << std::chrono::duration_cast<std::chrono::microseconds>(lateness).count() << " us late");
        CHECK(client.stats().lost_holds >= many);
        mend(path);
        holds.give_back();
    }
    CHECK(in_time);
}

}  // namespace

TEST_CASE("fault: server frozen with thousands of holds: each loss is reported in time") {
    tells_in_time([](FaultyPath& path) { path.server.stop(); }, [](FaultyPath& path) { path.server.cont(); });
}

TEST_CASE("fault: network silent with thousands of holds: each loss is reported in time") {
    tells_in_time([](FaultyPath& path) { path.proxy.blackhole(true); },
                  [](FaultyPath& path) { path.proxy.blackhole(false); });
}

TEST_CASE("fault: connections refused with thousands of holds: each loss is reported in time") {
    tells_in_time(
        [](FaultyPath& path) {
            path.server.kill();
            path.proxy.refuse(true);
        },
        [](FaultyPath&) {});
}
