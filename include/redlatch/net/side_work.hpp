// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/thread.hpp"

#include <atomic>
#include <thread>
#include <utility>

namespace redlatch {
inline namespace v0_1 {

// Work that waits for the network (a name, a connection, a log-in), for a thread that must not: it is done on a thread
// of its own, which exists as long as the work lasts. One piece of work at a time; one thread at a time begins it.
class SideWork {
public:
    SideWork() = default;
    SideWork(const SideWork&) = delete;
    SideWork& operator=(const SideWork&) = delete;
    ~SideWork() { finish(); }

    // False when there is no thread for it. The work must not throw, and must have told of its end before it returns.
    template <class Work>
    bool begin(Work work) noexcept {
        finish();
        busy_ = true;
        try {
            thread_ = quiet_thread([this, work = std::move(work)]() noexcept {
                work();
                busy_ = false;
            });
        } catch (...) {
            busy_ = false;
        }
        return thread_.joinable();
    }

    // Until false, it may use whatever the work refers to.
    bool is_busy() const noexcept { return busy_; }

    // Waits for its end.
    void finish() noexcept {
        if (thread_.joinable()) thread_.join();
    }

private:
    std::atomic<bool> busy_{false};
    std::thread thread_;
};

}  // namespace v0_1
}  // namespace redlatch
