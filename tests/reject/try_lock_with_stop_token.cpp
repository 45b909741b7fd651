// SPDX-License-Identifier: MIT
// expect: TryOption
#include <redlatch/redlatch.hpp>

#include <stop_token>

bool attempt(redlatch::RLock& lock, std::stop_token token) { return lock.try_lock(token); }
