// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client.hpp"
#include "redlatch/lock/named_lock.hpp"

#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {

// Provides the same lock as a FairLock of that name, with its order, but its holder cannot acquire it again:
// NonReentrantLock says what that means. It is the counterpart of Redisson's non-reentrant fair lock.
class NonReentrantFairLock : public detail::NamedLock {
public:
    // Makes an object for the lock of this name. Throws Error(errc::invalid_argument) for a bad name or a bad option, as
    // RLock does. Sends nothing.
    NonReentrantFairLock(Client& client, std::string_view name, const ObjectOptions& options = {});
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/non_reentrant_fair_lock.ipp"
#endif
