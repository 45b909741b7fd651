// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/thread.hpp"
#include "redlatch/session/notifier.hpp"

#include <mutex>
#include <thread>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

REDLATCH_INLINE Notifier::~Notifier() {
    Job* dropped = nullptr;
    {
        const std::lock_guard lock(queue_->mutex);
        queue_->stopped = true;
        dropped = std::exchange(queue_->first, nullptr);
    }
    queue_->changed.notify_one();
    while (dropped) std::exchange(dropped, dropped->next_)->end();
    if (!thread_.joinable()) return;
    if (thread_.get_id() == std::this_thread::get_id())
        thread_.detach();
    else
        thread_.join();
}

REDLATCH_INLINE void Notifier::start() {
    const std::lock_guard lock(queue_->mutex);
    start_locked();
}

REDLATCH_INLINE void Notifier::notify(Job& job) noexcept {
    {
        const std::lock_guard lock(queue_->mutex);
        if (!queue_->stopped) {
            queue_->add(job);
            queue_->changed.notify_one();
            try {
                start_locked();
            } catch (...) {  // no thread: the next job retries
            }
            return;
        }
    }
    job.end();
}

REDLATCH_INLINE void Notifier::start_locked() {
    if (!thread_.joinable() && !queue_->stopped)
        thread_ = thread_with_signals_blocked([queue = queue_] { work(*queue); });
}

REDLATCH_INLINE void Notifier::work(Queue& queue) {
    std::unique_lock lock(queue.mutex);
    for (;;) {
        queue.changed.wait(lock, [&] { return queue.stopped || queue.first; });
        if (queue.stopped) return;
        Job& job = *queue.first;
        queue.first = job.next_;
        lock.unlock();
        try {
            job.run();
        } catch (...) {
            // Swallow: there is no caller to report to.
        }
        job.end();
        lock.lock();
    }
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
