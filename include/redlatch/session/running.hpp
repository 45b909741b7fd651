// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/process.hpp"
#include "redlatch/base/task.hpp"
#include "redlatch/error.hpp"
#include "redlatch/session/any_executor.hpp"
#include "redlatch/session/continuations.hpp"
#include "redlatch/session/notifier.hpp"

#include <atomic>
#include <coroutine>
#include <exception>
#include <functional>
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

// How the task of an operation runs.
struct Course {
    std::stop_token stop{};                 // requested when the operation is given up
    WaitBy by = by_thread;                  // how it waits
    OperationHost* host = nullptr;          // the client, which lives as long as the task; null if a thread waits
    const AnyExecutor* executor = nullptr;  // runs what the user has given the operation to run; null as the host
};

// An operation under way. A task does the work, on the thread that begins it and on the background thread. Somebody else
// may give the operation up meanwhile: a stop token, the destructor of a coroutine.
//
// Whoever decides first determines the outcome, by one atomic exchange: the task that ended, or who gives up. The
// completion is called once, on the executor, with that outcome; neither of the two waits for the other. If the task
// succeeds later, its result is destroyed, which releases what it holds. A coroutine that is destroyed before it could be
// resumed discards the outcome, and with it what that holds: see Operation::Awaiter.
//
// It is kept alive by its task and by the job that completes it. The last reference ends on the thread of completions or
// on the user's executor, not on the background thread, which cannot end the session that it belongs to.
template <class R>
class Running final : public std::enable_shared_from_this<Running<R>> {
public:
    // Makes the task. It may keep the reference, and ends early once a stop is requested.
    using Work = std::function<Task<R>(const Course&)>;
    using Complete = std::function<void(Ending<R>&&)>;

    Running(std::shared_ptr<OperationHost> host, Work work, AnyExecutor works_on, AnyExecutor completes_on,
            Complete complete)
        : host_(std::move(host)),
          work_(std::move(work)),
          works_on_(std::move(works_on)),
          completes_on_(std::move(completes_on)),
          complete_(std::move(complete)) {}
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

    // Begins the work. If it throws, for want of memory or of a thread, nothing was begun, and nothing completes.
    void begin(const std::stop_token& stop) {
        host_->start(works_on_ || completes_on_);
        const auto self = this->shared_from_this();
        // Both are made here, so that neither completing nor ending can fail.
        Notifier::Job completion(1, completes_on_ ? std::function<void()>([self] { self->dispatch(); })
                                                  : std::function<void()>([self] { self->complete(); }));
        Notifier::Job farewell(1, [self] { self->works_on_ = {}; });
        const Root root = drive(*this, {stop_.get_token(), &host_->continuations(), host_.get(), &works_on_});
        completion_.swap(completion);
        farewell_.swap(farewell);
        // A stop that was requested before completes the operation at once.
        on_stop_.emplace(stop, GiveUp{*this});
        on_end_.emplace(host_->operations_end(), GiveUp{*this});
        root.coroutine.resume();
    }

    // Completes the operation with errc::cancelled, unless it has been decided. Any thread may call it. Does nothing in a
    // forked child, where the operation of the parent does not go on.
    void give_up() noexcept {
        if (process_ != this_process() || decided_.exchange(true)) return;
        try {
            outcome_.error = std::make_exception_ptr(Error(errc::cancelled, {}, "it was given up before it succeeded"));
        } catch (...) {
            outcome_.error = std::current_exception();
        }
        post_completion();
        stop_.request_stop();
    }

private:
    struct GiveUp {
        Running& running;
        void operator()() const noexcept { running.give_up(); }
    };

    // The coroutine that awaits the work. Its frame ends by itself.
    struct Root {
        struct promise_type {
            Root get_return_object() noexcept { return {std::coroutine_handle<promise_type>::from_promise(*this)}; }
            std::suspend_always initial_suspend() noexcept { return {}; }
            std::suspend_never final_suspend() noexcept { return {}; }
            void return_void() noexcept {}
            void unhandled_exception() noexcept { std::terminate(); }
        };

        std::coroutine_handle<promise_type> coroutine;
    };

    static Root drive(Running& running, Course course) {
        Ending<R> outcome;
        try {
            if constexpr (std::is_void_v<R>) {
                co_await running.work_(course);
                outcome.result.emplace();
            } else {
                outcome.result = co_await running.work_(course);
            }
        } catch (...) {
            outcome.error = std::current_exception();
        }
        running.end(std::move(outcome));
    }

    // Afterwards this object may be gone.
    void end(Ending<R> outcome) noexcept {
        if (!decided_.exchange(true)) {
            outcome_ = std::move(outcome);
            is_over_ = true;
            farewell_.clear();  // not the last reference: the completion has another
            post_completion();
        } else {
            outcome = {};
            host_->completions().notify(std::move(farewell_));
        }
    }

    void post_completion() noexcept {
        (completes_on_ ? host_->dispatcher() : host_->completions()).notify(std::move(completion_));
    }

    // Lets the user's executor complete it. If that refuses, this thread does it. The executor may own what it was given
    // but never runs, so it is not kept here any longer; a task that still runs keeps it until its end.
    void dispatch() {
        const AnyExecutor executor = std::move(completes_on_);
        if (is_over_) works_on_ = {};
        try {
            executor.execute([self = this->shared_from_this()] { self->complete(); });
        } catch (...) {
            complete();
        }
    }

    void complete() {
        const Complete complete = std::move(complete_);
        complete(std::move(outcome_));
    }

    const ProcessMark process_ = this_process();
    const std::shared_ptr<OperationHost> host_;
    const Work work_;
    AnyExecutor works_on_;
    AnyExecutor completes_on_;
    Complete complete_;
    Notifier::Job completion_;
    Notifier::Job farewell_;  // ends the task's reference if the operation was given up before
    std::atomic<bool> decided_{false};
    bool is_over_ = false;   // True if the task ended before it was given up; written before the completion is posted
    Ending<R> outcome_;      // written by the one who decided
    std::stop_source stop_;  // tells the task that the operation was given up
    // Destroyed first: their callbacks use the other members.
    std::optional<std::stop_callback<GiveUp>> on_stop_, on_end_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
