// SPDX-License-Identifier: MIT
// expect: use of deleted function|call to deleted constructor|call to implicitly-deleted copy constructor
#include <redlatch/redlatch.hpp>

void copy(redlatch::Mutex& lock) { redlatch::Mutex copied(lock); }
