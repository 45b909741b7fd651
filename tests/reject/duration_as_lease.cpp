// SPDX-License-Identifier: MIT
// expect: LockOption
#include <redlatch/redlatch.hpp>

#include <chrono>

// Would it be a time limit or a lease? The reader could not tell.
void wait(redlatch::RLock<>& lock) { lock.lock(std::chrono::seconds(5)); }
