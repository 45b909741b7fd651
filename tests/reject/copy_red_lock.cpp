// SPDX-License-Identifier: MIT
// expect: use of deleted function|call to deleted constructor|call to implicitly-deleted copy constructor
#include <redlatch/redlatch.hpp>

redlatch::RedLock copy(const redlatch::RedLock& lock) { return lock; }
