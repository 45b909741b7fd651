// SPDX-License-Identifier: MIT
// expect: a member must be a lock of one server
#include <redlatch/redlatch.hpp>

#include <vector>

void join(std::vector<redlatch::PermitExpirableSemaphore*>& seats) { redlatch::MultiLock all(seats); }
