// SPDX-License-Identifier: MIT
//
// A lease ends the hold after a fixed time, whatever happens to its holder. Without a lease the watchdog renews the hold
// as long as the process lives. With a lease it never does.

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <system_error>

using namespace std::chrono_literals;

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    redlatch::Client one{url};
    redlatch::Client two{url};  // stands for another process: Redis cannot tell the difference
    redlatch::RLock backup{one, "example:lease"};
    redlatch::RLock backup_elsewhere{two, "example:lease"};

    const auto start = std::chrono::steady_clock::now();
    backup.lock(redlatch::Lease{3s});
    if (const auto left = backup.remaining_lease()) {
        std::cout << "held, " << left->count() << " ms left\n";
    }
    const bool refused = !backup_elsewhere.try_lock();

    // The first holder forgets to unlock. The second one waits only until the lease is over.
    const bool taken = backup_elsewhere.try_lock_for(20s);
    const auto waited = std::chrono::steady_clock::now() - start;
    std::cout << "taken elsewhere after " << std::chrono::round<std::chrono::milliseconds>(waited).count() << " ms\n";

    // The first one unlocks late: the code reports that its hold was over. The second hold stays.
    std::error_code error;
    backup.unlock(error);
    std::cout << "the late unlock: " << error.message() << '\n';
    const bool still_held = backup_elsewhere.is_held();
    backup_elsewhere.unlock();

    return refused && taken && waited >= 3s && error == redlatch::errc::hold_lost && still_held ? 0 : 1;
}
