// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/wait/lock_request.hpp"

namespace redlatch {
inline namespace v0_1 {
namespace detail {

// Reaches the members of a lock that act for a given owner. They are not public: users hold locks as threads. MultiLock,
// RedLock and locks made of two sides hold their members for the owner that they are called for.
struct LockAccess {
    template <class Lock>
    static auto state(Lock& lock) -> decltype(lock.state()) {
        return lock.state();
    }
    template <class Lock>
    static bool acquire(Lock& lock, const LockRequest& request) {
        return lock.acquire(request);
    }
    template <class Lock>
    static auto release(Lock& lock, OwnerNumber owner) {
        return lock.release(owner);
    }
    template <class Lock>
    static auto valid_until(Lock& lock, OwnerNumber owner) {
        return lock.valid_until_of(owner);
    }
    template <class Lock>
    static auto lost(Lock& lock, OwnerNumber owner) {
        return lock.lost_of(owner);
    }
    template <class Lock>
    static bool force_release(Lock& lock, Instant limit = never) {
        return lock.force_release(limit);
    }
    template <class Lock>
    static bool ask_locked(Lock& lock, Instant limit = never) {
        return lock.ask_locked(limit);
    }
    template <class Lock>
    static int ask_hold_count(Lock& lock, OwnerNumber owner, Instant limit = never) {
        return lock.ask_hold_count(owner, limit);
    }
    template <class Lock>
    static auto ask_remaining_lease(Lock& lock, Instant limit = never) {
        return lock.ask_remaining_lease(limit);
    }
};

}  // namespace detail
}  // namespace v0_1
}  // namespace redlatch
