// SPDX-License-Identifier: MIT
//
// A job that runs under a lock, and is cancelled when the lock is lost. No thread waits for the lock.

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdlib>
#include <future>
#include <iostream>
#include <stop_token>
#include <system_error>
#include <thread>

using namespace std::chrono_literals;

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    redlatch::ClientOptions options;
    options.watchdog_timeout = 900ms;  // renewed every 300 ms, so a loss is noticed within 300 ms
    redlatch::Client redis{url, options};
    redlatch::RLock nightly{redis, "example:run_under_lock"};

    const int rows = nightly.async_run([](const std::stop_token&) { return 42; }).future().get();
    std::cout << "copied " << rows << " rows\n";

    // An operator ends the hold while the second job runs. The job sees it and stops.
    redlatch::Client operators_client{url};
    redlatch::RLock operators_view{operators_client, "example:run_under_lock"};
    std::promise<void> begun;
    auto job = nightly
                   .async_run([&](const std::stop_token& lost) {
                       begun.set_value();
                       while (!lost.stop_requested()) std::this_thread::sleep_for(5ms);
                       std::cout << "the lock is lost: no more rows\n";
                   })
                   .future();
    begun.get_future().get();
    operators_view.force_unlock();
    try {
        job.get();
    } catch (const redlatch::Error& error) {
        std::cout << error.what() << "\n";
        return error.code() == redlatch::errc::hold_lost && rows == 42 ? 0 : 1;
    }
    return 1;
}
