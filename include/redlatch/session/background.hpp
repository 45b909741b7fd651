// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/thread.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/session/background_task.hpp"
#include "redlatch/session/continuations.hpp"
#include "redlatch/session/executor.hpp"
#include "redlatch/session/subscriptions.hpp"
#include "redlatch/session/timers.hpp"
#include "redlatch/session/tracked_keys.hpp"
#include "redlatch/session/watchdog.hpp"
#include "redlatch/transport/transport.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The background thread of a session. It starts with the first try, wait or posted command. It runs the transport,
// serves the timers, sends renewals and resumes coroutines of ours. It never waits for a reply or a connection, and never
// calls user code. Timers, continuations, subscriptions and the executor wake it through the transport.
//
// mutex_ guards the start of the thread. No thread waits here but the one in end().
class Background {
public:
    Background(Executor& executor, Watchdog& watchdog, Timers& timers, Continuations& continuations,
               Subscriptions& subscriptions, TrackedKeys& tracked, Listener& listener)
        : executor_(executor),
          transport_(executor.transport()),
          watchdog_(watchdog),
          timers_(timers),
          continuations_(continuations),
          subscriptions_(subscriptions),
          tracked_(tracked),
          listener_(listener) {}
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;

    void start() {
        if (started_.load(std::memory_order_acquire)) return;
        const std::lock_guard lock(mutex_);
        if (thread_.joinable()) return;
        thread_ = thread_with_signals_blocked([this] { serve(); });
        started_.store(true, std::memory_order_release);
    }

    // Waits for the thread, which Executor::end() has ended. A silent server can delay it by one command_timeout.
    void end() {
        if (thread_.joinable()) thread_.join();
    }

    // Makes the calling thread receive messages itself, for all, until interrupts() differs from `seen`, or `until` has
    // come. Returns false if it has to leave that to the background thread. Messages and the news of tracked keys come on
    // two connections. The thread reads the second one if tracked keys are all that anybody waits for.
    bool watch(Instant until, std::uint64_t seen) {
        const bool watched = subscriptions_.active() == 0 && tracked_.count() > 0
                                 ? transport_.watch_invalidations(listener_, until, seen)
                                 : transport_.watch(listener_, until, seen);
        if (watched && subscriptions_.active() + tracked_.count() > 1) transport_.wake();
        return watched;
    }

    // Read it before unlocking the mutex under which interrupt_watch() is called.
    std::uint64_t interrupts() { return transport_.interrupts(); }

    void interrupt_watch() { transport_.interrupt_watch(); }

private:
    void serve() {
        while (!executor_.has_ended()) {
            try {
                transport_.run(listener_, std::min({timers_.sleep_until(), continuations_.sleep_until(),
                                                    subscriptions_.due(), unfinished_until_}));
                look_after(Clock::now());
                continuations_.resume_due(Clock::now());
            } catch (...) {
                // Out of memory: the tasks left in unfinished_ are served in a moment.
                unfinished_until_ = Clock::now() + Milliseconds(5);
            }
        }
    }

    void look_after(Instant now) {
        std::vector<Renewal> due;
        try {
            serve_due(now, now, due);
            if (!due.empty()) serve_due(now, now + Watchdog::early(due), due);
        } catch (...) {
            watchdog_.renew(std::move(due));
            throw;
        }
        if (!due.empty()) watchdog_.renew(std::move(due));
        unfinished_until_ = never;
        subscriptions_.sweep(now);
    }

    // Tasks that could not be served for lack of memory stay in unfinished_.
    void serve_due(Instant now, Instant horizon, std::vector<Renewal>& due) {
        if (unfinished_.empty()) unfinished_ = timers_.take_due(horizon);
        for (; !unfinished_.empty(); unfinished_.pop_back()) unfinished_.back()->on_timer(now, horizon, due);
    }

    Executor& executor_;
    TransportPort& transport_;
    Watchdog& watchdog_;
    Timers& timers_;
    Continuations& continuations_;
    Subscriptions& subscriptions_;
    TrackedKeys& tracked_;
    Listener& listener_;
    std::mutex mutex_;
    std::atomic<bool> started_{false};
    // Used by the thread only: the tasks that are still to be served, and the latest time for that.
    std::vector<std::shared_ptr<BackgroundTask>> unfinished_;
    Instant unfinished_until_ = never;
    std::thread thread_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
