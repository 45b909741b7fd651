// SPDX-License-Identifier: MIT
// A user's program that imports the module, and uses a name of each kind.
#include <chrono>
#include <iostream>
#include <mutex>
#include <string>
#include <system_error>

import redlatch;

int main(int argc, char** argv) {
    if (argc > 1) {
        redlatch::Client redis{argv[1], {.name = "module"}};
        redlatch::RLock lock{redis, "consumer"};
        std::lock_guard guard{lock};
        redlatch::Hold hold = redlatch::Mutex(redis, "other").hold(redlatch::Lease(std::chrono::seconds(1)));
        redlatch::Operation<redlatch::Hold> operation = lock.async_lock();
    }
    const std::error_code code = redlatch::errc::not_owner;
    if (code.category() != redlatch::error_category()) return 1;
    if (redlatch::to_string(redlatch::Event::Kind::reconnected).empty()) return 1;
    static_assert(redlatch::Transport<redlatch::HiredisTransport>);
    std::cout << redlatch::version() << '\n';
}
