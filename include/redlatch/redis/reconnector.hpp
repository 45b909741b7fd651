// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/wait_on.hpp"
#include "redlatch/net/side_work.hpp"
#include "redlatch/redis/connection.hpp"
#include "redlatch/redis/failure_reply.hpp"
#include "redlatch/redis/reconnect_policy.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Opens a connection whenever there is none: on the thread of a caller, or on a side thread. If the URL has a function
// for the login, it is always a side thread, because the function may block, and callers have deadlines.
//
// The mutex of the owner guards it: each function is called while that is locked, except is_open(), connections(),
// is_opening_aside() and finish(). Functions that get the lock release it while they wait.
//
// changed_ wakes threads in open(): a connection came up, an attempt failed, a failed connection is closed, or the pause
// before the next attempt has been ended.
class Reconnector {
public:
    // Whether a call tries to connect until its deadline, or returns after one failed attempt, because its command may
    // belong to another node by now.
    enum class Connecting { until_deadline, one_attempt };

    Reconnector(const Url& url, Connector open, Milliseconds timeout, Connecting connecting,
                std::function<bool()> has_substitute)
        : url_(url),
          connector_(std::move(open)),
          timeout_(timeout),
          connecting_(connecting),
          has_substitute_(std::move(has_substitute)) {}

    bool is_open() const noexcept { return state_.load(std::memory_order_acquire) == State::open; }
    bool is_opening() const noexcept { return state_ == State::opening; }

    // may_begin(): an attempt may begin now. has_pause(): the next attempt must wait for the end of a pause.
    bool may_begin(Instant now) const noexcept { return state_ == State::closed && policy_.may_begin(now); }
    bool has_pause(Instant now) const noexcept { return state_ == State::closed && !policy_.may_begin(now); }

    // Returns when an attempt may begin. Returns `never` while a thread opens the connection, or still uses a failed one.
    Instant next_attempt() const noexcept { return state_ == State::closed ? policy_.next_attempt() : never; }

    Reply why_not() const noexcept { return policy_.why_not(); }

    // Makes a reply that names the server between the texts `before` and `after`.
    Reply reply(Reply::Kind kind, const char* before, const char* after, const char* why = "") const noexcept {
        return detail::failure_reply(kind, before, url_, after, why);
    }

    // Waits until the connection is open or the deadline passes: then the result says why it is not. One thread
    // connects, with back-off, and calls `attempted(lock)` after each attempt; the others wait.
    template <class Attempted>
    std::optional<Reply> open(std::unique_lock<std::mutex>& lock, Instant deadline, Attempted attempted) {
        const std::uint64_t failures = policy_.failures();
        while (!is_open()) {
            const Instant now = Clock::now();
            const bool substituted = has_substitute_ && has_substitute_();
            const bool has_failed = policy_.failures() != failures;
            // The server itself refuses: a retry with the same credentials is useless.
            if (has_failed && !policy_.is_unreachable()) return why_not();
            if (connecting_ == Connecting::one_attempt && has_failed) return why_not();
            if (now >= deadline) return policy_.why_not_in_time();
            if (substituted && has_failed) return why_not();
            const Milliseconds patience = substituted ? timeout_ / 8 : timeout_;
            if (state_ != State::closed) {
                wait_on(changed_, lock, std::min(deadline, now + patience));
                if (substituted && now + patience < deadline && Clock::now() >= now + patience) return why_not();
            } else if (has_pause(now)) {
                if (substituted) return why_not();
                wait_on(changed_, lock, std::min(next_attempt(), deadline));
            } else if (url_.credentials) {
                open_aside(lock, now + timeout_, attempted);
            } else {
                attempt(lock, std::min(deadline, now + patience));
                attempted(lock);
            }
        }
        return std::nullopt;
    }

    // Connects on a side thread, for a thread that must not wait. Calls `attempted(lock)` there.
    template <class Attempted>
    void open_aside(std::unique_lock<std::mutex>& lock, Instant deadline, Attempted attempted) noexcept {
        state_ = State::opening;
        lock.unlock();
        const bool begun = opening_aside_.begin([this, deadline, attempted, mutex = lock.mutex()] {
            std::unique_lock mine(*mutex);
            attempt(mine, deadline);
            attempted(mine);
        });
        lock.lock();
        if (begun) return;
        state_ = State::closed;
        policy_.attempt_not_begun(Clock::now());
        changed_.notify_all();
    }

    // Returns true while a side thread may call the connector.
    bool is_opening_aside() const noexcept { return opening_aside_.is_busy(); }

    // Waits for the side thread.
    void finish() noexcept { opening_aside_.finish(); }

    // Marks the open connection as failed. `why_not` is for commands that need it from now on. `writing`: a thread may
    // be inside a write.
    void fail(const Reply& why_not, bool writing) noexcept {
        link_.socket.fail(writing);
        state_ = State::failed;
        policy_.connection_ended(detail::copy_of(why_not), Clock::now());
    }

    // Called when no thread is inside a read or write. Returns true if it has closed a failed connection.
    bool close_if_failed() noexcept {
        if (state_ != State::failed) return false;
        link_.socket.close();
        state_ = State::closed;
        changed_.notify_all();
        return true;
    }

    // Another server is wanted: ends an attempt that is under way.
    void abandon() noexcept { link_.abandoned = true; }

    // From now on, only a connection to this place or a later one will do. Returns true if the open one is not.
    bool want_place(std::uint64_t place) noexcept {
        place_ = place;
        abandon();
        return is_open() && link_.place < place;
    }

    // The next attempt needs no pause, and later pauses begin with the shortest one again.
    void start_over() noexcept {
        policy_.start_over();
        changed_.notify_all();
    }

    // Ends the pause before the next attempt. Returns true if there was one.
    bool end_pause() noexcept {
        if (is_open() || !policy_.end_pause(Clock::now())) return false;
        changed_.notify_all();
        return true;
    }

    // Threads that wait for the connection give up.
    void refuse(Reply why) noexcept {
        policy_.refuse(std::move(why));
        changed_.notify_all();
    }

    // Returns true for the first reply of a connection.
    bool replied() noexcept { return policy_.replied(); }

    // The open connection. Its reading and its writing half belong to the threads that use them.
    Connection& connection() noexcept { return link_; }

    // Returns how many connections were made.
    std::uint64_t connections() const noexcept { return connections_.load(std::memory_order_acquire); }

private:
    // `opening`: the connection belongs to the thread that opens it. `failed`: it has ended, but a thread may still be
    // inside a read or write.
    enum class State { closed, opening, open, failed };

    void attempt(std::unique_lock<std::mutex>& lock, Instant deadline) {
        state_ = State::opening;
        link_.abandoned = false;
        const Instant begun = Clock::now();
        lock.unlock();
        std::optional<Reply> refusal = open_link(deadline);
        lock.lock();
        if (!refusal && link_.place < place_) {
            link_.socket.close();
            refusal = reply(Reply::Kind::not_sent, "", " has moved to another server");
        }
        if (refusal) {
            const Instant now = Clock::now();
            const bool was_short = now >= deadline && deadline < begun + timeout_;
            policy_.attempt_failed(*refusal, now, link_.abandoned || was_short);
        } else {
            connections_.fetch_add(1, std::memory_order_release);
            policy_.connected();
        }
        state_ = refusal ? State::closed : State::open;
        changed_.notify_all();
    }

    std::optional<Reply> open_link(Instant deadline) noexcept {
        try {
            auto refusal = connector_(link_, deadline);
            if (!refusal) link_.socket.set_receive_timeout(timeout_);
            return refusal;
        } catch (...) {  // no memory, or no thread for the look-up
            link_.socket.close();
            return Reply::of(Reply::Kind::not_sent, detail::no_memory);
        }
    }

    const Url url_;
    const Connector connector_;
    const Milliseconds timeout_;
    const Connecting connecting_;
    const std::function<bool()> has_substitute_;

    std::condition_variable changed_;
    Connection link_;
    std::atomic<State> state_{State::closed};
    ReconnectPolicy policy_;
    std::uint64_t place_ = 0;  // a connection to an earlier place is at the wrong server
    std::atomic<std::uint64_t> connections_{0};
    SideWork opening_aside_;  // last: it ends before the members it uses
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
