// SPDX-License-Identifier: MIT
// expect: LockOption
#include <redlatch/redlatch.hpp>

#include <system_error>

// What is told would be told to nobody.
void wait(redlatch::RLock<>& lock) { lock.lock(std::error_code()); }
