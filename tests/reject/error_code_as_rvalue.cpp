// SPDX-License-Identifier: MIT
// expect: LockOption
#include <redlatch/redlatch.hpp>

#include <system_error>

// The caller could not read the error.
void wait(redlatch::RLock& lock) { lock.lock(std::error_code()); }
