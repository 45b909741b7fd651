// SPDX-License-Identifier: MIT
// expect: a member must be a lock of one server
#include <redlatch/redlatch.hpp>

void join(redlatch::RLock& lock, redlatch::Semaphore& seats) { redlatch::MultiLock both{lock, seats}; }
