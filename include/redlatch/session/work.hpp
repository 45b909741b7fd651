// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/task.hpp"
#include "redlatch/session/any_executor.hpp"
#include "redlatch/session/continuations.hpp"
#include "redlatch/session/notifier.hpp"

#include <exception>
#include <memory>
#include <optional>
#include <stop_token>
#include <type_traits>
#include <utility>
#include <variant>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What is stored of a result.
template <class R>
using Stored = std::conditional_t<std::is_void_v<R>, std::monostate, R>;

// What an operation needs of the client that it runs on. An object of this class keeps the client's session alive.
class OperationHost {
public:
    virtual ~OperationHost() = default;

    // Starts the threads that an operation needs. Throws std::system_error. `dispatches`: true if it has an executor.
    virtual void start(bool dispatches) = 0;

    virtual Continuations& continuations() = 0;

    // Requested when the client gives up its operations.
    virtual std::stop_token operations_end() noexcept = 0;

    // Run the completions of operations: the first those that named no executor, the second hands the others to theirs.
    virtual Notifier& completions() noexcept = 0;
    virtual Notifier& dispatcher() noexcept = 0;
};

// How an operation ended: with a result or with an error.
template <class R>
struct Ending {
    std::optional<Stored<R>> result{};
    std::exception_ptr error{};
};

// How the work of an operation is done.
struct RunContext {
    std::stop_token stop{};                 // requested when the operation is given up
    WaitBy by = by_thread;                  // how it waits
    OperationHost* host = nullptr;          // the client, which lives as long as the task; null if a thread waits
    const AnyExecutor* executor = nullptr;  // runs the user's functions; null if none was named, or if a thread waits
};

// The work of an operation is an object that lives as long as the operation. It is used in this order:
//   work(context)   makes the task, and copies what that needs of the context
//   ended(answer)   takes what the task returned; throws if the work failed
//   result(host)    makes the result, once. If nobody wants it any more, it is made and destroyed, which gives back
//                   what it holds. Before that unwanted() is called, if the work has that.
// The result of a SimpleWork is what its task returns.
template <class R, class Make>
class SimpleWork {
public:
    explicit SimpleWork(Make make) : make_(std::move(make)) {}

    Task<R> operator()(const RunContext& context) { return make_(context); }
    template <class Answer>
    void ended(Answer&& answer) {
        answer_.emplace(std::forward<Answer>(answer));
    }
    Stored<R> result(const std::shared_ptr<OperationHost>&) { return *std::exchange(answer_, std::nullopt); }

private:
    Make make_;
    std::optional<Stored<R>> answer_;
};

// Gives the work what its task returned. `take` takes that from the task.
template <class Work, class Take>
void end_work(Work& work, Take take) {
    if constexpr (std::is_void_v<decltype(take())>) {
        take();
        work.ended(std::monostate());
    } else {
        work.ended(take());
    }
}

// Does the work on this thread, which waits. Returns the result.
template <class Work>
auto do_here(Work& work, const std::shared_ptr<OperationHost>& host, std::stop_token stop) {
    const RunContext context{std::move(stop)};
    end_work(work, [&] { return work(context).run(); });
    return work.result(host);
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
