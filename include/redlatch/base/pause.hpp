// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <condition_variable>
#include <mutex>
#include <stop_token>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Sleeps until the instant, or until a stop is requested.
inline void pause(Instant until, const std::stop_token& stop) {
    std::mutex mutex;
    std::condition_variable_any never_notified;
    std::unique_lock lock(mutex);
    never_notified.wait_until(lock, stop, until, [] { return false; });
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
