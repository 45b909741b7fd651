// SPDX-License-Identifier: MIT
// expect: LockOption
// A bare number could be a duration, a lease or an owner.
#include <redlatch/redlatch.hpp>

void wait(redlatch::RLock& lock) { lock.lock(7); }
