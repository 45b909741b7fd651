// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/lock/lock_api.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <memory>
#include <optional>
#include <stop_token>
#include <system_error>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Reaches the members of a lock that act for a given owner. They are not public: users hold locks as threads or
// by a Hold. MultiLock, RedLock and locks made of two sides hold their members for the owner that they are called for.
struct LockAccess {
    template <class Lock>
    static auto state(Lock& lock) -> decltype(lock.state()) {
        return lock.state();
    }
    static void prepare(LockApi& lock, LockRequest& request) { lock.prepare(request); }
    template <class Lock>
    static Reentry reentry(const Lock& lock) {
        return lock.reentry_;
    }
    template <class Lock>
    static const Settings& settings(Lock& lock) {
        return lock.settings();
    }
    static HoldKeeper& keeper(LockApi& lock) { return lock.keeper(); }
    static HeldLevel keeper_of_holds(LockApi& lock) { return lock.keeper_of_holds(); }
    static bool force_release(LockApi& lock, Instant limit = never) { return lock.force_release(limit); }
    static bool ask_locked(LockApi& lock, Instant limit = never) { return lock.ask_locked(limit); }
    static int ask_hold_count(LockApi& lock, OwnerNumber owner, Instant limit = never) {
        return lock.ask_hold_count(owner, limit);
    }
    template <class Lock>
    static auto ask_inspection(Lock& lock, Instant limit) -> decltype(lock.ask_inspection(limit)) {
        return lock.ask_inspection(limit);
    }
    static std::optional<Milliseconds> ask_remaining_lease(LockApi& lock, Instant limit = never) {
        return lock.ask_remaining_lease(limit);
    }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
