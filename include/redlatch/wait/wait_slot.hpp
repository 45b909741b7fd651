// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/base/wait_on.hpp"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace redlatch {
inline namespace v0_1 {

// Where one waiting thread sleeps: in its own condition variable, or in the transport, to receive a message itself. The
// mutex of the local state that it waits in, which every call here holds, guards it.
class WaitSlot {
public:
    // The owner sleeps, until then or until it is roused.
    void sleep(std::unique_lock<std::mutex>& lock, Instant until) { wait_on(wake_, lock, until); }

    // The same where messages come in. False when this thread has to be told by another one.
    template <class Session>
    bool watch(std::unique_lock<std::mutex>& lock, Session& session, Instant until) {
        watching_ = true;
        // Who rouses from here on is not missed, though another thread may take the interrupt.
        const std::uint64_t seen = session.interrupts();
        lock.unlock();
        const bool watched = session.watch(until, seen);
        lock.lock();
        watching_ = false;
        return watched;
    }

    // Wakes the owner, wherever it sleeps.
    template <class Session>
    void rouse(Session& session) {
        wake_.notify_one();
        if (watching_ && thread_ != std::this_thread::get_id()) session.interrupt_watch();
    }

private:
    std::condition_variable wake_;
    bool watching_ = false;
    const std::thread::id thread_ = std::this_thread::get_id();
};

}  // namespace v0_1
}  // namespace redlatch
