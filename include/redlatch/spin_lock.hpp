// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client.hpp"
#include "redlatch/lock/lock_state.hpp"
#include "redlatch/lock/named_lock.hpp"
#include "redlatch/lock/spin_options.hpp"
#include "redlatch/protocol/rlock.hpp"

#include <string_view>

namespace redlatch {
inline namespace v0_1 {

// Provides the same lock as an RLock of that name, but waits by polling instead of subscribing. Use it for servers
// where subscribing is not allowed or not wanted, and for locks that are held only briefly. A waiting process sends one
// command per pause, however many of its threads wait. A release wakes waiting RLocks, too.
//
// In one process, SpinLock and RLock objects with the same name are the same lock, like two RLock objects.
template <class T>
class BasicSpinLock : public detail::NamedLock<BasicSpinLock<T>, T, detail::LockState<T, detail::RLockProtocol>> {
public:
    // Throws Error(errc::invalid_argument) for a bad name, as RLock does, and for delays that are not positive or whose
    // first is longer than the longest. Sends nothing.
    BasicSpinLock(BasicClient<T>& client, std::string_view name, SpinOptions options = {})
        : BasicSpinLock::NamedLock(client.core(), name), polling_(polling_of(options, name)) {}

private:
    friend class detail::LockApi<BasicSpinLock>;
    friend struct detail::LockAccess;

    bool acquire(detail::LockRequest request) {
        request.polling = polling_;
        return BasicSpinLock::NamedLock::acquire(request);
    }

    const detail::Polling polling_;
};

template <class T>
BasicSpinLock(BasicClient<T>&, std::string_view) -> BasicSpinLock<T>;
template <class T>
BasicSpinLock(BasicClient<T>&, std::string_view, SpinOptions) -> BasicSpinLock<T>;

using SpinLock = BasicSpinLock<HiredisTransport>;

}  // namespace v0_1
}  // namespace redlatch
