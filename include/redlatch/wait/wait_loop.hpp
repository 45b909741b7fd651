// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/task.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/wait/waiter.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

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

// Waits until `me` is served: the only loop in which a caller waits for its turn, be it a thread or a coroutine. Returns
// false if the request's deadline passes, a stop is requested, or the host says that `me` leaves. `lock` holds the mutex
// that guards the waiters; it is free while the caller sleeps or asks.
//
// `host.next(me, now)` is the state machine of the waiter: it decides, without waiting, and throws if waiting cannot
// succeed. `host.ask(lock, me, request)` is a task that queries the server and applies the reply to `me` and perhaps to
// others.
template <class Session, class Host, class Member, class Request>
Task<bool> wait_loop(std::unique_lock<std::mutex>& lock, Session& session, Host& host, Member& me,
                     const Request& request) {
    bool may_receive = true;
    for (;;) {
        const Instant now = Clock::now();
        const NextStep next = host.next(me, now);
        if (next.kind == NextStep::Kind::served) co_return true;
        if (next.kind == NextStep::Kind::leave || request.stop.stop_requested() || now >= request.deadline)
            co_return false;
        if (next.kind == NextStep::Kind::ask) {
            me.phase = Waiter::Phase::asking;
            co_await host.ask(lock, me, request);
            // It may have been served, or have failed, meanwhile.
            if (me.phase == Waiter::Phase::asking) me.phase = Waiter::Phase::waiting;
            continue;
        }
        const Instant until = std::min(next.until, request.deadline);
        if (next.receives && std::exchange(may_receive, false)) {
            may_receive = me.slot.watch(lock, session, until);
            continue;  // the state may have changed meanwhile
        }
        may_receive = true;
        co_await me.slot.sleep(lock, until);
    }
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
