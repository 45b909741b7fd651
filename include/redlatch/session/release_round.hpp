// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/base/wait_on.hpp"

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Counts the releases of one Client::release_all() until all of them are delivered. Completions keep it alive, because
// they may come after the caller has stopped waiting.
//
// Thread-safe: mutex_ guards all members, and is held for moments only. Any other mutex may be held during a call of
// begin() and finish().
class ReleaseRound {
public:
    struct Outcome {
        std::size_t delivered;
        std::size_t undelivered;
        std::error_code why;  // of the first release that a server refused for good; none if no reply came in time
    };

    void begin(std::size_t holds) noexcept {
        const std::lock_guard lock(mutex_);
        open_ += holds;
    }

    // The server has replied: it took these holds back, or refused to.
    void finish(std::size_t holds, const std::error_code& refusal) noexcept {
        const std::lock_guard lock(mutex_);
        open_ -= holds;
        (refusal ? refused_ : delivered_) += holds;
        if (!why_) why_ = refusal;
        if (open_ > 0) return;
        done_.notify_all();
        if (when_done_) when_done_();
    }

    // Calls `done` once the server has replied for all holds; at once if it has. Called with the mutex.
    void when_done(std::function<void()> done) {
        const std::lock_guard lock(mutex_);
        when_done_ = std::move(done);
        if (open_ == 0) when_done_();
    }

    Outcome outcome() {
        const std::lock_guard lock(mutex_);
        return {delivered_, refused_ + open_, why_};
    }

    // Waits until the server has replied for all holds, at the latest until `deadline`.
    Outcome wait(Instant deadline) {
        std::unique_lock lock(mutex_);
        while (open_ > 0 && Clock::now() < deadline) wait_on(done_, lock, deadline);
        return {delivered_, refused_ + open_, why_};
    }

private:
    std::mutex mutex_;
    std::condition_variable done_;
    std::size_t open_ = 0;  // begun and not finished
    std::size_t delivered_ = 0;
    std::size_t refused_ = 0;
    std::error_code why_;
    std::function<void()> when_done_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
