// SPDX-License-Identifier: MIT
// expect: LockOption
#include <redlatch/redlatch.hpp>

#include <chrono>

void wait(redlatch::RLock& lock) { lock.lock(redlatch::Lease(std::chrono::seconds(5)), redlatch::Owner(7)); }
