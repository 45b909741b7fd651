// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <condition_variable>
#include <mutex>

namespace redlatch {
inline namespace v0_1 {

// Waits until notified, at the latest until the instant; also wakes for no reason. `never` is no instant that a system
// call could be given.
inline void wait_on(std::condition_variable& wake, std::unique_lock<std::mutex>& lock, Instant until) {
    if (until == never)
        wake.wait(lock);
    else
        wake.wait_until(lock, until);
}

}  // namespace v0_1
}  // namespace redlatch
