// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/error.hpp"
#include "redlatch/session/any_executor.hpp"
#include "redlatch/session/continuations.hpp"
#include "redlatch/session/running.hpp"

#include <coroutine>
#include <exception>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <stop_token>
#include <system_error>
#include <type_traits>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

struct OperationAccess;

inline std::error_code code_of(const std::exception_ptr& error) noexcept {
    if (!error) return {};
    try {
        std::rethrow_exception(error);
    } catch (const std::system_error& e) {
        return e.code();
    } catch (const std::bad_alloc&) {
        return make_error_code(std::errc::not_enough_memory);
    } catch (...) {
        return make_error_code(errc::function_failed);
    }
}

}  // namespace detail

// Work that has not begun yet: an acquire, say, whose result is an R. It is begun once, in one of four ways:
//
//   redlatch::Hold hold = co_await orders.async_lock();                     // in a coroutine of any kind
//   orders.async_lock().start([](std::error_code ec, redlatch::Hold hold) { … });
//   std::future<redlatch::Hold> later = orders.async_lock().future();
//   redlatch::Hold hold = orders.async_lock().get();                        // blocks this thread, like lock()
//
// The first three wait without a thread; one that waits for an RLock takes about 1 KiB of memory. They complete on the
// executor that was named with on(), by default on a thread of the client that runs completions one after another.
// Nothing completes inside the call that begins the operation, in the call that releases a lock, or on the thread that
// renews leases and receives messages. So a completion may block; it delays only those that share its executor. An
// executor that destroys a completion without running it gives the result back; a coroutine then stays suspended.
//
// Cancelling: when a stop is requested on the token (stop_on()), or the coroutine that awaits the operation is
// destroyed, the operation completes at once with errc::cancelled, and what it acquires all the same is released in the
// background. Either the completion has the result, or it has the error: never both, never neither. A coroutine must not
// be destroyed while its executor may be resuming it.
//
// An operation under way keeps the client's connections and threads alive. The objects that it was made from may be
// destroyed, but a MultiLock or RedLock gives up its operations. Movable; not thread-safe.
//
// After a fork the operations of the parent go on in the parent only. The child makes operations of its own; beginning
// one that the parent made throws Error(errc::cancelled).
template <class R>
class [[nodiscard]] Operation {
public:
    // Takes over the work; the other one must not be begun any more.
    Operation(Operation&&) noexcept = default;
    // Drops its own work, unless it has begun, and takes over that of the other one.
    Operation& operator=(Operation&&) noexcept = default;

    // Names the executor on which the operation completes: see AnyExecutor.
    Operation on(AnyExecutor executor) && {
        running_->run_on(executor, executor);
        return std::move(*this);
    }

    // Names the token that cancels the operation. Replaces an earlier one.
    Operation stop_on(std::stop_token stop) && {
        running_->stop_on(std::move(stop));
        return std::move(*this);
    }

    // Begins the operation. The completion is called as `callback(ec, result)`; the result is a default R if there is an
    // error. If R is void or std::error_code, it is called as `callback(ec)`. Throws std::bad_alloc or std::system_error if the
    // operation cannot begin; then the callback is not called.
    template <class Callback>
    void start(Callback callback) && {
        begin([callback = std::move(callback)](detail::Ending<R>&& outcome) mutable {
            const std::error_code ec = detail::code_of(outcome.error);
            if constexpr (std::is_void_v<R>)
                callback(ec);
            else if constexpr (std::is_same_v<R, std::error_code>)
                callback(outcome.result ? *outcome.result : ec);
            else
                callback(ec, outcome.result ? *std::move(outcome.result) : R());
        });
    }

    // Begins the operation. The future throws the error. Dropping the future cancels nothing.
    std::future<R> future() && {
        std::promise<R> promise;
        std::future<R> result = promise.get_future();
        begin([promise = std::move(promise)](detail::Ending<R>&& outcome) mutable {
            if (outcome.error)
                promise.set_exception(outcome.error);
            else if constexpr (std::is_void_v<R>)
                promise.set_value();
            else
                promise.set_value(*std::move(outcome.result));
        });
        return result;
    }

    // Does the work on this thread, which waits. Throws the error. If a stop is requested, the result is a default R.
    R get() && { return running_->get(); }

private:
    using Running = detail::Running<R>;

    // Awaits the operation. `Answer` makes the result of co_await from the outcome.
    template <class Answer>
    class Awaiter {
    public:
        explicit Awaiter(Operation&& operation) : running_(std::move(operation.running_)) {}
        Awaiter(const Awaiter&) = delete;
        Awaiter& operator=(const Awaiter&) = delete;

        // A coroutine that is destroyed here cancels the operation.
        ~Awaiter() {
            if (running_->forsake()) running_->abandon();
        }

        bool await_ready() const noexcept { return false; }

        [[gnu::noinline]] void await_suspend(std::coroutine_handle<> coroutine) {
            // This object may be gone before begin() returns.
            const detail::Reference<Running> running = running_;
            running->complete_with(coroutine);
            try {
                running->begin();
            } catch (...) {
                running->forsake();
                throw;
            }
        }

        auto await_resume() { return Answer()(running_->outcome()); }

    private:
        const detail::Reference<Running> running_;
    };

    struct Throwing {
        R operator()(detail::Ending<R>&& outcome) const {
            if (outcome.error) std::rethrow_exception(outcome.error);
            if constexpr (!std::is_void_v<R>) return *std::move(outcome.result);
        }
    };

    struct Telling {
        auto operator()(detail::Ending<R>&& outcome) const {
            const std::error_code ec = detail::code_of(outcome.error);
            if constexpr (std::is_void_v<R>)
                return ec;
            else
                return std::pair<std::error_code, R>(ec, outcome.result ? *std::move(outcome.result) : R());
        }
    };

public:
    // Begins the operation when it is awaited. Throws the error.
    auto operator co_await() && { return Awaiter<Throwing>(std::move(*this)); }

    // To be awaited instead: the result is a std::pair of the std::error_code and the R, or the std::error_code alone if R
    // is void.
    auto no_throw() && {
        struct NoThrow {
            Operation operation;
            auto operator co_await() && { return Awaiter<Telling>(std::move(operation)); }
        };
        return NoThrow{std::move(*this)};
    }

private:
    friend struct detail::OperationAccess;

    explicit Operation(detail::Reference<Running> running) : running_(std::move(running)) {}

    template <class Complete>
    void begin(Complete complete) {
        running_->complete_with(std::move(complete));
        running_->begin();
    }

    detail::Reference<Running> running_;
};

namespace detail {

// Makes operations, for the primitives.
struct OperationAccess {
    // For the work see SimpleWork.
    template <class R, class Work>
    static Operation<R> make(std::shared_ptr<OperationHost> host, Work work, std::stop_token stop) {
        Reference<Running<R>> running(new RunningOf<R, Work>(std::move(host), std::move(work)));
        running->stop_on(std::move(stop));
        return Operation<R>(std::move(running));
    }

    // The same for work of which the result is that of the task that make(context) returns.
    template <class R, class Make>
    static Operation<R> make_simple(std::shared_ptr<OperationHost> host, Make make, std::stop_token stop = {}) {
        return OperationAccess::make<R>(std::move(host), SimpleWork<R, Make>(std::move(make)), std::move(stop));
    }

    // For those who may give the operation up before it completes, or wait for it.
    template <class R>
    static Reference<Running<R>> running(const Operation<R>& operation) {
        return operation.running_;
    }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
