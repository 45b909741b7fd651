// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/fair_lock.hpp"
#include "redlatch/lock/lock_state.hpp"
#include "redlatch/lock/server_queue.hpp"
#include "redlatch/protocol/fair_lock.hpp"
#include "redlatch/session/named_state.hpp"

#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
inline constexpr StateMaker fair_maker{FairProtocol::lock_kind.name, LockState::make<FairProtocol, ServerQueue>};
}  // namespace detail

REDLATCH_INLINE FairLock::FairLock(Client& client, std::string_view name, const ObjectOptions& options)
    : NamedLock(detail::ClientAccess::session(client), detail::fair_maker, name, options) {}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
