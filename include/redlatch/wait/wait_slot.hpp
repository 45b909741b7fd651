// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/base/wait_on.hpp"

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Stands in for the session where a waiting thread receives no messages.
struct NoReceiver {
    static std::uint64_t interrupts() { return 0; }
    static bool watch(Instant, std::uint64_t) { return false; }
    static void interrupt_watch() {}
};

// Lets one waiting thread sleep: in its own condition variable, or in the transport, where it receives messages itself.
// Guarded by the mutex of the local state that the thread waits in; every caller here holds it.
class WaitSlot {
public:
    // Puts the owner to sleep until the instant or until woken.
    void sleep(std::unique_lock<std::mutex>& lock, Instant until) { wait_on(wake_, lock, until); }

    // Does the same in the transport, where messages arrive. Returns false if another thread has to receive them.
    template <class Session>
    bool watch(std::unique_lock<std::mutex>& lock, Session& session, Instant until) {
        watching_ = true;
        // A wake-up from here on is not missed, even if another thread takes the interrupt.
        const std::uint64_t seen = session.interrupts();
        lock.unlock();
        const bool watched = session.watch(until, seen);
        lock.lock();
        watching_ = false;
        return watched;
    }

    // Wakes the owner, in either place.
    template <class Session>
    void wake(Session& session) {
        wake_.notify_one();
        if (watching_ && thread_ != std::this_thread::get_id()) session.interrupt_watch();
    }

private:
    std::condition_variable wake_;
    bool watching_ = false;
    const std::thread::id thread_ = std::this_thread::get_id();
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
