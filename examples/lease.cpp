// SPDX-License-Identifier: MIT
//
// A lease: the hold ends by itself after a fixed time, whatever becomes of its holder. Without one, a watchdog
// renews the hold for as long as the process lives; with one, nothing is ever renewed.

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
    redlatch::Client two{url};  // stands for another process: to Redis, every client is somebody else
    redlatch::RLock backup{one, "example:lease"};
    redlatch::RLock backup_elsewhere{two, "example:lease"};

    const auto start = std::chrono::steady_clock::now();
    backup.lock(redlatch::Lease{300ms});
    if (const auto left = backup.remaining_lease()) {
        std::cout << "held, " << left->count() << " ms left\n";
    }
    const bool refused = !backup_elsewhere.try_lock();

    // The first holder forgets to unlock. The second waits until the lease is over, and no longer.
    const bool taken = backup_elsewhere.try_lock_for(1500ms);
    const auto waited = std::chrono::steady_clock::now() - start;
    std::cout << "taken elsewhere after " << std::chrono::round<std::chrono::milliseconds>(waited).count() << " ms\n";

    // Late, the first one unlocks: it is told that its hold was over, and the second one's is left alone.
    std::error_code error;
    backup.unlock(error);
    std::cout << "the late unlock: " << error.message() << '\n';
    const bool still_held = backup_elsewhere.is_held();
    backup_elsewhere.unlock();

    return refused && taken && waited >= 300ms && error == redlatch::errc::hold_lost && still_held ? 0 : 1;
}
