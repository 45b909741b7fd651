// SPDX-License-Identifier: MIT
// What a user's program looks like to the linker: with a URL it takes a lock, without one it says the version.
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
