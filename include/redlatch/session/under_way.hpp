// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/process.hpp"
#include "redlatch/base/task.hpp"
#include "redlatch/error.hpp"
#include "redlatch/session/any_executor.hpp"
#include "redlatch/session/notifier.hpp"
#include "redlatch/session/work.hpp"

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// An operation, whatever its result: before it begins, under way, and until it has completed. A task does the work, on
// the thread that begins it and on the background thread. Somebody else may give the operation up meanwhile: a stop
// token, the destructor of a coroutine.
//
// Whoever decides first determines the outcome, by one atomic step: the task that ended, or who gives up. The
// completion is called once, on the executor, with that outcome; neither of the two waits for the other. If the task
// succeeds later, its result is destroyed, which releases what it holds. A coroutine that is destroyed before it could be
// resumed discards the outcome, and with it what that holds: see Operation::Awaiter.
//
// It is kept alive by its task and by the job that completes it, until both are over. That reference ends on the thread of
// completions or on the one that dispatches them, not on the background thread, which cannot end the session that it
// belongs to. So if the task is the last, the job is queued once more.
//
// There may be very many of them, so it is one object with its work, and has no more than it needs.
class UnderWay : protected TaskEnd, private Notifier::Job {
public:
    explicit UnderWay(std::shared_ptr<OperationHost> host) noexcept : host_(std::move(host)) {}
    UnderWay(const UnderWay&) = delete;
    UnderWay& operator=(const UnderWay&) = delete;

    void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
    void release() noexcept {
        if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
    }

    // --- before it begins ---------------------------------------------------------------------------------------

    void stop_on(std::stop_token stop) noexcept { wanted_stop_ = std::move(stop); }

    // `works_on` runs what the user has given the operation to run, `completes_on` the completion.
    void run_on(AnyExecutor works_on, AnyExecutor completes_on) {
        executors_ = std::make_unique<Executors>(Executors{std::move(works_on), std::move(completes_on)});
    }
    void complete_on(AnyExecutor completes_on) {
        run_on(executors_ ? std::move(executors_->works_on) : AnyExecutor(), std::move(completes_on));
    }

    // For a thread that waits for the completion, as in a call that blocks. The thread that decides the outcome calls the
    // completion, which must neither wait nor run foreign code. The end of the client's operations does not end this one.
    void complete_at_once() noexcept { at_once_ = true; }

    // Begins the work. If it throws, for want of memory or of a thread, or in a forked child, nothing was begun, and
    // nothing completes.
    void begin();

    // --- under way ----------------------------------------------------------------------------------------------

    // Completes the operation with errc::cancelled, unless it has been decided. Any thread may call it, also before the
    // operation begins. Does nothing in a forked child, where the operation of the parent does not go on.
    void give_up() noexcept {
        if (process_ != this_process() || !decide(State::given_up)) return;
        cancel();
        stop_.request_stop();
    }

    // Gives the operation up for one that nobody will complete any more. What it got already is given back at once, not
    // only when its executor destroys what it was given.
    void abandon() noexcept {
        give_up();
        if (process_ == this_process() && state_ == State::ended) give_back();
    }

protected:
    virtual ~UnderWay() = default;

    // The task of the work. The context need not live longer than the call.
    virtual void make_task(const RunContext& context) = 0;
    virtual void start_task() noexcept = 0;

    // Calls the completion.
    virtual void complete() = 0;

    // Gives back what the task got, if there is a result that nobody has taken.
    virtual void give_back() noexcept = 0;

    // Does the same if nobody will ever take it: the completion is not called.
    virtual void drop() noexcept = 0;

    std::stop_token take_stop() noexcept { return std::move(wanted_stop_); }

    // The work refers to the session of the process that made it.
    void check_process() const {
        if (process_ != this_process())
            throw Error(errc::cancelled, {}, "it was made before a fork(), in the parent; make another one here");
    }

    // The task has ended, with an error or without. Afterwards this object may be gone.
    void work_ended(std::exception_ptr error) noexcept {
        if (decide(State::ended)) {
            error_ = std::move(error);
            parts_ = 1;
            post_completion();
        } else {
            give_back();
            if (parts_.fetch_sub(1) == 1) last_thread().notify(*this);
        }
    }

    const std::shared_ptr<OperationHost> host_;
    std::exception_ptr error_;  // written by the one who decided

private:
    // The last two are final: the task ended first, or somebody gave the operation up first.
    enum class State : unsigned char { prepared, under_way, ended, given_up };

    // Returns true if it was under way, and this call has decided the outcome.
    bool decide(State outcome) noexcept {
        State before = state_;
        while (before == State::prepared || before == State::under_way)
            if (state_.compare_exchange_weak(before, outcome)) return before == State::under_way;
        return false;
    }

    struct GiveUp {
        UnderWay& operation;
        void operator()() const noexcept { operation.give_up(); }
    };
    using OnStop = std::optional<std::stop_callback<GiveUp>>;

    struct Executors {
        AnyExecutor works_on;
        AnyExecutor completes_on;
    };

    void cancel() noexcept {
        try {
            error_ = std::make_exception_ptr(Error(errc::cancelled, {}, "it was given up before it succeeded"));
        } catch (...) {
            error_ = std::current_exception();
        }
        post_completion();
    }

    void post_completion() noexcept {
        if (at_once_) complete();
        last_thread().notify(*this);
    }

    // Where the operation ends: on the thread that calls the user's executors, so that none is destroyed during a call.
    Notifier& last_thread() const noexcept { return executors_ ? host_->dispatcher() : host_->completions(); }

    // The job: completes the operation. When it is queued once more, nothing is left to do.
    void run() override {
        if (parts_ > 0 && !at_once_) dispatch();
    }

    // The executor may own what it was given but never runs, so it is not kept longer than the task.
    void end() noexcept override {
        if (parts_ > 0 && parts_.fetch_sub(1) > 1) return;
        if (executors_) executors_->works_on = {};
        release();
    }

    // The right to complete it, once. An executor that destroys it unused gives back what the operation got.
    class Turn {
    public:
        explicit Turn(UnderWay& operation) : operation_(operation) { operation_.retain(); }
        Turn(const Turn&) = delete;
        Turn& operator=(const Turn&) = delete;
        ~Turn() {
            if (!is_used_) operation_.drop();
            operation_.release();
        }

        void use() {
            if (!is_used_.exchange(true)) operation_.complete();
        }

    private:
        UnderWay& operation_;
        std::atomic<bool> is_used_{false};
    };

    // Lets the user's executor complete it. If that refuses, this thread does it.
    void dispatch();

    std::atomic<std::uint32_t> references_{1};
    std::atomic<State> state_{State::prepared};
    std::atomic<unsigned char> parts_{2};  // of the task and the completion, how many are not over
    bool at_once_ = false;                 // see complete_at_once()
    const ProcessMark process_ = this_process();
    std::unique_ptr<Executors> executors_;     // null if it named none
    std::stop_token wanted_stop_;              // cancels it
    std::stop_source stop_{std::nostopstate};  // tells the task that the operation was given up
    // Destroyed first: their callbacks use the other members.
    std::unique_ptr<OnStop> on_stop_;  // null if there is no such token
    OnStop on_end_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/session/under_way.ipp"
#endif
