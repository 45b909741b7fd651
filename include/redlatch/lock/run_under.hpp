// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/task.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/lock/hold.hpp"
#include "redlatch/session/continuations.hpp"
#include "redlatch/session/hop.hpp"
#include "redlatch/session/running.hpp"

#include <concepts>
#include <coroutine>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>

// Runs a function of the user's while a lock is held: see async_run() of the locks.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns the awaiter of an awaitable.
template <class Awaitable>
decltype(auto) awaiter_of(Awaitable&& awaitable) {
    if constexpr (requires { std::forward<Awaitable>(awaitable).operator co_await(); })
        return std::forward<Awaitable>(awaitable).operator co_await();
    else if constexpr (requires { operator co_await(std::forward<Awaitable>(awaitable)); })
        return operator co_await(std::forward<Awaitable>(awaitable));
    else
        return std::forward<Awaitable>(awaitable);
}

// True for what any coroutine can await.
template <class T>
concept IsAwaitable = !std::is_void_v<T> && requires(std::add_rvalue_reference_t<T> awaitable) {
    { awaiter_of(static_cast<decltype(awaitable)>(awaitable)).await_ready() } -> std::convertible_to<bool>;
};

// The result of f(token), or of co_await f(token).
template <class Returned>
struct ResultOf {
    using type = std::decay_t<Returned>;
};
template <IsAwaitable Returned>
struct ResultOf<Returned> {
    using type = std::decay_t<decltype(awaiter_of(std::declval<Returned>()).await_resume())>;
};
template <class F>
using RunResult = typename ResultOf<std::invoke_result_t<F&, std::stop_token>>::type;

template <class R, class Awaitable>
Detached fulfil(Awaitable awaitable, std::promise<R> promise) {
    try {
        if constexpr (std::is_void_v<R>) {
            co_await std::move(awaitable);
            promise.set_value();
        } else {
            promise.set_value(co_await std::move(awaitable));
        }
    } catch (...) {
        promise.set_exception(std::current_exception());
    }
}

// Calls f, and awaits what it returns if that is an awaitable. A thread blocks meanwhile.
template <class R, class F>
Task<R> call_and_await(F& f, std::stop_token stop, WaitBy by) {
    if constexpr (!IsAwaitable<std::invoke_result_t<F&, std::stop_token>>) {
        co_return std::invoke(f, std::move(stop));
    } else if (by == by_thread) {
        std::promise<R> promise;
        std::future<R> result = promise.get_future();
        fulfil<R>(std::invoke(f, std::move(stop)), std::move(promise));
        co_return result.get();
    } else {
        co_return co_await std::invoke(f, std::move(stop));
    }
}

template <class R, class F>
Task<R> run_under(Task<Hold> acquiring, std::shared_ptr<F> f, RunContext context) {
    Hold hold = co_await std::move(acquiring);
    if (!hold) throw Error(errc::cancelled, {}, "it was cancelled before the lock was acquired");
    const std::string name = hold.name();
    Ending<R> outcome;
    bool in_time = false;
    {
        // The token of f is requested when the hold is lost or the operation is given up. These callbacks end before the
        // task returns to the background thread, which must not wait for them.
        std::stop_source ending;
        Hop hop(context);
        const std::stop_callback on_lost(hold.lost(), [&ending] { ending.request_stop(); });
        // A callback on the token of f may let the task go on, on this thread, so that comes last.
        const std::stop_callback on_given_up(context.stop, [&ending, &hop] {
            hop.give_up();
            ending.request_stop();
        });
        const bool hopped = co_await hop;
        if (!hopped || context.stop.stop_requested())
            throw Error(errc::cancelled, name, "it was cancelled before the function was called");
        if (ending.stop_requested())
            throw Error(errc::hold_lost, name, "the lock was lost before the function was called");
        try {
            if constexpr (std::is_void_v<R>) {
                co_await call_and_await<R>(*f, ending.get_token(), context.by);
                outcome.result.emplace();
            } else {
                outcome.result = co_await call_and_await<R>(*f, ending.get_token(), context.by);
            }
        } catch (...) {
            outcome.error = std::current_exception();
        }
        in_time = Clock::now() < hold.valid_until();
    }
    HeldLevel level;
    const std::error_code released = co_await HoldAccess::release(hold, level, context.by);
    if (outcome.error) std::rethrow_exception(std::move(outcome.error));
    if (!in_time || released == errc::hold_lost) {
        // The destructor of the result may block.
        if (outcome.result) static_cast<void>(co_await Hop(context));
        throw Error(errc::hold_lost, name, "the lock was lost before the function returned");
    }
    if constexpr (!std::is_void_v<R>) co_return *std::move(outcome.result);
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
