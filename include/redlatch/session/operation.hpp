// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/process.hpp"
#include "redlatch/error.hpp"
#include "redlatch/session/any_executor.hpp"
#include "redlatch/session/continuations.hpp"
#include "redlatch/session/running.hpp"

#include <atomic>
#include <coroutine>
#include <exception>
#include <functional>
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
// The first three wait without a thread. They complete on the executor that was named with on(), by default on a thread
// of the client that runs completions one after another. Nothing completes inside the call that begins the operation, in
// the call that releases a lock, or on the thread that renews leases and receives messages. So a completion may block; it
// delays only those that share its executor.
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
    Operation(Operation&&) noexcept = default;
    Operation& operator=(Operation&&) noexcept = default;

    // Names the executor on which the operation completes: see AnyExecutor.
    Operation on(AnyExecutor executor) && {
        executor_ = std::move(executor);
        return std::move(*this);
    }

    // Names the token that cancels the operation. Replaces an earlier one.
    Operation stop_on(std::stop_token stop) && {
        stop_ = std::move(stop);
        return std::move(*this);
    }

    // Begins the operation. The completion is called as `callback(ec, result)`; the result is a default R if there is an
    // error. If R is void or std::error_code, it is called as `callback(ec)`. Throws std::bad_alloc or std::system_error if the
    // operation cannot begin; then the callback is not called.
    template <class Callback>
    void start(Callback callback) && {
        // std::function wants to copy its target.
        const auto kept = std::make_shared<Callback>(std::move(callback));
        begin([kept](detail::Ending<R>&& outcome) {
            const std::error_code ec = detail::code_of(outcome.error);
            if constexpr (std::is_void_v<R>)
                (*kept)(ec);
            else if constexpr (std::is_same_v<R, std::error_code>)
                (*kept)(outcome.result ? *outcome.result : ec);
            else
                (*kept)(ec, outcome.result ? *std::move(outcome.result) : R());
        });
    }

    // Begins the operation. The future throws the error. Dropping the future cancels nothing.
    std::future<R> future() && {
        const auto promise = std::make_shared<std::promise<R>>();
        std::future<R> result = promise->get_future();
        begin([promise](detail::Ending<R>&& outcome) {
            if (outcome.error)
                promise->set_exception(outcome.error);
            else if constexpr (std::is_void_v<R>)
                promise->set_value();
            else
                promise->set_value(*std::move(outcome.result));
        });
        return result;
    }

    // Does the work on this thread, which waits. Throws the error. If a stop is requested, the result is a default R.
    R get() && {
        check_process();
        const detail::Course course{stop_};
        return work_(course).run();
    }

private:
    // Awaits the operation. `Answer` makes the result of co_await from the outcome.
    template <class Answer>
    class Awaiter {
    public:
        explicit Awaiter(Operation&& operation) : operation_(std::move(operation)) {}
        Awaiter(const Awaiter&) = delete;
        Awaiter& operator=(const Awaiter&) = delete;

        // A coroutine that is destroyed here cancels the operation.
        ~Awaiter() {
            if (meeting_ && !meeting_->is_over.exchange(true)) running_->give_up();
        }

        bool await_ready() const noexcept { return false; }

        [[gnu::noinline]] void await_suspend(std::coroutine_handle<> coroutine) {
            const auto meeting = std::make_shared<Meeting>();
            const auto running = running_ = operation_.make([meeting, coroutine](detail::Ending<R>&& outcome) {
                if (meeting->is_over.exchange(true)) return;
                meeting->outcome = std::move(outcome);
                coroutine.resume();
            });
            meeting_ = meeting;
            // This object may be gone before begin() returns.
            try {
                running->begin(operation_.stop_);
            } catch (...) {
                meeting->is_over = true;
                throw;
            }
        }

        auto await_resume() { return Answer()(std::move(meeting_->outcome)); }

    private:
        struct Meeting {
            std::atomic<bool> is_over{false};  // True once the coroutine goes on, or is gone
            detail::Ending<R> outcome;
        };

        Operation operation_;
        std::shared_ptr<Meeting> meeting_;
        std::shared_ptr<detail::Running<R>> running_;
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
    using Running = detail::Running<R>;

    Operation(std::shared_ptr<detail::OperationHost> host, typename Running::Work work, std::stop_token stop)
        : host_(std::move(host)), work_(std::move(work)), stop_(std::move(stop)) {}

    // `completes_on`: if it is not where the work runs what the user has given it to run.
    std::shared_ptr<Running> make(typename Running::Complete complete,
                                  std::optional<AnyExecutor> completes_on = std::nullopt) {
        check_process();
        return std::make_shared<Running>(std::move(host_), std::move(work_), executor_,
                                         completes_on ? *std::move(completes_on) : executor_, std::move(complete));
    }

    void begin(typename Running::Complete complete) { make(std::move(complete))->begin(stop_); }

    // The work refers to the session of the process that made it.
    void check_process() const {
        if (process_ != detail::this_process())
            throw Error(errc::cancelled, {}, "it was made before a fork(), in the parent; make another one here");
    }

    detail::ProcessMark process_ = detail::this_process();
    std::shared_ptr<detail::OperationHost> host_;
    typename Running::Work work_;
    AnyExecutor executor_;
    std::stop_token stop_;
};

namespace detail {

// Makes operations, for the primitives.
struct OperationAccess {
    template <class R>
    static Operation<R> make(std::shared_ptr<OperationHost> host, typename Running<R>::Work work,
                             std::stop_token stop) {
        return Operation<R>(std::move(host), std::move(work), std::move(stop));
    }

    // Begin an operation in two steps, for those who may give it up before it completes.
    template <class R>
    static std::shared_ptr<Running<R>> prepare(Operation<R>& operation, typename Running<R>::Complete complete,
                                               std::optional<AnyExecutor> completes_on) {
        return operation.make(std::move(complete), std::move(completes_on));
    }

    template <class R>
    static void begin(const Operation<R>& operation, Running<R>& running) {
        running.begin(operation.stop_);
    }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
