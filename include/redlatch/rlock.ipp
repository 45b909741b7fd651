// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/lock/lock_state.hpp"
#include "redlatch/protocol/rlock.hpp"
#include "redlatch/rlock.hpp"
#include "redlatch/session/named_state.hpp"

#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
inline constexpr StateMaker rlock_maker{RLockProtocol::lock_kind.name, LockState::make<RLockProtocol>};
}  // namespace detail

REDLATCH_INLINE RLock::RLock(Client& client, std::string_view name, const ObjectOptions& options)
    : NamedLock(detail::ClientAccess::session(client), detail::rlock_maker, name, options) {}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
