// SPDX-License-Identifier: MIT
#pragma once

// Starts operations with the completion tokens of Asio. Not part of redlatch.hpp, because it needs Asio 1.22 or newer, or
// Boost 1.78 or newer. Takes standalone Asio if <asio.hpp> is there; define REDLATCH_BOOST_ASIO to take Boost.Asio all the
// same. Two files of one program may choose differently.

#include "redlatch/error.hpp"
#include "redlatch/session/operation.hpp"
#include "redlatch/session/running.hpp"

#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <system_error>
#include <type_traits>
#include <utility>

#if defined(REDLATCH_BOOST_ASIO) || !__has_include(<asio.hpp>)
#include <boost/asio/associated_allocator.hpp>
#include <boost/asio/associated_cancellation_slot.hpp>
#include <boost/asio/associated_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/cancellation_type.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/execution/blocking.hpp>
#include <boost/asio/execution/context.hpp>
#include <boost/asio/execution/executor.hpp>
#include <boost/asio/execution/outstanding_work.hpp>
#include <boost/asio/execution_context.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/prefer.hpp>
#include <boost/asio/query.hpp>
#include <boost/asio/system_context.hpp>
#include <boost/asio/version.hpp>
#include <boost/system/error_code.hpp>
#if BOOST_ASIO_VERSION < 102200
#error "redlatch/asio.hpp needs Boost 1.78 or newer: older ones lack cancellation slots and std::error_code"
#endif
#define REDLATCH_ASIO_FLAVOUR with_boost_asio
#else
#include <asio/associated_allocator.hpp>
#include <asio/associated_cancellation_slot.hpp>
#include <asio/associated_executor.hpp>
#include <asio/async_result.hpp>
#include <asio/cancellation_type.hpp>
#include <asio/dispatch.hpp>
#include <asio/error_code.hpp>
#include <asio/execution/blocking.hpp>
#include <asio/execution/context.hpp>
#include <asio/execution/executor.hpp>
#include <asio/execution/outstanding_work.hpp>
#include <asio/execution_context.hpp>
#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <asio/prefer.hpp>
#include <asio/query.hpp>
#include <asio/system_context.hpp>
#include <asio/version.hpp>
#if ASIO_VERSION < 102200
#error "redlatch/asio.hpp needs Asio 1.22 or newer: older ones lack cancellation slots"
#endif
#define REDLATCH_ASIO_FLAVOUR with_asio
#endif

namespace redlatch {
inline namespace REDLATCH_ABI {
// The two libraries give different functions, so these need different symbols.
inline namespace REDLATCH_ASIO_FLAVOUR {
namespace asio_detail {

#if defined(REDLATCH_BOOST_ASIO) || !__has_include(<asio.hpp>)
namespace net = boost::asio;
using ErrorCode = boost::system::error_code;
#else
namespace net = ::asio;
using ErrorCode = ::asio::error_code;
#endif

// What a handler is called with, besides the error.
template <class R>
struct Signature {
    using type = void(ErrorCode, R);
};
template <>
struct Signature<void> {
    using type = void(ErrorCode);
};
template <>
struct Signature<std::error_code> {
    using type = void(ErrorCode);
};

// Asio's executors have a context; those of older ones by a member function.
template <class Executor>
auto context_of(const Executor& executor) -> decltype(net::query(executor, net::execution::context)) {
    return net::query(executor, net::execution::context);
}
template <class Executor>
requires(!net::execution::is_executor<Executor>::value) auto context_of(const Executor& executor)
    -> decltype(executor.context()) {
    return executor.context();
}

// True for executors without a context that could be destroyed: system_executor, which stands for "anywhere", and that
// of use_future. The type of the latter is not public. It is known at compile time that it may run functions at once,
// unlike with those of a context. Nobody must ask it for its context, which would start the threads of system_context.
template <class Executor>
constexpr bool runs_anywhere() {
    if constexpr (!requires(const Executor& executor) { asio_detail::context_of(executor); }) {
        return true;
    } else if constexpr (std::is_convertible_v<decltype(context_of(std::declval<const Executor&>())),
                                               net::system_context&>) {
        return true;
    } else if constexpr (requires { Executor::query(net::execution::blocking); }) {
        return Executor::query(net::execution::blocking) == net::execution::blocking.possibly;
    } else {
        return false;
    }
}

// Keeps the context of an executor from running out of work. executor_work_guard would do, but in Asio 1.22 it refuses a
// strand of any_io_executor.
template <class Executor>
class Work {
public:
    explicit Work(const Executor& executor) : guard_(net::prefer(executor, net::execution::outstanding_work.tracked)) {}
    const auto& executor() const noexcept { return guard_; }

private:
    std::decay_t<decltype(net::prefer(std::declval<const Executor&>(), net::execution::outstanding_work.tracked))>
        guard_;
};
template <class Executor>
requires(!net::execution::is_executor<Executor>::value) class Work<Executor> {
public:
    explicit Work(const Executor& executor) : guard_(executor) {}
    Executor executor() const noexcept { return guard_.get_executor(); }

private:
    net::executor_work_guard<Executor> guard_;
};

// An operation under way, seen from the context of its handler.
class Pending {
public:
    Pending() = default;
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;
    virtual ~Pending() = default;

    // Gives the operation up and destroys its handler.
    virtual void abandon() noexcept = 0;

    std::list<std::shared_ptr<Pending>>::iterator place{};
};

// The operations whose handlers belong to one execution context. It outlives the context, because a thread of a client
// may complete an operation while the context goes away.
//
// mutex_ guards all members. It is held while a completion is handed to the context, which therefore cannot go away
// meanwhile: its destructor waits in abandon_all().
class PendingOperations {
public:
    // Returns false if the context is going away.
    bool add(const std::shared_ptr<Pending>& operation) {
        std::list<std::shared_ptr<Pending>> one{operation};
        const std::lock_guard lock(mutex_);
        if (closed_) return false;
        operation->place = one.begin();
        operations_.splice(operations_.end(), one);
        return true;
    }

    // Calls post(), unless the operation was abandoned.
    template <class Post>
    void complete(Pending& operation, const Post& post) {
        std::list<std::shared_ptr<Pending>> one;  // its end may destroy the operation, without the mutex
        const std::lock_guard lock(mutex_);
        if (closed_) return;
        one.splice(one.end(), operations_, operation.place);
        post();
    }

    void abandon_all() noexcept {
        std::list<std::shared_ptr<Pending>> all;
        {
            const std::lock_guard lock(mutex_);
            closed_ = true;
            all.swap(operations_);
        }
        for (const auto& operation : all) operation->abandon();
    }

private:
    std::mutex mutex_;
    std::list<std::shared_ptr<Pending>> operations_;
    bool closed_ = false;
};

// Destroys the handlers of a context with it, as the context does with those of its own operations.
class PendingService final : public net::execution_context::service {
public:
    using key_type = PendingService;
    inline static net::execution_context::id id;

    explicit PendingService(net::execution_context& context) : net::execution_context::service(context) {}

    const std::shared_ptr<PendingOperations>& operations() const noexcept { return operations_; }

private:
    void shutdown() noexcept override { operations_->abandon_all(); }

    const std::shared_ptr<PendingOperations> operations_ = std::make_shared<PendingOperations>();
};

// The handler of an operation, and what it will be called with. Lies in memory from the handler's allocator. That is used
// by the thread that begins the operation and by the handler's executor only, so that it need not be thread-safe.
template <class R, class Handler>
class Waiting {
public:
    using Executor = net::associated_executor_t<Handler>;
    using Allocator =
        typename std::allocator_traits<net::associated_allocator_t<Handler>>::template rebind_alloc<Waiting>;
    using Memory = std::allocator_traits<Allocator>;

    struct Delete {
        void operator()(Waiting* waiting) const noexcept {
            Allocator allocator(net::get_associated_allocator(waiting->handler_));
            destroy(allocator, waiting);
        }
    };
    using Ptr = std::unique_ptr<Waiting, Delete>;

    static Ptr make(Handler&& handler) {
        Allocator allocator(net::get_associated_allocator(handler));
        Waiting* const memory = Memory::allocate(allocator, 1);
        try {
            return Ptr(::new (static_cast<void*>(memory)) Waiting(std::move(handler)));
        } catch (...) {
            Memory::deallocate(allocator, memory, 1);
            throw;
        }
    }

    explicit Waiting(Handler&& handler) : handler_(std::move(handler)), work_(net::get_associated_executor(handler_)) {}

    const Handler& handler() const noexcept { return handler_; }
    auto executor() const noexcept { return work_.executor(); }

    void end_with(detail::Ending<R>&& outcome) {
        code_ = detail::code_of(outcome.error);
        if (outcome.result) result_ = *std::move(outcome.result);
    }

    // Calls the handler. Frees the memory first, for the operation that the handler may start next.
    static void call(Ptr waiting) {
        Allocator allocator(net::get_associated_allocator(waiting->handler_));
        Waiting* const memory = waiting.release();
        Handler handler(std::move(memory->handler_));
        [[maybe_unused]] detail::Stored<R> result(std::move(memory->result_));
        const std::error_code code = memory->code_;
        destroy(allocator, memory);
        if constexpr (std::is_void_v<R>)
            std::move(handler)(ErrorCode(code));
        else if constexpr (std::is_same_v<R, std::error_code>)
            std::move(handler)(ErrorCode(code ? code : result));
        else
            std::move(handler)(ErrorCode(code), std::move(result));
    }

private:
    static void destroy(Allocator& allocator, Waiting* waiting) noexcept {
        waiting->~Waiting();
        Memory::deallocate(allocator, waiting, 1);
    }

    Handler handler_;
    Work<Executor> work_;
    std::error_code code_{};
    detail::Stored<R> result_{};
};

// What the handler's executor runs. It does not name the handler's allocator, which post() would use on a thread of the
// client.
template <class R, class Handler>
class Completion {
public:
    explicit Completion(typename Waiting<R, Handler>::Ptr waiting) : waiting_(std::move(waiting)) {}

    void operator()() { Waiting<R, Handler>::call(std::move(waiting_)); }

private:
    typename Waiting<R, Handler>::Ptr waiting_;
};

// An operation that was started with a handler. This object comes from the global heap, because the client frees it on
// a thread of its own.
template <class R, class Handler>
class Started final : public Pending {
public:
    using Executor = typename Waiting<R, Handler>::Executor;

    Started(typename Waiting<R, Handler>::Ptr waiting, detail::Reference<detail::Running<R>> running)
        : waiting_(std::move(waiting)), running_(std::move(running)) {}

    static void start(Operation<R>&& operation, Handler&& handler) {
        const auto started = std::make_shared<Started>(Waiting<R, Handler>::make(std::move(handler)),
                                                       detail::OperationAccess::running(operation));
        const Executor executor = net::get_associated_executor(started->waiting_->handler());
        // The thread that dispatches completions hands them to the context. A handler without a context is called by the
        // thread that calls the other callbacks, because it may take its time.
        std::optional<AnyExecutor> completes_on;
        if constexpr (!runs_anywhere<Executor>()) completes_on.emplace([](const std::function<void()>& f) { f(); });
        if (completes_on) started->running_->complete_on(*std::move(completes_on));
        auto slot = net::get_associated_cancellation_slot(started->waiting_->handler());
        if (slot.is_connected()) slot.assign(Cancel{started});
        if constexpr (!runs_anywhere<Executor>()) {
            auto& service = net::use_service<PendingService>(context_of(executor));
            started->siblings_ = service.operations();
            if (!started->siblings_->add(started)) return;
        }
        // Afterwards the handler, and all that belongs to it, may be gone.
        try {
            started->running_->complete_with(
                [started](detail::Ending<R>&& outcome) { started->complete(std::move(outcome)); });
            started->running_->begin();
        } catch (...) {
            started->running_->forget_completion();  // which would keep both alive
            started->fail(std::current_exception());
        }
    }

    void abandon() noexcept override {
        running_->give_up();
        waiting_.reset();
    }

private:
    // Every type of cancellation asks for less than what happens: there is no lasting effect.
    struct Cancel {
        std::weak_ptr<Started> started;

        void operator()(net::cancellation_type_t type) const {
            constexpr auto any = net::cancellation_type_t::terminal | net::cancellation_type_t::partial |
                                 net::cancellation_type_t::total;
            if ((type & any) == net::cancellation_type_t::none) return;
            if (const auto under_way = started.lock()) under_way->running_->give_up();
        }
    };

    // If there is no memory to hand it over, the handler is destroyed, and what was acquired is released.
    void complete(detail::Ending<R>&& outcome) {
        if constexpr (runs_anywhere<Executor>()) {
            const auto executor = waiting_->executor();
            waiting_->end_with(std::move(outcome));
            net::dispatch(executor, Completion<R, Handler>(std::move(waiting_)));
        } else {
            post(std::move(outcome));
        }
    }

    // Nothing completes inside the call that begins the operation, not even one that cannot begin.
    void fail(std::exception_ptr error) { post({.error = std::move(error)}); }

    void post(detail::Ending<R>&& outcome) {
        const auto hand_over = [&] {
            const auto executor = waiting_->executor();
            waiting_->end_with(std::move(outcome));
            net::post(executor, Completion<R, Handler>(std::move(waiting_)));
        };
        if constexpr (runs_anywhere<Executor>())
            hand_over();
        else
            siblings_->complete(*this, hand_over);
    }

    typename Waiting<R, Handler>::Ptr waiting_;
    const detail::Reference<detail::Running<R>> running_;
    std::shared_ptr<PendingOperations> siblings_;
};

struct Start {
    template <class Handler, class R>
    void operator()(Handler&& handler, Operation<R> operation) const {
        Started<R, std::decay_t<Handler>>::start(std::move(operation),
                                                 std::decay_t<Handler>(std::forward<Handler>(handler)));
    }
};

}  // namespace asio_detail

// Begins an operation with a completion token of Asio:
//
//   redlatch::Hold hold = co_await redlatch::async(orders.async_lock(), asio::use_awaitable);
//
// The handler is called as handler(ec, result), or as handler(ec) if R is void or std::error_code. The result is a default R if
// there is an error. An operation that cannot begin completes with an error, too.
//
// - Where: on the handler's associated executor, which has work until then; never inside the call that begins the
//   operation. A handler without one is called where Operation completes by default, or where the operation's on() says.
// - Memory: the handler is kept in memory from its associated allocator, which is freed before the handler is called.
//   Only the calling thread and the handler's executor use that allocator. The operation itself uses the global heap.
// - Cancelling: by the handler's cancellation slot, with any type of cancellation. It completes with errc::cancelled,
//   which equals std::errc::operation_canceled as Asio's operation_aborted does, and leaves no hold. If the lock was
//   granted first, it completes with the hold. The operation's stop token still counts. Emit a signal on the handler's
//   executor, as for Asio's own operations.
// - When the execution context is destroyed, its operations are given up, their handlers are destroyed without a call,
//   and what they acquired is released.
template <class R, class Token>
auto async(Operation<R> operation, Token&& token) {
    return asio_detail::net::async_initiate<Token, typename asio_detail::Signature<R>::type>(
        asio_detail::Start(), token, std::move(operation));
}

}  // namespace REDLATCH_ASIO_FLAVOUR
}  // namespace REDLATCH_ABI
}  // namespace redlatch

#undef REDLATCH_ASIO_FLAVOUR
