// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/ids.hpp"
#include "redlatch/error.hpp"
#include "redlatch/fenced_lock.hpp"
#include "redlatch/lock/lock_state.hpp"
#include "redlatch/protocol/fenced_lock.hpp"
#include "redlatch/protocol/numbers.hpp"
#include "redlatch/session/named_state.hpp"
#include "redlatch/session/queries.hpp"

#include <cstdint>
#include <optional>
#include <string_view>
#include <system_error>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
inline constexpr StateMaker fenced_maker{FencedProtocol::lock_kind.name, LockState::make<FencedProtocol>};
}  // namespace detail

REDLATCH_INLINE FencedLock::FencedLock(Client& client, std::string_view name, const ObjectOptions& options)
    : NamedLock(detail::ClientAccess::session(client), detail::fenced_maker, name, options) {}

// The hold may be lost by now: its unlock() reports that.
REDLATCH_INLINE std::int64_t FencedLock::acquired_token(detail::OwnerNumber owner) {
    const std::int64_t token = state().facts(owner).token;
    if (token == 0) throw Error(errc::hold_lost, name(), "another caller of its owner has released the hold already");
    return token;
}

REDLATCH_INLINE std::int64_t FencedLock::token_of(detail::OwnerNumber owner) {
    const std::optional<std::int64_t> mine = token_or_none(owner);
    if (!mine)
        throw Error(errc::not_owner, name(),
                    "only the owner that holds the lock has its token; call token() between lock() and unlock()");
    return *mine;
}

REDLATCH_INLINE std::int64_t FencedLock::token_of(detail::OwnerNumber owner, std::error_code& ec) {
    const std::optional<std::int64_t> mine = token_or_none(owner);
    ec = mine ? std::error_code() : make_error_code(errc::not_owner);
    return mine.value_or(0);
}

REDLATCH_INLINE std::optional<std::int64_t> FencedLock::latest_token() {
    detail::LockState& s = state();
    const auto& protocol = static_cast<const detail::FencedProtocol&>(s.protocol());
    const Reply reply = detail::query(s.session(), settings(), s.key(), protocol.latest_token());
    const std::int64_t token = detail::number_of(reply, s.key());
    return reply.is_nil() ? std::nullopt : std::optional(token);
}

REDLATCH_INLINE std::optional<std::int64_t> FencedLock::token_or_none(detail::OwnerNumber owner) {
    return state().token(owner);
}

REDLATCH_INLINE std::optional<std::int64_t> FencedLock::latest_token(std::error_code& ec) {
    return detail::answer([&] { return latest_token(); }, std::optional<std::int64_t>(), ec);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
