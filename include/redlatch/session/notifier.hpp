// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/thread.hpp"

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Runs the user's functions on a thread of its own, in order, with no lock of ours held. So a function that blocks, throws
// or uses the library does not affect renewals or wake-ups and delays no lost() token. The thread starts with the first
// job or with start(). If no thread can be started, queued jobs wait until the next one.
class Notifier {
public:
    Notifier() = default;
    Notifier(const Notifier&) = delete;
    Notifier& operator=(const Notifier&) = delete;

    // Waits for the running job, unless that job is what destroys us. Queued jobs are dropped.
    ~Notifier() {
        {
            const std::lock_guard lock(queue_->mutex);
            queue_->stopped = true;
            queue_->jobs.clear();
        }
        queue_->changed.notify_one();
        if (!thread_.joinable()) return;
        if (thread_.get_id() == std::this_thread::get_id())
            thread_.detach();
        else
            thread_.join();
    }

    // Starts the thread. Throws std::system_error if it cannot.
    void start() {
        const std::lock_guard lock(queue_->mutex);
        start_locked();
    }

    // One job, or none. It is made before it is needed, so that queueing it cannot fail.
    using Job = std::list<std::function<void()>>;

    // Queues a job. Throws only std::bad_alloc.
    void notify(std::function<void()> job) {
        Job one;
        one.push_back(std::move(job));
        notify(std::move(one));
    }

    void notify(Job job) noexcept {
        const std::lock_guard lock(queue_->mutex);
        if (queue_->stopped) return;
        queue_->jobs.splice(queue_->jobs.end(), job);
        queue_->changed.notify_one();
        try {
            start_locked();
        } catch (...) {  // no thread: the next job retries
        }
    }

private:
    // State shared with the thread, which may outlive the notifier. `mutex` guards the other members and thread_;
    // `changed` wakes the one thread.
    struct Queue {
        std::mutex mutex;
        std::condition_variable changed;
        Job jobs;
        bool stopped = false;
    };

    void start_locked() {
        if (!thread_.joinable() && !queue_->stopped)
            thread_ = thread_with_signals_blocked([queue = queue_] { work(*queue); });
    }

    static void work(Queue& queue) {
        std::unique_lock lock(queue.mutex);
        for (;;) {
            queue.changed.wait(lock, [&] { return queue.stopped || !queue.jobs.empty(); });
            if (queue.stopped) return;
            Job job;
            job.splice(job.end(), queue.jobs, queue.jobs.begin());
            lock.unlock();
            try {
                job.front()();
            } catch (...) {
                // Swallow: there is no caller to report to.
            }
            job.clear();
            lock.lock();
        }
    }

    std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
    std::thread thread_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
