// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/rlock.ipp"
#include "redlatch/spin_lock.hpp"

#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {

REDLATCH_INLINE SpinLock::SpinLock(Client& client, std::string_view name, SpinOptions options, const ObjectOptions& own)
    : NamedLock(detail::ClientAccess::session(client), detail::rlock_maker, name, own),
      polling_(detail::polling_of(options, name)) {}

REDLATCH_INLINE void SpinLock::prepare(detail::LockRequest& request) {
    NamedLock::prepare(request);
    request.polling = polling_;
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
