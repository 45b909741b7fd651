// SPDX-License-Identifier: MIT
// expect: nodiscard
#include <redlatch/redlatch.hpp>

#pragma GCC diagnostic error "-Wunused-result"

// Nobody can give this permit back.
void attempt(redlatch::PermitExpirableSemaphore<>& seats) { seats.acquire(); }
