// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/session/under_way.hpp"
#include "redlatch/session/work.hpp"

#include <atomic>
#include <coroutine>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {

class Hold;
class Permits;
class Term;

namespace detail {

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

    // Destroys what was to be called, because nobody will call it.
    void forget_completion() noexcept { completer_.reset(); }

    // The coroutine takes the outcome when it is resumed.
    void complete_with(std::coroutine_handle<> coroutine) noexcept { coroutine_ = coroutine; }

    // The coroutine is destroyed, or goes on by itself, or nobody will complete the operation. Returns true if it would
    // have completed.
    bool forsake() noexcept { return (coroutine_ || completer_) && !is_met_.exchange(true); }

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
    void make_task(const RunContext& context) override { task_.emplace(work_(context)); }
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
        if constexpr (std::is_same_v<R, Hold> || std::is_same_v<R, Permits> || std::is_same_v<R, Term>) discard();
    }

    // Others may keep this object: a coroutine that stays where it is, an operation with a name, the callback itself.
    void drop() noexcept override {
        // With an error the task may go on, and gives back by itself what it gets.
        if (this->forsake() && !this->error_) discard();
        this->forget_completion();
    }

    void discard() noexcept {
        if (!std::exchange(has_result_, false)) return;
        if constexpr (requires { work_.unwanted(); }) work_.unwanted();
        try {
            static_cast<void>(work_.result(this->host_));
        } catch (...) {  // there is nobody to tell
        }
    }

    Work work_;
    bool has_result_ = false;  // True from the end of the task until the result is made
    std::optional<std::invoke_result_t<Work&, const RunContext&>> task_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
