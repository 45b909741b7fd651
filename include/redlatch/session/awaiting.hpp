// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/pause.hpp"
#include "redlatch/base/suspended.hpp"
#include "redlatch/base/task.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/session/continuations.hpp"
#include "redlatch/session/server_time.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/transport/reply.hpp"
#include "redlatch/transport/transport.hpp"

#include <coroutine>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stop_token>
#include <string_view>
#include <utility>

// What a task awaits: the reply to a call, and the end of a pause. A thread waits in await_ready(), so the task goes on
// without suspending. A coroutine is suspended, and the background thread resumes it.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What another thread delivers, and the coroutine that waits for it. It may be delivered when nobody waits any longer.
//
// mutex_ guards the members but the sleeper, which is the continuations'.
template <class T>
class Delivery {
public:
    explicit Delivery(T otherwise) : value_(std::move(otherwise)) {}

    // `by` lives as long as somebody waits.
    void deliver(T value, Continuations& by) {
        const std::lock_guard lock(mutex_);
        if (is_over_) return;
        value_ = std::move(value);
        by.wake(sleeper_);
    }

    // Returns what was delivered, otherwise the value that was given to the constructor. What comes later is ignored.
    T take() {
        const std::lock_guard lock(mutex_);
        is_over_ = true;
        return std::move(value_);
    }

    // Puts the coroutine to sleep until it is delivered. Returns false if it has been. Otherwise the coroutine may go on,
    // and be gone, before this returns.
    bool sleep(Continuations& by, std::coroutine_handle<> coroutine, Instant until) {
        return by.sleep(sleeper_, coroutine, until);
    }

private:
    std::mutex mutex_;
    T value_;
    bool is_over_ = false;
    Sleeper sleeper_;
};

// Waits until it is delivered, or until the instant.
template <class T>
class [[nodiscard]] Delivered {
public:
    Delivered(WaitBy by, const std::shared_ptr<Delivery<T>>& delivery, Instant until)
        : by_(*by), delivery_(delivery), until_(until) {}

    bool await_ready() const noexcept { return false; }
    [[gnu::noinline]] bool await_suspend(std::coroutine_handle<> coroutine) {
        const std::shared_ptr<Delivery<T>> delivery = delivery_;
        return delivery->sleep(by_, coroutine, until_);
    }
    T await_resume() { return delivery_->take(); }

private:
    Continuations& by_;
    const std::shared_ptr<Delivery<T>> delivery_;
    const Instant until_;
};

// Waits for the reply to a call or command, like Session::call(). `What` is Call or Command, or has a member call() that
// makes one when it is sent. It must live until the reply.
template <class What>
class [[nodiscard]] ReplyTo {
public:
    ReplyTo(Session& session, WaitBy by, const What& what, Instant deadline)
        : session_(session), by_(by), what_(what), deadline_(deadline) {}

    bool await_ready() {
        if (by_) return false;
        reply_ = session_.call(sent(), deadline_);
        return true;
    }

    [[gnu::noinline]] bool await_suspend(std::coroutine_handle<> coroutine) noexcept {
        bool is_sent = false;
        try {
            const auto posted = posted_ =
                std::make_shared<Delivery<Reply>>(Reply::of(Reply::Kind::unanswered, std::string()));
            session_.post(sent(), [posted, by = by_](Reply reply) { posted->deliver(std::move(reply), *by); });
            is_sent = true;
            // This object may be gone afterwards.
            return posted->sleep(*by_, coroutine, deadline_);
        } catch (const std::bad_alloc&) {
            if (posted_) static_cast<void>(posted_->take());
            reply_ = Reply::of(is_sent ? Reply::Kind::unanswered : Reply::Kind::not_sent, no_memory);
            return false;
        }
    }

    Reply await_resume() {
        if (reply_) return *std::move(reply_);
        Reply reply = posted_->take();
        if (reply.kind == Reply::Kind::unanswered && reply.text.empty()) reply.text = "no reply in time";
        return reply;
    }

private:
    decltype(auto) sent() const {
        if constexpr (requires { what_.call(); })
            return what_.call();
        else
            return (what_);
    }

    Session& session_;
    const WaitBy by_;
    const What& what_;
    const Instant deadline_;
    std::shared_ptr<Delivery<Reply>> posted_;
    std::optional<Reply> reply_;  // of a thread, or if memory was short
};

// Asks the server that has this key for its time. Returns nothing, and the reason in `failure`, if there is no reply. A
// caller that may know the time already looks at Session::known_server_time() first.
inline Task<std::optional<ServerMilliseconds>> server_time(Session& session, WaitBy by, std::string_view key,
                                                           Instant deadline, Reply& failure) {
    const Command question = ServerTime::question(key);
    const SendTime asked;
    failure = co_await ReplyTo(session, by, question, deadline);
    co_return session.learn_server_time(key, asked, failure);
}

// Sleeps until the instant, or until a stop is requested.
class [[nodiscard]] Pause {
public:
    Pause(WaitBy by, Instant until, const std::stop_token& stop) : by_(by), until_(until), stop_(stop) {}

    bool await_ready() const {
        if (!by_) pause(until_, stop_);
        return !by_ || until_ <= Clock::now();
    }

    [[gnu::noinline]] bool await_suspend(std::coroutine_handle<> coroutine) noexcept try {
        on_stop_.emplace(stop_, Wake{*by_, sleeper_});
        return by_->sleep(sleeper_, coroutine, until_);
    } catch (const std::bad_alloc&) {
        return false;
    }

    void await_resume() const noexcept {}

private:
    struct Wake {
        Continuations& continuations;
        Sleeper& sleeper;
        void operator()() const { continuations.wake(sleeper); }
    };

    const WaitBy by_;
    const Instant until_;
    const std::stop_token& stop_;
    Sleeper sleeper_;
    std::optional<std::stop_callback<Wake>> on_stop_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
