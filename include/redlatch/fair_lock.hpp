// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client.hpp"
#include "redlatch/lock/named_lock.hpp"

#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {

// Provides a reentrant distributed lock that serves its waiters strictly in order of arrival, across threads,
// processes, hosts and languages. It is the counterpart of Redisson's fair lock and shares the queue with one of the
// same name.
//
// The order is the one in which the first attempts of waiting calls reached the server. try_lock() does not queue up
// and never passes a waiter. A waiter that dies, freezes or cannot reach the server loses its place after
// ClientOptions::fair_waiter_timeout (5 s by default). If it comes back, it queues up at the end. Each waiting thread
// subscribes to a channel of its own. Each process with waiters sends one command every third of that time. Use RLock
// where the order does not matter.
//
// Two objects with the same name are the same lock. An RLock with that name excludes it as well, but ignores the queue.
// In a process that holds one of the two, the other is refused with errc::wrong_type. Models Cpp17TimedLockable.
// Neither copyable nor movable. Any number of threads may use one object. Destroying the object while a thread waits in
// it is an error, as for std::mutex; destroying it while the lock is held is not.
class FairLock : public detail::NamedLock {
public:
    // Makes an object for the lock of this name. Throws Error(errc::invalid_argument) if the name is empty, is longer
    // than 1,024 bytes, or has braces other than one non-empty {tag}, and for options that cannot work: see
    // ObjectOptions. Sends nothing.
    FairLock(Client& client, std::string_view name, const ObjectOptions& options = {});
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/fair_lock.ipp"
#endif
