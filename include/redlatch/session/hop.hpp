// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/session/any_executor.hpp"
#include "redlatch/session/continuations.hpp"
#include "redlatch/session/running.hpp"

#include <coroutine>
#include <memory>
#include <mutex>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Awaiting a Hop moves the task of an operation to where the user's code may run: the operation's executor, or else the
// client's completions thread. A task that blocks its thread stays there. The result is false if the executor destroyed the
// job without running it, or had not run it yet when the operation was given up. Then the task continues on the completions
// thread.
class [[nodiscard]] Hop {
public:
    explicit Hop(const RunContext& context) : context_(context) {}
    Hop(const Hop&) = delete;
    Hop& operator=(const Hop&) = delete;

    bool await_ready() const noexcept { return context_.by == by_thread; }

    [[gnu::noinline]] void await_suspend(std::coroutine_handle<> coroutine) { hop(coroutine); }

    bool await_resume() const noexcept { return !dropped_; }

    // The task does not wait for the executor any longer. Any thread may call it while this object lives.
    void give_up() noexcept;

private:
    class Ticket;

    // Between the task and give_up(). The task may go on, and destroy the Hop, before it has left the ticket here.
    struct Waiting {
        std::mutex mutex;  // guards the others
        bool given_up = false;
        std::weak_ptr<Ticket> ticket{};  // belongs to what the executor was given
    };

    void hop(std::coroutine_handle<> coroutine);
    static void dispatch(const AnyExecutor& executor, const std::shared_ptr<Ticket>& ticket);

    const RunContext& context_;
    const std::shared_ptr<Waiting> waiting_ = std::make_shared<Waiting>();
    bool dropped_ = false;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/session/hop.ipp"
#endif
