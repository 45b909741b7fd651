// SPDX-License-Identifier: MIT
// A user's program, to test linking: with a URL it acquires a lock, then it prints the version.
#include <redlatch/redlatch.hpp>

#include <iostream>
#include <mutex>

int main(int argc, char** argv) {
    if (argc > 1) {
        redlatch::Client redis{argv[1]};
        redlatch::RLock lock{redis, "consumer"};
        std::lock_guard guard{lock};
    }
    std::cout << redlatch::version() << '\n';
}
