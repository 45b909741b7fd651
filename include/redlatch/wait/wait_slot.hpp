// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/base/wait_on.hpp"
#include "redlatch/session/continuations.hpp"

#include <condition_variable>
#include <coroutine>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Stands in for the session where a waiting thread receives no messages.
struct NoReceiver {
    static std::uint64_t interrupts() { return 0; }
    static bool watch(Instant, std::uint64_t) { return false; }
    static void interrupt_watch() {}
};

// Lets one waiter sleep: a thread in its own condition variable, or in the transport, where it receives messages itself;
// a coroutine among the continuations. Guarded by the mutex of the local state that the waiter waits in; every caller
// here holds it.
class WaitSlot {
public:
    explicit WaitSlot(WaitBy by) : by_(by) {}

    // Puts a thread to sleep in the transport until the instant or until woken. Returns false if it cannot receive
    // messages there: another thread does so, or the waiter is a coroutine.
    template <class Session>
    bool watch(std::unique_lock<std::mutex>& lock, Session& session, Instant until) {
        if (by_) return false;
        Thread& thread = this->thread();
        thread.watching = true;
        // A wake-up from here on is not missed, even if another thread takes the interrupt.
        const std::uint64_t seen = session.interrupts();
        lock.unlock();
        const bool watched = session.watch(until, seen);
        lock.lock();
        thread.watching = false;
        return watched;
    }

    // Wakes the waiter, wherever it sleeps.
    void wake() {
        NoReceiver none;
        wake(none);
    }
    template <class Session>
    void wake(Session& session) {
        if (by_) return by_->wake(sleeper_);
        if (!thread_) return;  // it has not slept yet, and decides anew before it does
        thread_->wake.notify_one();
        // Also if it is this thread, which has received its own message.
        if (thread_->watching) session.interrupt_watch();
    }

    // Awaited, puts the waiter to sleep until the instant or until woken. Releases the mutex meanwhile.
    class [[nodiscard]] Sleep {
    public:
        Sleep(WaitSlot& slot, std::unique_lock<std::mutex>& lock, Instant until)
            : slot_(slot), lock_(lock), until_(until) {}

        bool await_ready() {
            if (slot_.by_) return false;
            wait_on(slot_.thread().wake, lock_, until_);
            return true;
        }

        [[gnu::noinline]] bool await_suspend(std::coroutine_handle<> coroutine) {
            std::mutex& mutex = *(mutex_ = lock_.release());
            // This object may be gone once the mutex is free.
            std::unique_lock held(mutex, std::adopt_lock);
            try {
                if (slot_.by_->sleep(slot_.sleeper_, coroutine, until_)) return true;
            } catch (...) {
                stay(held);
                throw;
            }
            stay(held);
            return false;
        }

        void await_resume() {
            if (mutex_) lock_ = std::unique_lock(*mutex_);
        }

    private:
        void stay(std::unique_lock<std::mutex>& held) noexcept {
            lock_ = std::move(held);
            mutex_ = nullptr;
        }

        WaitSlot& slot_;
        std::unique_lock<std::mutex>& lock_;
        const Instant until_;
        std::mutex* mutex_ = nullptr;  // set while it is free
    };

    Sleep sleep(std::unique_lock<std::mutex>& lock, Instant until) { return Sleep(*this, lock, until); }

private:
    // How a thread sleeps. A coroutine does without, because there may be very many.
    struct Thread {
        std::condition_variable wake;
        bool watching = false;
    };

    Thread& thread() {
        if (!thread_) thread_ = std::make_unique<Thread>();
        return *thread_;
    }

    const WaitBy by_;
    std::unique_ptr<Thread> thread_;  // null before the first sleep
    Sleeper sleeper_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
