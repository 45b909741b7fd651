// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/error.hpp"
#include "redlatch/lock/lock_access.hpp"
#include "redlatch/lock/lock_state.hpp"
#include "redlatch/protocol/read_write_lock.hpp"
#include "redlatch/read_write_lock.hpp"
#include "redlatch/session/named_state.hpp"
#include "redlatch/session/queries.hpp"

#include <optional>
#include <stop_token>
#include <string_view>
#include <system_error>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
inline constexpr StateMaker read_maker{ReadProtocol::lock_kind.name, LockState::make<ReadProtocol>};
inline constexpr StateMaker write_maker{WriteProtocol::lock_kind.name, LockState::make<WriteProtocol>};
}  // namespace detail

// --- the sides ---------------------------------------------------------------------------------------------------

REDLATCH_INLINE bool ReadWriteLock::Side::ask_locked(Instant limit) { return ask_remaining_lease(limit).has_value(); }

REDLATCH_INLINE ReadWriteLock::ReadLock::ReadLock(Client& client, std::string_view name, const ObjectOptions& own)
    : Side(detail::ClientAccess::session(client), detail::read_maker, name, own) {}

REDLATCH_INLINE ReadWriteLock::WriteLock::WriteLock(Client& client, std::string_view name, ReadLock& readers,
                                                    ReadWriteOptions options, const ObjectOptions& own)
    : Side(detail::ClientAccess::session(client), detail::write_maker, name, own),
      readers_(readers),
      options_(options) {}

REDLATCH_INLINE void ReadWriteLock::WriteLock::prepare(detail::LockRequest& request) {
    const Instant now = Clock::now();
    if (readers_.state().valid_until(request.owner) > now && state().valid_until(request.owner) <= now)
        throw Error(errc::would_deadlock, state().key(),
                    "its owner holds the read side; release that before locking the write side");
    NamedLock::prepare(request);
    request.precedence = options_.writer_preference;
}

// --- both --------------------------------------------------------------------------------------------------------

REDLATCH_INLINE ReadWriteLock::ReadWriteLock(Client& client, std::string_view name, ReadWriteOptions options,
                                             const ObjectOptions& own)
    : read_(client, name, own), write_(client, name, read_, options, own) {}

REDLATCH_INLINE Inspection ReadWriteLock::inspect() {
    detail::LockState& s = detail::LockAccess::state(read_);
    const auto& protocol = static_cast<const detail::ReadWriteProtocol&>(s.protocol());
    return protocol.read_both_sides(
        detail::query(s.session(), detail::LockAccess::settings(read_), s.key(), protocol.inspect()));
}

REDLATCH_INLINE detail::HoldKeeper& ReadWriteLock::keeper() { return detail::LockAccess::keeper(write_); }

REDLATCH_INLINE detail::HeldLevel ReadWriteLock::keeper_of_holds() {
    return detail::LockAccess::keeper_of_holds(write_);
}

REDLATCH_INLINE void ReadWriteLock::prepare(detail::LockRequest& request) {
    detail::LockAccess::prepare(write_, request);
}

REDLATCH_INLINE bool ReadWriteLock::force_release(Instant limit) {
    return detail::LockAccess::force_release(write_, limit);
}

REDLATCH_INLINE bool ReadWriteLock::ask_locked(Instant limit) { return detail::LockAccess::ask_locked(write_, limit); }

REDLATCH_INLINE int ReadWriteLock::ask_hold_count(detail::OwnerNumber owner, Instant limit) {
    return detail::LockAccess::ask_hold_count(write_, owner, limit);
}

REDLATCH_INLINE std::optional<Milliseconds> ReadWriteLock::ask_remaining_lease(Instant limit) {
    return detail::LockAccess::ask_remaining_lease(write_, limit);
}

REDLATCH_INLINE Inspection ReadWriteLock::inspect(std::error_code& ec) {
    return detail::answer([&] { return inspect(); }, Inspection(), ec);
}

REDLATCH_INLINE bool ReadWriteLock::is_held_by(std::uint64_t owner, std::error_code& ec) {
    return detail::answer([&] { return is_held_by(owner); }, false, ec);
}

REDLATCH_INLINE bool ReadWriteLock::is_held_by(std::string_view owner, std::error_code& ec) {
    return detail::answer([&] { return is_held_by(owner); }, false, ec);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
