// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/client.hpp"
#include "redlatch/lock/named_lock.hpp"
#include "redlatch/lock/spin_options.hpp"

#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {

// Provides the same lock as an RLock of that name, but waits without a message of its release. Use it where other
// programs release the lock without one, where subscribing to the lock's channel is not allowed or not wanted, and for
// locks that are held only briefly. A waiting process asks the server to tell it when the key changes: see SpinOptions.
// Where the server cannot, it sends one command per pause, however many of its threads wait. A release wakes waiting
// RLocks, too.
//
// In one process, SpinLock and RLock objects with the same name are the same lock, like two RLock objects.
class SpinLock : public detail::NamedLock {
public:
    // Makes an object for the lock of this name. Throws Error(errc::invalid_argument) for a bad name or a bad option of its
    // own, as RLock does, and for delays that are not positive or whose first is longer than the longest. Sends nothing.
    SpinLock(Client& client, std::string_view name, SpinOptions options = {}, const ObjectOptions& own = {});

private:
    REDLATCH_INLINE void prepare(detail::LockRequest& request) override;

    const detail::Polling polling_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/spin_lock.ipp"
#endif
