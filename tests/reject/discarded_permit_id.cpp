// SPDX-License-Identifier: MIT
// expect: nodiscard
#include <redlatch/redlatch.hpp>

#pragma GCC diagnostic error "-Wunused-result"

// This permit cannot be released.
void attempt(redlatch::PermitExpirableSemaphore& seats) { seats.acquire(); }
