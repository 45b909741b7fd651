// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <condition_variable>
#include <cstddef>
#include <mutex>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Counts the posted commands whose reply is still to come.
//
// mutex_ guards count_. done_ wakes the thread in wait_for_all(), the one that ends the session, when none is left.
class PostsInFlight {
public:
    void begin() {
        const std::lock_guard lock(mutex_);
        ++count_;
    }

    void finish() {
        const std::lock_guard lock(mutex_);
        if (--count_ == 0) done_.notify_all();
    }

    // Returns false if some are left after `patience`.
    bool wait_for_all(Milliseconds patience) {
        std::unique_lock lock(mutex_);
        return done_.wait_for(lock, patience, [this] { return count_ == 0; });
    }

private:
    std::mutex mutex_;
    std::condition_variable done_;
    std::size_t count_ = 0;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
