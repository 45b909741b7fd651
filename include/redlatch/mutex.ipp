// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/lock/lock_state.hpp"
#include "redlatch/mutex.hpp"
#include "redlatch/protocol/lock_queries.hpp"
#include "redlatch/protocol/mutex.hpp"
#include "redlatch/session/named_state.hpp"
#include "redlatch/session/queries.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
inline constexpr StateMaker mutex_maker{MutexProtocol::lock_kind.name, LockState::make<MutexProtocol>};
}  // namespace detail

REDLATCH_INLINE Mutex::Mutex(Client& client, std::string_view name, SpinOptions options, const ObjectOptions& own)
    : NamedLock(detail::ClientAccess::session(client), detail::mutex_maker, name, own),
      polling_(detail::polling_of(options, name)) {}

REDLATCH_INLINE void Mutex::prepare(detail::LockRequest& request) {
    NamedLock::prepare(request);
    request.polling = polling_;
}

REDLATCH_INLINE bool Mutex::ask_locked(Instant limit) { return value(limit).has_value(); }

// Returns at most 1. Sends no command if this process has no hold on record for this owner, because no other process can
// have acquired one in its name.
REDLATCH_INLINE int Mutex::ask_hold_count(detail::OwnerNumber owner, Instant limit) {
    const std::uint64_t hold = state().part(owner).hold;
    return hold != 0 && value(limit) == state().protocol().text(hold).view() ? 1 : 0;
}

REDLATCH_INLINE std::optional<std::string> Mutex::value(Instant limit) {
    detail::LockState& s = state();
    return detail::read_text(detail::query(s.session(), settings(), s.key(), s.protocol().holders(), limit), s.key());
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
