// SPDX-License-Identifier: MIT
// expect: StopOption
// Permits have no owner.
#include <redlatch/redlatch.hpp>

void wait(redlatch::Semaphore& seats) { seats.acquire(2, redlatch::Owner(7)); }
