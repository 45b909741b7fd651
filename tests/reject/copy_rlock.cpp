// SPDX-License-Identifier: MIT
// expect: use of deleted function|call to deleted constructor|call to implicitly-deleted copy constructor
#include <redlatch/redlatch.hpp>

void copy(redlatch::RLock& lock) { redlatch::RLock copied(lock); }
