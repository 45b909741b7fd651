// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/task.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/wait/waiter.hpp"

#include <algorithm>
#include <mutex>
#include <optional>
#include <stop_token>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What a waiter does next.
struct NextStep {
    enum class Kind {
        served,  // it has what it wants
        leave,   // it stops waiting without that
        ask,     // it queries the server
        sleep,   // it sleeps until it is woken, but not beyond `until`
    };

    Kind kind;
    Instant until = never;
    bool receives = false;  // true if it should receive messages for this process while it sleeps
};

// Decides what the waiter does next, and lets a thread receive messages meanwhile. Sets `until` if it sleeps. Not a part
// of wait_loop(), because the variables there take memory for as long as a coroutine waits.
template <class Host, class Member, class Request>
NextStep::Kind next_step(std::unique_lock<std::mutex>& lock, Host& host, Member& me, const Request& request,
                         Instant& until) {
    for (bool may_receive = true;;) {
        const Instant now = Clock::now();
        const NextStep next = host.next(me, now);
        if (next.kind == NextStep::Kind::served) return next.kind;
        if (request.stop.stop_requested() || now >= request.deadline) return NextStep::Kind::leave;
        if (next.kind != NextStep::Kind::sleep) return next.kind;
        until = std::min(next.until, request.deadline);
        if (!next.receives || !may_receive) return next.kind;
        may_receive = me.slot.watch(lock, host.session(), until);
        // The state may have changed meanwhile.
    }
}

// Lets a caller wait until it is served: the only loop in which one waits for its turn, be it a thread or a coroutine.
// Returns false if the request's deadline passes, a stop is requested, or the host says that the waiter leaves.
//
// `host` defines the wait by these members. All but mutex(), session() and waiter() are called with the mutex held:
//   mutex()                     guards the waiters; free while the caller sleeps or asks
//   session()                   in which a thread may receive messages
//   waiter(request)             makes the waiter, a Member, which may be a reference
//   counted()                   an object that lives as long as the caller waits
//   first(lock, me, request)    a task before it waits: a result if that decides the call. Not every host has it
//   join(me), leave(lock, me)   it begins to wait, it ends
//   next(me, now)               the state machine of the waiter: it decides, without waiting, and throws if waiting cannot
//                               succeed
//   ask(lock, me, request)      a task that queries the server and applies the reply to `me` and perhaps to others
//
// All that a waiting coroutine needs is in this one frame. So 100,000 of them take little memory.
template <class Member, class Host, class Request>
Task<bool> wait_loop(Host host, const Request& request) {
    if (request.stop.stop_requested()) co_return false;
    Member me = host.waiter(request);
    // Constructed and destroyed without the mutex, which the callback locks.
    const std::stop_callback on_stop(request.stop, [&host, &me] {
        // A forked child has a copy of this callback, and of a mutex that may be locked there for ever.
        if constexpr (requires { host.session().is_of_this_process(); })
            if (!host.session().is_of_this_process()) return;
        const std::lock_guard lock(host.mutex());
        me.slot.wake(host.session());
    });
    std::unique_lock lock(host.mutex());
    if constexpr (requires { host.first(lock, me, request); }) {
        const std::optional<bool> decided = co_await host.first(lock, me, request);
        if (decided) co_return *decided;
    }
    [[maybe_unused]] const auto counted = host.counted();
    try {
        host.join(me);
        Instant until{};
        NextStep::Kind next = NextStep::Kind::sleep;
        for (;;) {
            next = next_step(lock, host, me, request, until);
            if (next == NextStep::Kind::ask) {
                me.phase = Waiter::Phase::asking;
                co_await host.ask(lock, me, request);
                // It may have been served, or have failed, meanwhile.
                if (me.phase == Waiter::Phase::asking) me.phase = Waiter::Phase::waiting;
            } else if (next == NextStep::Kind::sleep) {
                co_await me.slot.sleep(lock, until);
            } else {
                break;
            }
        }
        host.leave(lock, me);
        co_return next == NextStep::Kind::served;
    } catch (...) {
        if (!lock.owns_lock()) lock.lock();
        host.leave(lock, me);
        throw;
    }
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
