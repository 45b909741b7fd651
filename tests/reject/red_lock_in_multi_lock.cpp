// SPDX-License-Identifier: MIT
// expect: a member must be a lock of one server
#include <redlatch/redlatch.hpp>

void join(redlatch::RLock& lock, redlatch::RedLock& red) { redlatch::MultiLock both{lock, red}; }
