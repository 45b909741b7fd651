// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/thread.hpp"

#include <atomic>
#include <thread>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Runs work that waits for the network (a look-up, a connection, a log-in) for a thread that must not wait: on a thread
// of its own, which exists as long as the work lasts. There is one piece of work at a time, and one thread at a time
// may begin it.
class SideWork {
public:
    SideWork() = default;
    SideWork(const SideWork&) = delete;
    SideWork& operator=(const SideWork&) = delete;
    ~SideWork() { finish(); }

    // Returns false if no thread can be created. The work must not throw, and must report its end before it returns.
    template <class Work>
    bool begin(Work work) noexcept {
        finish();
        busy_ = true;
        try {
            thread_ = thread_with_signals_blocked([this, work = std::move(work)]() noexcept {
                work();
                busy_ = false;
            });
        } catch (...) {
            busy_ = false;
        }
        return thread_.joinable();
    }

    // Returns true while the work may use the objects it refers to.
    bool is_busy() const noexcept { return busy_; }

    // Waits until the work has ended.
    void finish() noexcept {
        if (thread_.joinable()) thread_.join();
    }

private:
    std::atomic<bool> busy_{false};
    std::thread thread_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
