// SPDX-License-Identifier: MIT
//
// A cron job that runs once in the fleet. Every machine starts it at three o'clock by its own clock, and their clocks
// differ. A lock that is released after a short job does not stop the machine whose clock is late.

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

namespace {

// [readme]
// Runs the job unless somebody runs it, or has started it less than `at_least` ago: longer than the clocks differ, and
// shorter than the time between two runs. Returns true if it ran.
bool run_once(redlatch::Client& redis, const std::string& job, std::chrono::milliseconds at_least,
              const std::function<void(std::stop_token)>& work) {
    redlatch::RLock running{redis, job};  // as long as the job takes: the watchdog renews it
    // The unlock of a shorter job leaves the rest of that time to the server, which ends it by its own clock.
    if (!running.try_lock(redlatch::Lease::at_least(at_least))) return false;
    const std::lock_guard guard{running, std::adopt_lock};
    work(running.lost());
    return true;
}
// [/readme]

}  // namespace

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    constexpr auto at_least = 4s;
    std::atomic<int> runs{0};
    const auto three_o_clock = [&] {
        std::vector<std::jthread> machines;
        for (const auto late : {0ms, 100ms, 200ms, 300ms})
            machines.emplace_back([&, late] {
                std::this_thread::sleep_for(late);  // its clock
                redlatch::Client redis{url};        // the program ends after the job, and its client with it
                const bool ran = run_once(redis, "example:cron_job", at_least, [&](const std::stop_token& lost) {
                    std::this_thread::sleep_for(10ms);
                    if (!lost.stop_requested()) ++runs;
                });
                std::cout << (ran ? "ran" : "did not run") + std::string(", ") + std::to_string(late.count()) +
                                 " ms late\n";
            });
    };
    three_o_clock();
    const int first_day = runs;
    std::this_thread::sleep_for(at_least);
    three_o_clock();
    std::cout << "two days, " << runs << " runs\n";
    return first_day == 1 && runs == 2 ? 0 : 1;
}
