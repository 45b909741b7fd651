// SPDX-License-Identifier: MIT
//
// The plain mutex locks by SET NX PX, like programs in many languages. A cron job starts on every host, and the one that
// acquires the mutex does the work. The others exit. Until the lease ends the job does not run again.

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <system_error>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

int main() {
    const char* url = std::getenv("REDLATCH_URL");
    redlatch::Client redis{url ? url : "redis://127.0.0.1:6379"};
    redlatch::Mutex nightly{redis, "example:nightly_report"};
    int reports = 0;
    std::vector<std::jthread> hosts;
    for (int host = 0; host < 4; ++host)
        hosts.emplace_back([&] {
            if (!nightly.try_lock(redlatch::Lease{60s})) return;
            ++reports;
        });
    hosts.clear();
    std::cout << reports << " report was written\n";

    nightly.force_unlock();  // the next night
    nightly.lock();
    std::error_code ec;
    nightly.lock(ec);  // not reentrant: fails instead of waiting for itself
    std::cout << "again: " << ec.message() << '\n';
    nightly.unlock();
    return reports == 1 && ec == redlatch::errc::would_deadlock ? 0 : 1;
}
