// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/session/hop.hpp"
#include "redlatch/session/notifier.hpp"

#include <atomic>
#include <coroutine>
#include <memory>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The right to continue the coroutine, once. It lives until then: also the coroutine, its operation and the client.
class Hop::Ticket {
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
    ~Ticket() { drop(); }

    void go() {
        if (use()) coroutine_.resume();
    }

    // Continues the coroutine on the thread of completions, and leaves nothing for go().
    void drop() noexcept {
        if (use()) completions_.notify(std::move(when_dropped_));
    }

    // Returns true if nobody has used it before.
    bool use() noexcept { return !used_.exchange(true); }

private:
    Notifier& completions_;
    const std::coroutine_handle<> coroutine_;
    std::unique_ptr<Notifier::FunctionJob> when_dropped_;  // made beforehand, because a destructor must not fail
    std::atomic<bool> used_{false};
};

REDLATCH_INLINE void Hop::hop(std::coroutine_handle<> coroutine) {
    OperationHost& host = *context_.host;
    const AnyExecutor* const executor = context_.executor;
    const auto ticket = std::make_shared<Ticket>(host.completions(), coroutine, dropped_);
    const std::shared_ptr<Waiting> waiting = waiting_;
    try {
        if (executor)
            host.dispatcher().notify([ticket, executor] { dispatch(*executor, ticket); });
        else
            host.completions().notify([ticket] { ticket->go(); });
    } catch (...) {  // no memory: the exception continues the coroutine
        ticket->use();
        throw;
    }
    // From here on this object may be gone.
    bool is_given_up = false;
    {
        const std::lock_guard lock(waiting->mutex);
        waiting->ticket = ticket;
        is_given_up = waiting->given_up;
    }
    if (is_given_up) ticket->drop();
}

REDLATCH_INLINE void Hop::give_up() noexcept {
    std::shared_ptr<Ticket> ticket;
    {
        const std::lock_guard lock(waiting_->mutex);
        waiting_->given_up = true;
        ticket = waiting_->ticket.lock();
    }
    if (ticket) ticket->drop();
}

// If the executor refuses, this thread goes on.
REDLATCH_INLINE void Hop::dispatch(const AnyExecutor& executor, const std::shared_ptr<Ticket>& ticket) {
    try {
        executor.execute([ticket] { ticket->go(); });
    } catch (...) {
        ticket->go();
    }
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
