// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client.hpp"
#include "redlatch/lock/named_lock.hpp"

#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {

// Provides a reentrant distributed lock: one thread of one process holds it at a time, for as long as its lease is
// valid. It is the counterpart of Redisson's RLock and the same lock as an RLock of that name there.
//
// Two objects with the same name are the same lock. It is not fair: the process that releases it may acquire it again
// first. FairLock keeps an order. Models Cpp17TimedLockable: use it with std::lock_guard, std::unique_lock,
// std::scoped_lock, std::condition_variable_any. Neither copyable nor movable. Any number of threads may use one
// object. Destroying the object while a thread waits in it is an error, as for std::mutex. Destroying it while the lock
// is held is not: the hold goes on, and another object with that name can release it.
class RLock : public detail::NamedLock {
public:
    // Makes an object for the lock of this name. Throws Error(errc::invalid_argument) if the name is empty, is longer
    // than 1,024 bytes, or has braces other than one non-empty {tag}, and for options that cannot work: see
    // ObjectOptions. Sends nothing.
    RLock(Client& client, std::string_view name, const ObjectOptions& options = {});
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/rlock.ipp"
#endif
