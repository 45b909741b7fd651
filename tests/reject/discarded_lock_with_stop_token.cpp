// SPDX-License-Identifier: MIT
// expect: nodiscard
#include <redlatch/redlatch.hpp>

#include <stop_token>

#pragma GCC diagnostic error "-Wunused-result"

// Continues without the lock if a stop was requested.
void attempt(redlatch::RLock& lock, std::stop_token token) { lock.lock(token); }
