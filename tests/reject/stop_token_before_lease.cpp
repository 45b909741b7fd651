// SPDX-License-Identifier: MIT
// expect: LockOption
#include <redlatch/redlatch.hpp>

#include <chrono>
#include <stop_token>

void wait(redlatch::RLock& lock, std::stop_token token) { lock.lock(token, redlatch::Lease(std::chrono::seconds(5))); }
