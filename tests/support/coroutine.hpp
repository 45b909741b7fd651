// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

#include "support/wait.hpp"

namespace redlatch::test {

/// A coroutine without a caller. The object waits in its destructor until the coroutine has ended on whatever thread
/// resumes it, unless a test has destroyed that before. An exception that leaves the coroutine ends the program, and so
/// does a coroutine that does not end.
class Fiber {
public:
    struct promise_type {
        Fiber get_return_object() noexcept { return Fiber(std::coroutine_handle<promise_type>::from_promise(*this)); }
        std::suspend_never initial_suspend() noexcept { return {}; }
        auto final_suspend() noexcept {
            struct End {
                bool await_ready() noexcept { return false; }
                [[gnu::noinline]] void await_suspend(std::coroutine_handle<promise_type> ended) noexcept {
                    const auto flag = ended.promise().is_done;
                    *flag = true;
                }
                void await_resume() noexcept {}
            };
            return End{};
        }
        void return_void() noexcept {}
        void unhandled_exception() { std::terminate(); }

        std::shared_ptr<std::atomic<bool>> is_done = std::make_shared<std::atomic<bool>>(false);
    };

    Fiber(Fiber&& other) noexcept
        : is_done_(std::move(other.is_done_)), coroutine_(std::exchange(other.coroutine_, nullptr)) {}
    Fiber& operator=(Fiber&&) = delete;
    ~Fiber() {
        if (!coroutine_) return;
        if (!eventually([this] { return done(); }, std::chrono::seconds{60})) std::terminate();
        destroy();
    }

    /// Destroys the coroutine, which is suspended and is not about to be resumed.
    void destroy() {
        if (const auto mine = std::exchange(coroutine_, nullptr)) mine.destroy();
    }

    /// Returns true if it has ended, on whatever thread.
    bool done() const { return *is_done_; }

private:
    explicit Fiber(std::coroutine_handle<promise_type> coroutine)
        : is_done_(coroutine.promise().is_done), coroutine_(coroutine) {}

    std::shared_ptr<std::atomic<bool>> is_done_;
    std::coroutine_handle<promise_type> coroutine_;
};

/// An executor that runs what it was given when the test says so, on the thread that says so.
class ManualExecutor {
public:
    void execute(std::function<void()> f) const {
        const std::lock_guard lock(queue_->mutex);
        queue_->jobs.push_back(std::move(f));
    }

    /// Runs what is there, and returns how much that was.
    std::size_t run() const {
        std::deque<std::function<void()>> jobs;
        {
            const std::lock_guard lock(queue_->mutex);
            jobs.swap(queue_->jobs);
        }
        for (auto& job : jobs) job();
        return jobs.size();
    }

private:
    struct Queue {
        std::mutex mutex;  // guards jobs
        std::deque<std::function<void()>> jobs;
    };

    std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

}  // namespace redlatch::test
