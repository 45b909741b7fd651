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
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stop_token>
#include <type_traits>
#include <utility>
#include <variant>

namespace redlatch {
inline namespace REDLATCH_ABI {

class Hold;
class Permits;

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
struct Course {
    std::stop_token stop{};                 // requested when the operation is given up
    WaitBy by = by_thread;                  // how it waits
    OperationHost* host = nullptr;          // the client, which lives as long as the task; null if a thread waits
    const AnyExecutor* executor = nullptr;  // runs what the user has given the operation to run; null as the host
};

// The work of an operation is an object that lives as long as the operation. It is used in this order:
//   work(course)    makes the task, and copies what that needs of the course
//   ended(answer)   takes what the task returned; throws if the work failed
//   result(host)    makes the result, once. If nobody wants it any more, it is made and destroyed, which gives back
//                   what it holds.
// This is the work of which the result is what its task returns.
template <class R, class Make>
class SimpleWork {
public:
    explicit SimpleWork(Make make) : make_(std::move(make)) {}

    Task<R> operator()(const Course& course) { return make_(course); }
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
    const Course course{std::move(stop)};
    end_work(work, [&] { return work(course).run(); });
    return work.result(host);
}

// Counts a reference to an object that destroys itself with the last one.
template <class T>
class Reference {
public:
    Reference() noexcept = default;
    explicit Reference(T* object) noexcept : object_(object) {}  // takes over a reference that is counted already
    Reference(const Reference& other) noexcept : object_(other.object_) {
        if (object_) object_->retain();
    }
    Reference(Reference&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Reference& operator=(Reference other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    ~Reference() {
        if (object_) object_->release();
    }

    T* operator->() const noexcept { return object_; }
    T& operator*() const noexcept { return *object_; }
    explicit operator bool() const noexcept { return object_ != nullptr; }

private:
    T* object_ = nullptr;
};

// An operation, whatever its result: before it begins, under way, and until it has completed. A task does the work, on
// the thread that begins it and on the background thread. Somebody else may give the operation up meanwhile: a stop
// token, the destructor of a coroutine.
//
// Whoever decides first determines the outcome, by one atomic exchange: the task that ended, or who gives up. The
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

    // Begins the work. If it throws, for want of memory or of a thread, or in a forked child, nothing was begun, and
    // nothing completes.
    void begin() {
        check_process();
        host_->start(executors_ != nullptr);
        stop_ = std::stop_source();
        make_task({stop_.get_token(), &host_->continuations(), host_.get(),
                   executors_ && executors_->works_on ? &executors_->works_on : nullptr});
        if (wanted_stop_.stop_possible()) on_stop_ = std::make_unique<OnStop>();
        retain();
        // From here on nothing fails.
        State before = State::prepared;
        if (!state_.compare_exchange_strong(before, State::under_way)) {
            parts_ = 1;
            return cancel();
        }
        // A stop that was requested before completes the operation at once.
        if (on_stop_) on_stop_->emplace(std::move(wanted_stop_), GiveUp{*this});
        on_end_.emplace(host_->operations_end(), GiveUp{*this});
        start_task();
    }

    // --- under way ----------------------------------------------------------------------------------------------

    // Completes the operation with errc::cancelled, unless it has been decided. Any thread may call it, also before the
    // operation begins. Does nothing in a forked child, where the operation of the parent does not go on.
    void give_up() noexcept {
        if (process_ != this_process() || state_.exchange(State::decided) != State::under_way) return;
        cancel();
        stop_.request_stop();
    }

protected:
    virtual ~UnderWay() = default;

    // The task of the work. The course need not live longer than the call.
    virtual void make_task(const Course& course) = 0;
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
        if (state_.exchange(State::decided) == State::under_way) {
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
    enum class State : unsigned char { prepared, under_way, decided };

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

    void post_completion() noexcept { last_thread().notify(*this); }

    // Where the operation ends: on the thread that calls the user's executors, so that none is destroyed during a call.
    Notifier& last_thread() const noexcept { return executors_ ? host_->dispatcher() : host_->completions(); }

    // The job: completes the operation. When it is queued once more, nothing is left to do.
    void run() override {
        if (parts_ > 0) dispatch();
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
    void dispatch() {
        if (!executors_ || !executors_->completes_on) return complete();
        const AnyExecutor executor = std::exchange(executors_->completes_on, {});
        std::shared_ptr<Turn> turn;
        try {
            turn = std::make_shared<Turn>(*this);
            executor.execute([turn] { turn->use(); });
        } catch (...) {
            turn ? turn->use() : complete();
        }
    }

    std::atomic<std::uint32_t> references_{1};
    std::atomic<State> state_{State::prepared};
    std::atomic<unsigned char> parts_{2};  // of the task and the completion, how many are not over
    const ProcessMark process_ = this_process();
    std::unique_ptr<Executors> executors_;     // null if it named none
    std::stop_token wanted_stop_;              // cancels it
    std::stop_source stop_{std::nostopstate};  // tells the task that the operation was given up
    // Destroyed first: their callbacks use the other members.
    std::unique_ptr<OnStop> on_stop_;  // null if there is no such token
    OnStop on_end_;
};

// Is called with the outcome of an operation.
template <class R>
class Completer {
public:
    Completer() = default;
    Completer(const Completer&) = delete;
    Completer& operator=(const Completer&) = delete;
    virtual ~Completer() = default;

    virtual void complete(Ending<R>&& outcome) = 0;
};

template <class R, class Function>
class CompleterOf final : public Completer<R> {
public:
    explicit CompleterOf(Function function) : function_(std::move(function)) {}
    void complete(Ending<R>&& outcome) override { function_(std::move(outcome)); }

private:
    Function function_;
};

// An operation with a result.
template <class R>
class Running : public UnderWay {
public:
    using UnderWay::UnderWay;

    // --- how it completes: one of them is called before it begins -----------------------------------------------

    template <class Function>
    void complete_with(Function function) {
        completer_ = std::make_unique<CompleterOf<R, Function>>(std::move(function));
    }

    // After begin() has thrown: destroys what was to be called.
    void forget_completion() noexcept { completer_.reset(); }

    // The coroutine takes the outcome when it is resumed.
    void complete_with(std::coroutine_handle<> coroutine) noexcept { coroutine_ = coroutine; }

    // The coroutine is destroyed, or goes on by itself. Returns true if it would have been resumed.
    bool forsake() noexcept { return coroutine_ && !is_met_.exchange(true); }

    // Takes the outcome, once.
    virtual Ending<R> outcome() noexcept = 0;

    // Does the work on this thread instead of beginning it.
    virtual R get() = 0;

protected:
    void complete() final {
        if (coroutine_) {
            if (!is_met_.exchange(true)) coroutine_.resume();
        } else if (const std::unique_ptr<Completer<R>> completer = std::move(completer_)) {
            completer->complete(outcome());
        }
    }

private:
    std::unique_ptr<Completer<R>> completer_;
    std::coroutine_handle<> coroutine_{};
    std::atomic<bool> is_met_{false};  // True once the coroutine goes on, or is gone
};

template <class R, class Work>
class RunningOf final : public Running<R> {
public:
    RunningOf(std::shared_ptr<OperationHost> host, Work work) : Running<R>(std::move(host)), work_(std::move(work)) {}
    ~RunningOf() override { discard(); }

    // Makes the result only if the task succeeded before the operation was given up.
    Ending<R> outcome() noexcept override {
        Ending<R> ending;
        ending.error = this->error_;
        if (ending.error) return ending;
        try {
            has_result_ = false;
            ending.result.emplace(work_.result(this->host_));
        } catch (...) {
            ending.error = std::current_exception();
        }
        return ending;
    }

    R get() override {
        this->check_process();
        if constexpr (std::is_void_v<R>)
            do_here(work_, this->host_, this->take_stop());
        else
            return do_here(work_, this->host_, this->take_stop());
    }

private:
    void make_task(const Course& course) override { task_.emplace(work_(course)); }
    void start_task() noexcept override { task_->start(*this); }

    void task_ended() noexcept override {
        std::exception_ptr error;
        try {
            end_work(work_, [this] { return task_->take(); });
            has_result_ = true;
        } catch (...) {
            error = std::current_exception();
        }
        task_.reset();
        this->work_ended(std::move(error));
    }

    // Any other result is the user's. It is destroyed with this object, because its destructor may block.
    void give_back() noexcept override {
        if constexpr (std::is_same_v<R, Hold> || std::is_same_v<R, Permits>) discard();
    }

    // A callback is destroyed, and this object with it. A coroutine stays where it is, and would keep the result.
    void drop() noexcept override {
        if (this->forsake()) discard();
    }

    void discard() noexcept {
        if (!std::exchange(has_result_, false)) return;
        try {
            static_cast<void>(work_.result(this->host_));
        } catch (...) {  // there is nobody to tell
        }
    }

    Work work_;
    bool has_result_ = false;  // True from the end of the task until the result is made
    std::optional<std::invoke_result_t<Work&, const Course&>> task_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
