// SPDX-License-Identifier: MIT
// expect: use of deleted function|call to deleted constructor|call to implicitly-deleted copy constructor
#include <redlatch/redlatch.hpp>

#include <utility>

void move(redlatch::RLock& lock) { redlatch::RLock moved(std::move(lock)); }
