// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client.hpp"
#include "redlatch/lock/fair_lock_state.hpp"
#include "redlatch/lock/named_lock.hpp"

#include <string_view>

namespace redlatch {
inline namespace v0_1 {

// A reentrant lock that serves its waiters strictly in the order in which they came, over threads, processes, hosts
// and languages: what Redisson's fair lock is in Java, and the same queue as one of that name there.
//
// The order is the one in which the first tries of waiting calls reached the server; try_lock() does not queue up and
// never passes a waiter. A waiter that dies, is frozen or cannot reach the server loses its place after a few
// seconds (a sixth of ClientOptions::watchdog_timeout, at most 5 s), and one that comes back queues up again at the
// end: the order is that of the living. Each waiting thread of this kind listens to a channel of its own, and every
// process with waiters sends one command in a third of those seconds: use RLock where the order does not matter.
//
// Two objects of one name are the same lock. An RLock of that name is excluded, too, but knows nothing of the queue; in
// the process that holds one of them the other is refused (errc::wrong_type).
// Models Cpp17TimedLockable. Neither copied nor moved; any number of threads may use one object. Destroying the object
// while a thread waits in it is an error, as for std::mutex; destroying it while held is not.
template <class T = HiredisTransport>
class FairLock : public NamedLock<FairLock<T>, T, FairLockState<T>> {
public:
    // Throws Error(errc::invalid_argument) for an empty name, one above 1,024 bytes, or braces that are not one
    // non-empty {tag}. Sends nothing.
    FairLock(Client<T>& client, std::string_view name) : FairLock::NamedLock(client.core(), name) {}
};

template <class T>
FairLock(Client<T>&, std::string_view) -> FairLock<T>;

}  // namespace v0_1
}  // namespace redlatch
