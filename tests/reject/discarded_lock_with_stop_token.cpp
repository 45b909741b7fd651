// SPDX-License-Identifier: MIT
// expect: nodiscard
#include <redlatch/redlatch.hpp>

#include <stop_token>

#pragma GCC diagnostic error "-Wunused-result"

// Goes on without the lock where a stop was requested.
void attempt(redlatch::RLock<>& lock, std::stop_token token) { lock.lock(token); }
