// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client.hpp"
#include "redlatch/lock/lock_state.hpp"
#include "redlatch/lock/named_lock.hpp"
#include "redlatch/protocol/rlock.hpp"

#include <string_view>

namespace redlatch {
inline namespace v0_1 {

// Provides a reentrant distributed lock: one thread of one process holds it at a time, for as long as its lease is
// valid. It is the counterpart of Redisson's RLock and the same lock as an RLock of that name there.
//
// Two objects with the same name are the same lock. It is not fair: the process that releases it may acquire it again
// first. FairLock keeps an order. Models Cpp17TimedLockable: use it with std::lock_guard, std::unique_lock,
// std::scoped_lock, std::condition_variable_any. Neither copyable nor movable. Any number of threads may use one
// object. Destroying the object while a thread waits in it is an error, as for std::mutex. Destroying it while the lock
// is held is not: the hold goes on, and another object with that name can release it.
template <class T>
class BasicRLock : public detail::NamedLock<BasicRLock<T>, T, detail::LockState<T, detail::RLockProtocol>> {
public:
    // Throws Error(errc::invalid_argument) if the name is empty, is longer than 1,024 bytes, or has braces other than
    // one non-empty {tag}. Sends nothing.
    BasicRLock(BasicClient<T>& client, std::string_view name) : BasicRLock::NamedLock(client.core(), name) {}
};

template <class T>
BasicRLock(BasicClient<T>&, std::string_view) -> BasicRLock<T>;

using RLock = BasicRLock<HiredisTransport>;

}  // namespace v0_1
}  // namespace redlatch
