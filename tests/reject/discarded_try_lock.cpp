// SPDX-License-Identifier: MIT
// expect: nodiscard
#include <redlatch/redlatch.hpp>

#pragma GCC diagnostic error "-Wunused-result"

// Goes on without the lock where somebody else holds it.
void attempt(redlatch::RLock<>& lock) { lock.try_lock(); }
