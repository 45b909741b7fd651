// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Lets a coroutine wait for an event that another thread may bring at the same time. Each member is called once.
class Rendezvous {
public:
    // Called by the coroutine that is about to wait. Returns false if the event has come already. Otherwise the
    // coroutine may be resumed, and its frame may be gone, before this returns.
    bool wait(std::coroutine_handle<> waiting) noexcept { return !state_.exchange(waiting.address()); }

    // Called when the event has come. Resumes the coroutine if it waits. Then the coroutine may destroy this object.
    void arrive() noexcept {
        void* const waiting = state_.exchange(this);
        if (waiting) std::coroutine_handle<>::from_address(waiting).resume();
    }

private:
    std::atomic<void*> state_{nullptr};  // null, then the coroutine or `this`, whichever comes first
};

// The result of a task: a value or an exception.
template <class T>
class TaskResult {
public:
    void return_value(T value) { value_.emplace(std::move(value)); }
    void unhandled_exception() noexcept { error_ = std::current_exception(); }

    T take() {
        if (error_) std::rethrow_exception(std::move(error_));
        return *std::move(value_);
    }

private:
    std::optional<T> value_;
    std::exception_ptr error_;
};

template <>
class TaskResult<void> {
public:
    void return_void() noexcept {}
    void unhandled_exception() noexcept { error_ = std::current_exception(); }

    void take() {
        if (error_) std::rethrow_exception(std::move(error_));
    }

private:
    std::exception_ptr error_;
};

// Work that waits: for replies, for messages, for its turn. The same code serves both kinds of callers. A caller may
// block its thread: then nothing in the task suspends, and run() returns the result. Or it is a coroutine: then the task
// suspends wherever it waits, and a background thread resumes it. A task begins when it is awaited or run, once.
//
// A task that ends without suspending returns to its caller at once, whose stack does not grow from one such task to the
// next. A task that was suspended continues its caller on the thread that resumed it.
template <class T>
class [[nodiscard]] Task {
public:
    class promise_type : public TaskResult<T> {
    public:
        Task get_return_object() noexcept { return Task(std::coroutine_handle<promise_type>::from_promise(*this)); }
        std::suspend_always initial_suspend() noexcept { return {}; }
        auto final_suspend() noexcept {
            struct End {
                bool await_ready() noexcept { return false; }
                void await_suspend(std::coroutine_handle<promise_type> ended) noexcept { ended.promise().end.arrive(); }
                void await_resume() noexcept {}
            };
            return End{};
        }

        Rendezvous end;
    };

    Task(Task&& other) noexcept : coroutine_(std::exchange(other.coroutine_, nullptr)) {}
    Task& operator=(Task&&) = delete;
    ~Task() {
        if (coroutine_) coroutine_.destroy();
    }

    // For a caller that blocks its thread.
    T run() {
        coroutine_.resume();
        return coroutine_.promise().take();
    }

    // For a caller that is a coroutine, or a task itself.
    bool await_ready() const noexcept { return false; }
    bool await_suspend(std::coroutine_handle<> caller) {
        const std::coroutine_handle<promise_type> coroutine = coroutine_;
        coroutine.resume();
        return coroutine.promise().end.wait(caller);
    }
    T await_resume() { return coroutine_.promise().take(); }

private:
    explicit Task(std::coroutine_handle<promise_type> coroutine) noexcept : coroutine_(coroutine) {}

    std::coroutine_handle<promise_type> coroutine_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
