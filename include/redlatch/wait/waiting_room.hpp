// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/task.hpp"
#include "redlatch/session/background_task.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/wait/wait_loop.hpp"

#include <exception>
#include <mutex>
#include <stop_token>
#include <string>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Where the callers of this process wait for one name: their queue, and the channel whose messages wake them.
//
// The mutex of the state that the room belongs to guards all members. Each waiter sleeps in its own slot; the
// representative, if it is a thread, sleeps in the transport where possible (not in a cluster), to receive the message
// itself. A waiter is
// woken by
//   the caller that serves it,
//   any change of state, if it is the representative: a message (received by itself or by the background thread), a
//     releasing thread, a representative that leaves,
//   the instant at which its next query is due, such as the end of the lease that it saw, and its deadline,
//   its stop token.
template <class Queue>
class WaitingRoom {
public:
    using Member = typename Queue::Member;

    // `listener` receives the messages of `channel`, and forwards them.
    WaitingRoom(Session& session, BackgroundTask& listener, std::string channel)
        : session_(session), listener_(listener), channel_(std::move(channel)) {}

    WaitingRoom(const WaitingRoom&) = delete;
    WaitingRoom& operator=(const WaitingRoom&) = delete;
    ~WaitingRoom() { session_.subscriptions().remove(channel_, listener_); }

    Queue queue;

    const std::string& channel() const noexcept { return channel_; }

    // Returns true if the server confirmed the subscription, so messages arrive.
    bool is_subscribed() const noexcept { return subscribed_; }

    void wake(Member& member) { member.slot.wake(session_); }

    void wake_front() {
        if (Member* front = queue.front()) wake(*front);
    }

    // The state may have changed: the representative asks again.
    void notify() {
        queue.notify();
        wake_front();
    }

    // --- events of the channel --------------------------------------------------------------------------------

    void subscribed() {
        subscribed_ = true;
        notify();
    }

    void disconnected() { subscribed_ = false; }

    // Fails the waiters that need messages.
    void refused(const Error& why) {
        subscribed_ = false;
        listening_ = false;
        while (Member* member = queue.first_that([](const Member& m) { return m.listens; })) {
            member->fail(std::make_exception_ptr(why));
            wake(*member);
            queue.leave(*member);
        }
        notify();
    }

    // --- waiting ----------------------------------------------------------------------------------------------

    // Lets `me` wait in the queue. Returns true if it is served, false if it leaves without that; throws if it cannot
    // be served. Called without `mutex`, the mutex of the state. The host is called with it:
    //   joined(me)         it has joined the queue
    //   next(), ask()      see wait_loop()
    //   left(lock, me)     it has left the queue
    template <class Host, class Request>
    Task<bool> wait(std::mutex& mutex, Host& host, Member& me, const Request& request) {
        // Constructed and destroyed without the mutex, which the callback locks.
        const std::stop_callback on_stop(request.stop, [this, &mutex, &me] {
            const std::lock_guard lock(mutex);
            wake(me);
        });
        std::unique_lock lock(mutex);
        try {
            queue.join(me);
            host.joined(me);
            const bool served = co_await wait_loop(lock, session_, host, me, request);
            leave(lock, host, me);
            co_return served;
        } catch (...) {
            if (!lock.owns_lock()) lock.lock();
            leave(lock, host, me);
            throw;
        }
    }

    // Subscribes to the channel for as long as there are waiters.
    void listen() {
        if (listening_) return;
        session_.start_background();
        const bool listened = subscribed_;
        subscribed_ = session_.subscriptions().acquire(channel_, listener_);
        listening_ = true;
        // Another state of this client is already subscribed to this channel. A message since the last query reached
        // only that state.
        if (subscribed_ && !listened) queue.notify();
    }

private:
    // Removes the waiter from the queue. If it was the representative, wakes the next one, which decides what to do.
    template <class Host>
    void leave(std::unique_lock<std::mutex>& lock, Host& host, Member& me) {
        const bool was_front = queue.is_front(me);
        queue.leave(me);
        if (queue.empty()) {
            if (std::exchange(listening_, false)) session_.subscriptions().release(channel_, listener_);
        } else if (was_front) {
            wake_front();
        }
        host.left(lock, me);
    }

    Session& session_;
    BackgroundTask& listener_;
    const std::string channel_;
    bool listening_ = false;  // True while it wants messages
    bool subscribed_ = false;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
