// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/task.hpp"
#include "redlatch/session/background_task.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/wait/subscription.hpp"
#include "redlatch/wait/wait_loop.hpp"

#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Where the callers of this process wait for one name: their queue, and the channel whose messages wake them.
//
// `mutex`, that of the state that the room belongs to, guards all members. Each waiter sleeps in its own slot. The
// representative, if it is a thread, sleeps in the transport where possible (not in a cluster), so that it receives the
// message itself. These wake a waiter:
//   the caller that serves it,
//   any change of state, if it is the representative: a message (received by itself or by the background thread), a
//     releasing thread, a representative that leaves,
//   the instant at which its next query is due, such as the end of the lease that it saw, and its deadline,
//   its stop token.
template <class Queue>
class WaitingRoom {
public:
    using Member = typename Queue::Member;

    // The arguments are those of Subscription.
    WaitingRoom(std::mutex& mutex, Session& session, BackgroundTask& listener, std::string channel,
                bool own_waiter = false)
        : mutex_(mutex), session_(session), subscription_(session, listener, std::move(channel), own_waiter) {}

    WaitingRoom(const WaitingRoom&) = delete;
    WaitingRoom& operator=(const WaitingRoom&) = delete;

    Queue queue;

    const std::string& channel() const noexcept { return subscription_.channel(); }

    // Returns true if the server confirmed the subscription, so messages arrive.
    bool is_subscribed() const noexcept { return subscription_.is_confirmed(); }

    // Returns true if a waiting thread may receive them itself.
    bool is_receivable() const noexcept { return subscription_.is_receivable(); }

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
        subscription_.confirmed();
        notify();
    }

    void disconnected() { subscription_.disconnected(); }

    // Fails the waiters that need messages.
    void refused(const Error& why) {
        subscription_.refused();
        while (Member* member = queue.first_that([](const Member& m) { return m.listens; })) {
            member->fail(std::make_exception_ptr(why));
            wake(*member);
            queue.leave(*member);
        }
        notify();
    }

    // --- waiting ----------------------------------------------------------------------------------------------

    // Lets a caller wait in the queue. Returns true if it is served, false if it leaves without that; throws if it cannot
    // be served. Called without the mutex. The host is called with it:
    //   first()            before it joins the queue: see wait_loop()
    //   joined(me)         it has joined the queue
    //   next(), ask()      see wait_loop()
    //   left(lock, me)     it has left the queue
    // The first form makes the waiter from the request. The second is for a waiter that the caller has made, and has no
    // first().
    template <class Host, class Request>
    Task<bool> wait(Host& host, const Request& request) {
        return wait_loop<Member>(NewVisit<Host>{{*this, host}}, request);
    }
    template <class Host, class Request>
    Task<bool> wait(Host& host, Member& me, const Request& request) {
        return wait_loop<Member&>(VisitOf<Host>{{*this, host}, me}, request);
    }

    // Subscribes to the channel for as long as there are waiters.
    void listen() {
        if (subscription_.listen()) queue.notify();
    }

    // Returns true if it listens, also while the server has not confirmed the subscription.
    bool is_listening() const noexcept { return subscription_.is_wanted(); }

    // Ends the subscription while there are waiters: they have other means.
    void stop_listening() { subscription_.stop(); }

private:
    // A host in this room, for wait_loop().
    template <class Host>
    struct Visit {
        std::mutex& mutex() const noexcept { return room.mutex_; }
        Session& session() const noexcept { return room.session_; }
        auto counted() const { return room.session_.count_wait(); }
        void join(Member& me) const {
            room.queue.join(me);
            host.joined(me);
        }
        void leave(std::unique_lock<std::mutex>& lock, Member& me) const { room.leave(lock, host, me); }
        NextStep next(Member& me, Instant now) const { return host.next(me, now); }
        template <class Request>
        Task<void> ask(std::unique_lock<std::mutex>& lock, Member& me, const Request& request) const {
            return host.ask(lock, me, request);
        }

        WaitingRoom& room;
        Host& host;
    };

    template <class Host>
    struct NewVisit : Visit<Host> {
        template <class Request>
        Member waiter(const Request& request) const {
            return Member(request);
        }
        template <class Request>
        Task<std::optional<bool>> first(std::unique_lock<std::mutex>& lock, Member& me, const Request& request) const {
            return this->host.first(lock, me, request);
        }
    };

    template <class Host>
    struct VisitOf : Visit<Host> {
        template <class Request>
        Member& waiter(const Request&) const {
            return me;
        }

        Member& me;
    };

    // Removes the waiter from the queue. If it was the representative, wakes the next one, which decides what to do.
    template <class Host>
    void leave(std::unique_lock<std::mutex>& lock, Host& host, Member& me) {
        const bool was_front = queue.is_front(me);
        queue.leave(me);
        if (queue.empty()) {
            subscription_.stop();
        } else if (was_front) {
            wake_front();
        }
        host.left(lock, me);
    }

    std::mutex& mutex_;
    Session& session_;
    Subscription subscription_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
