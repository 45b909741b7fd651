// SPDX-License-Identifier: MIT
// expect: nodiscard
#include <redlatch/redlatch.hpp>

#pragma GCC diagnostic error "-Wunused-result"

// Continues without the lock if another thread holds it.
void attempt(redlatch::RLock& lock) { lock.try_lock(); }
