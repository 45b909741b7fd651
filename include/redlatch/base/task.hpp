// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

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
    std::exception_ptr error_;
    std::optional<T> value_;
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

// Learns that a task has ended that was begun with start().
class TaskEnd {
public:
    // May destroy the task.
    virtual void task_ended() noexcept = 0;

protected:
    TaskEnd() = default;
    TaskEnd(const TaskEnd&) = delete;
    TaskEnd& operator=(const TaskEnd&) = delete;
    ~TaskEnd() = default;
};

// Work that waits: for replies, for messages, for its turn. The same code serves both kinds of callers. A caller may
// block its thread: then nothing that the task waits for suspends it, and run() returns the result. Or it is a coroutine:
// then the task suspends wherever it waits, and a background thread resumes it. A task begins when it is awaited, run or
// started, once.
//
// A task that was suspended continues its caller on the thread on which it ends, so a lock that a task has taken belongs
// to that thread. run() continues a task and those that it awaits in turn, so they need the stack of one of them.
//
// Every await_suspend() of ours is [[gnu::noinline]], because another thread may resume the coroutine before that
// function returns. If it is inlined, clang before version 18 may keep its variables in the frame of the coroutine, which
// may be gone by then.
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
                [[gnu::noinline]] void await_suspend(std::coroutine_handle<promise_type> coroutine) noexcept {
                    promise_type& ended = coroutine.promise();  // may be gone after the last line
                    if (ended.continues)
                        *ended.continues = ended.caller;
                    else if (ended.caller)
                        ended.caller.resume();
                    else if (ended.listener)
                        ended.listener->task_ended();
                }
                void await_resume() noexcept {}
            };
            return End{};
        }

        std::coroutine_handle<>* continues = nullptr;  // with what run() goes on; null if no thread is in run()
        std::coroutine_handle<> caller{};              // to continue at the end; null if the task was run or started
        TaskEnd* listener = nullptr;                   // learns of the end if the task was started
    };

    Task(Task&& other) noexcept : coroutine_(std::exchange(other.coroutine_, nullptr)) {}
    Task& operator=(Task&&) = delete;
    ~Task() {
        if (coroutine_) coroutine_.destroy();
    }

    // For a caller that blocks its thread.
    T run() {
        std::coroutine_handle<> next = coroutine_;
        coroutine_.promise().continues = &next;
        while (next) std::exchange(next, nullptr).resume();
        return coroutine_.promise().take();
    }

    // For a caller that goes on at once. `end` learns when the task has ended, perhaps before this returns, and takes the
    // result.
    void start(TaskEnd& end) noexcept {
        const std::coroutine_handle<promise_type> coroutine = coroutine_;
        coroutine.promise().listener = &end;
        coroutine.resume();
    }
    T take() { return coroutine_.promise().take(); }

    // For a caller that is a coroutine, or a task itself.
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    [[gnu::noinline]] void await_suspend(std::coroutine_handle<Promise> caller) {
        const std::coroutine_handle<promise_type> coroutine = coroutine_;
        promise_type& promise = coroutine.promise();
        if constexpr (requires { caller.promise().continues; }) promise.continues = caller.promise().continues;
        promise.caller = caller;
        if (promise.continues)
            *promise.continues = coroutine;
        else
            coroutine.resume();
    }
    T await_resume() { return take(); }

private:
    explicit Task(std::coroutine_handle<promise_type> coroutine) noexcept : coroutine_(coroutine) {}

    std::coroutine_handle<promise_type> coroutine_;
};

// A coroutine of its own, which nobody awaits.
struct Detached {
    struct promise_type {
        Detached get_return_object() const noexcept { return {}; }
        std::suspend_never initial_suspend() const noexcept { return {}; }
        std::suspend_never final_suspend() const noexcept { return {}; }
        void return_void() const noexcept {}
        void unhandled_exception() const noexcept { std::terminate(); }
    };
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
