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
    if (thread_.get_id() == std::this_thread::get_id()) {
        drop(queue_->taken);
        thread_.detach();
    }
    drop(dropped);
    if (thread_.joinable()) thread_.join();
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

REDLATCH_INLINE void Notifier::drop(Job*& first) noexcept {
    while (first) std::exchange(first, first->next_)->end();
}

REDLATCH_INLINE void Notifier::work(Queue& queue) {
    while (!queue.stopped) {
        {
            std::unique_lock lock(queue.mutex);
            queue.changed.wait(lock, [&] { return queue.stopped || queue.first; });
            queue.taken = std::exchange(queue.first, nullptr);
        }
        while (queue.taken && !queue.stopped) {
            Job& job = *std::exchange(queue.taken, queue.taken->next_);
            try {
                job.run();
            } catch (...) {
                // Swallow: there is no caller to report to.
            }
            job.end();
        }
    }
    drop(queue.taken);
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
