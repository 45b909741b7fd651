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

// The lock of an RLock of that name, waited for by asking again and again instead of listening to messages. For
// servers where subscribing is not allowed or not wanted, and for locks that are held for a moment. A waiting process
// sends one command a pause, whatever the number of its waiting threads; a release wakes waiting RLocks too.
//
// In one process SpinLock and RLock objects of one name are the same lock, like two RLock objects.
template <class T = HiredisTransport>
class SpinLock : public NamedLock<SpinLock<T>, T, LockState<T, RLockProtocol>> {
public:
    // Throws Error(errc::invalid_argument) for a bad name, as RLock does, and for delays that are not positive or of
    // which the first is longer than the longest. Sends nothing.
    SpinLock(Client<T>& client, std::string_view name, SpinOptions options = {})
        : SpinLock::NamedLock(client.core(), name), polling_(polling_of(options, name)) {}

    bool acquire(LockRequest request) {
        request.polling = polling_;
        return SpinLock::NamedLock::acquire(request);
    }

private:
    const Polling polling_;
};

template <class T>
SpinLock(Client<T>&, std::string_view) -> SpinLock<T>;
template <class T>
SpinLock(Client<T>&, std::string_view, SpinOptions) -> SpinLock<T>;

}  // namespace v0_1
}  // namespace redlatch
