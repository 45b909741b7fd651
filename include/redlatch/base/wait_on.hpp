// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <condition_variable>
#include <mutex>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Waits like wait_until(). `never` means without a timeout, because it would overflow a timespec. May wake spuriously.
inline void wait_on(std::condition_variable& wake, std::unique_lock<std::mutex>& lock, Instant until) {
    if (until == never)
        wake.wait(lock);
    else
        wake.wait_until(lock, until);
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
