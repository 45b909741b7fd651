// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/non_reentrant_lock.hpp"
#include "redlatch/rlock.ipp"
#include "redlatch/wait/lock_request.hpp"

#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {

REDLATCH_INLINE NonReentrantLock::NonReentrantLock(Client& client, std::string_view name, const ObjectOptions& options)
    : NamedLock(detail::ClientAccess::session(client), detail::rlock_maker, name, options, detail::Reentry::refused) {}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
