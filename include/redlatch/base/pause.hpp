// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <condition_variable>
#include <mutex>
#include <new>
#include <stop_token>
#include <thread>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Sleeps until the instant, or until a stop is requested; only briefly if memory is short.
inline void pause(Instant until, const std::stop_token& stop) try {
    if (until <= Clock::now()) return;
    std::mutex mutex;
    std::condition_variable_any never_notified;
    std::unique_lock lock(mutex);
    never_notified.wait_until(lock, stop, until, [] { return false; });
} catch (const std::bad_alloc&) {
    std::this_thread::sleep_for(Milliseconds(1));
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
