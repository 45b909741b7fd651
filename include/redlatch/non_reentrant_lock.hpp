// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client.hpp"
#include "redlatch/lock/named_lock.hpp"

#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {

// Provides the same lock as an RLock of that name, but its holder cannot acquire it again. Use it where a nested lock() is
// a mistake that should show at once. It is the counterpart of Redisson's non-reentrant lock.
//
// For the owner that holds the lock, by default the calling thread, lock() and all calls that would wait throw
// Error(errc::would_deadlock), try_lock() returns false, and Hold::again() throws. Neither sends a command. A lost hold
// does not count: its owner may acquire the lock again like any other.
//
// In one process, NonReentrantLock and RLock objects with the same name are the same lock, like two RLock objects. So it
// does not matter through which of them the owner acquired it. What an object refuses is up to that object: an RLock adds
// levels, also to a hold that was acquired here. Everything else is as with an RLock.
class NonReentrantLock : public detail::NamedLock {
public:
    // Makes an object for the lock of this name. Throws Error(errc::invalid_argument) for a bad name or a bad option, as
    // RLock does. Sends nothing.
    NonReentrantLock(Client& client, std::string_view name, const ObjectOptions& options = {});
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/non_reentrant_lock.ipp"
#endif
