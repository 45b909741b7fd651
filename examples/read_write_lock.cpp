// SPDX-License-Identifier: MIT
//
// Many readers or one writer: every process may read a price list at the same time, but a writer excludes all others.
// After its change the writer goes on as a reader, so that no other writer comes in between.

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <shared_mutex>

using namespace std::chrono_literals;

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    redlatch::Client one{url};
    redlatch::Client two{url};  // stands for another process: Redis cannot tell the difference
    redlatch::ReadWriteLock prices{one, "example:prices", {.writer_preference = true}};
    redlatch::ReadWriteLock prices_elsewhere{two, "example:prices"};

    bool read_together = false;
    bool refused = false;
    {
        const std::shared_lock reading{prices};
        const std::shared_lock reading_elsewhere{prices_elsewhere, 1s};
        read_together = reading_elsewhere.owns_lock();
        std::cout << "both read\n";
        try {
            prices.lock();  // would wait for its own read hold
        } catch (const redlatch::Error& error) {
            refused = error.code() == redlatch::errc::would_deadlock;
            std::cout << error.what() << '\n';
        }
    }

    std::unique_lock writing{prices};
    const bool kept_out = !prices_elsewhere.try_lock_shared();
    std::cout << "one writes, nobody reads\n";

    // Downgrade: acquire the read side, then release the write side. This wakes readers. Writers stay out.
    const std::shared_lock reading{prices};
    writing.unlock();
    const bool let_in = prices_elsewhere.try_lock_shared_for(1s);
    const bool still_mine = !prices_elsewhere.write_lock().is_locked() && prices.read_lock().is_held();
    std::cout << "the writer reads on, and others with it\n";
    prices_elsewhere.unlock_shared();

    return read_together && refused && kept_out && let_in && still_mine ? 0 : 1;
}
