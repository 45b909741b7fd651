// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/session/any_executor.hpp"
#include "redlatch/session/continuations.hpp"
#include "redlatch/session/notifier.hpp"
#include "redlatch/session/running.hpp"

#include <atomic>
#include <coroutine>
#include <functional>
#include <memory>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Awaited, continues the task of an operation where the user's code may run: on the operation's executor, otherwise on
// the client's thread of completions. A thread that waits goes on itself. The result is false if the executor has
// destroyed what it was given without running it; then the task goes on, on the thread of completions.
class [[nodiscard]] Hop {
public:
    explicit Hop(const Course& course) : course_(course) {}
    Hop(const Hop&) = delete;
    Hop& operator=(const Hop&) = delete;

    bool await_ready() const noexcept { return course_.by == by_thread; }

    [[gnu::noinline]] void await_suspend(std::coroutine_handle<> coroutine) {
        OperationHost& host = *course_.host;
        const AnyExecutor* const executor = course_.executor;
        const auto ticket = std::make_shared<Ticket>(host.completions(), coroutine, dropped_);
        try {
            if (executor)
                host.dispatcher().notify([ticket, executor] { dispatch(*executor, ticket); });
            else
                host.completions().notify([ticket] { ticket->go(); });
        } catch (...) {  // no memory: the exception continues the coroutine
            ticket->tear_up();
            throw;
        }
    }

    bool await_resume() const noexcept { return !dropped_; }

private:
    // The right to continue the coroutine, once. It lives until then: also the coroutine, its operation and the client.
    class Ticket {
    public:
        Ticket(Notifier& completions, std::coroutine_handle<> coroutine, bool& dropped)
            : completions_(completions),
              coroutine_(coroutine),
              when_dropped_(std::make_unique<Notifier::FunctionJob>([coroutine, &dropped] {
                  dropped = true;
                  coroutine.resume();
              })) {}
        Ticket(const Ticket&) = delete;
        Ticket& operator=(const Ticket&) = delete;
        ~Ticket() {
            if (!used_) completions_.notify(std::move(when_dropped_));
        }

        void go() {
            if (!used_.exchange(true)) coroutine_.resume();
        }

        void tear_up() noexcept { used_ = true; }

    private:
        Notifier& completions_;
        const std::coroutine_handle<> coroutine_;
        std::unique_ptr<Notifier::FunctionJob> when_dropped_;  // made beforehand, because a destructor must not fail
        std::atomic<bool> used_{false};
    };

    // If the executor refuses, this thread goes on.
    static void dispatch(const AnyExecutor& executor, const std::shared_ptr<Ticket>& ticket) {
        try {
            executor.execute([ticket] { ticket->go(); });
        } catch (...) {
            ticket->go();
        }
    }

    const Course& course_;
    bool dropped_ = false;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
