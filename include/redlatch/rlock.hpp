// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client.hpp"
#include "redlatch/lock/lock_state.hpp"
#include "redlatch/lock/named_lock.hpp"
#include "redlatch/protocol/rlock.hpp"

#include <string_view>

namespace redlatch {
inline namespace v0_1 {

// A reentrant lock of the whole fleet: one thread of one process holds it at a time, for as long as its lease is
// valid. What Redisson's RLock is in Java, and the same lock as an RLock of that name there.
//
// Two objects of one name are the same lock. Not fair: a releasing process may win again; FairLock keeps an order.
// Models Cpp17TimedLockable: use it with std::lock_guard, std::unique_lock, std::scoped_lock,
// std::condition_variable_any. Neither copied nor moved; any number of threads may use one object. Destroying the
// object while a thread waits in it is an error, as for std::mutex; destroying it while held is not: the hold goes
// on, and may be given back through another object of that name.
template <class T = HiredisTransport>
class RLock : public NamedLock<RLock<T>, T, LockState<T, RLockProtocol>> {
public:
    // Throws Error(errc::invalid_argument) for an empty name, one above 1,024 bytes, or braces that are not one
    // non-empty {tag}. Sends nothing.
    RLock(Client<T>& client, std::string_view name) : RLock::NamedLock(client.core(), name) {}
};

template <class T>
RLock(Client<T>&, std::string_view) -> RLock<T>;

}  // namespace v0_1
}  // namespace redlatch
