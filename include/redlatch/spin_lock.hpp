// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client.hpp"
#include "redlatch/client/bound_lock.hpp"
#include "redlatch/client/lock_state.hpp"
#include "redlatch/client/rlock_wire.hpp"
#include "redlatch/core/error.hpp"

#include <chrono>
#include <string_view>

namespace redlatch {

// How a SpinLock waits: pauses that begin with initial_delay and double up to max_delay, each shortened at random by
// up to a half, so that waiters do not come together.
struct SpinOptions {
    std::chrono::milliseconds initial_delay{1};
    std::chrono::milliseconds max_delay{128};
};

// The lock of an RLock of that name, waited for by asking again and again instead of listening to messages. For
// servers where subscribing is not allowed or not wanted, and for locks that are held for a moment. A waiting process
// sends one command a pause, whatever the number of its waiting threads; a release wakes waiting RLocks too.
//
// In one process SpinLock and RLock objects of one name are the same lock, like two RLock objects.
template <class T = HiredisTransport>
class SpinLock : public BoundLock<SpinLock<T>, T, LockState<T, RLockWire>> {
public:
    // Throws Error(errc::invalid_argument) for a bad name, as RLock does, and for delays that are not positive or of
    // which the first is longer than the longest. Sends nothing.
    SpinLock(Client<T>& client, std::string_view name, SpinOptions options = {})
        : SpinLock::BoundLock(client.core(), name), options_(options) {
        if (options.initial_delay < Milliseconds(1) || options.max_delay < options.initial_delay ||
            options.max_delay > std::chrono::hours(1))
            throw Error(errc::invalid_argument, name,
                        "the delays of a SpinLock must be from 1 ms to 1 h, initial_delay not above max_delay");
    }

    bool acquire(LockRequest request) {
        request.polling = Polling{options_.initial_delay, options_.max_delay};
        return SpinLock::BoundLock::acquire(request);
    }

private:
    SpinOptions options_;
};

template <class T>
SpinLock(Client<T>&, std::string_view) -> SpinLock<T>;
template <class T>
SpinLock(Client<T>&, std::string_view, SpinOptions) -> SpinLock<T>;

}  // namespace redlatch
