// SPDX-License-Identifier: MIT
// expect: LockOption
#include <redlatch/redlatch.hpp>

#include <chrono>

// A reader could not tell a time limit from a lease.
void wait(redlatch::RLock& lock) { lock.lock(std::chrono::seconds(5)); }
