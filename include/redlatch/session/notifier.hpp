// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <atomic>
#include <condition_variable>
#include <functional>
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
    ~Notifier();

    // Starts the thread. Throws std::system_error if it cannot.
    void start();

    // What the thread runs, once. It is made before it is needed, so that queueing it cannot fail.
    class Job {
    public:
        Job() = default;
        Job(const Job&) = delete;
        Job& operator=(const Job&) = delete;

        virtual void run() = 0;

        // Called after run(), or instead of it if the job is dropped. Afterwards the job may be gone.
        virtual void end() noexcept = 0;

    protected:
        ~Job() = default;

    private:
        friend class Notifier;
        Job* next_ = nullptr;
    };

    // Runs a function, and belongs to nobody once it is queued.
    class FunctionJob final : public Job {
    public:
        explicit FunctionJob(std::function<void()> function) : function_(std::move(function)) {}

        void run() override { function_(); }
        void end() noexcept override { delete this; }

    private:
        const std::function<void()> function_;
    };

    // Queues a function. Throws only std::bad_alloc.
    void notify(std::function<void()> function) { notify(std::make_unique<FunctionJob>(std::move(function))); }
    void notify(std::unique_ptr<FunctionJob> job) noexcept { notify(*job.release()); }

    // Queues a job, which must not be queued already.
    void notify(Job& job) noexcept;

private:
    // State shared with the thread, which may outlive the notifier. `mutex` guards first, last, thread_ and all writes to
    // stopped; `changed` wakes the one thread. That takes all jobs at once, because many may come while it runs one.
    struct Queue {
        std::mutex mutex;
        std::condition_variable changed;
        Job* first = nullptr;  // in the order of their arrival
        Job* last = nullptr;   // undefined if there is none
        Job* taken = nullptr;  // those that the thread has taken and not begun; used by it only
        std::atomic<bool> stopped{false};

        void add(Job& job) noexcept {
            job.next_ = nullptr;
            (first ? last->next_ : first) = &job;
            last = &job;
        }
    };

    void start_locked();

    static void drop(Job*& first) noexcept;

    static void work(Queue& queue);

    std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
    std::thread thread_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/session/notifier.ipp"
#endif
