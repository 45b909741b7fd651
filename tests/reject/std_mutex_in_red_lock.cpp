// SPDX-License-Identifier: MIT
// expect: a member must be a lock of one server
#include <redlatch/redlatch.hpp>

#include <mutex>

void join(redlatch::RLock& lock, std::mutex& local) { redlatch::RedLock both{lock, local}; }
