// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/inspection.hpp"
#include "redlatch/lock/lock_access.hpp"
#include "redlatch/lock/lock_api.hpp"
#include "redlatch/options.hpp"
#include "redlatch/session/call_options.hpp"
#include "redlatch/session/state_handle.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

class LockState;

// Implements LockApi for one named lock. Locks that query the server in another way override the ask_* members.
class NamedLock : public LockApi {
public:
    // The name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return handle_.name(); }

    // Returns who holds the lock, whoever it is and in whatever language, and what else the server knows about it: see
    // Inspection. A side of a ReadWriteLock returns its own holders. One round trip. Changes nothing. Throws Error, or
    // stores its code: wrong_type if the key belongs to something else, rejected, unreachable.
    Inspection inspect() { return ask_inspection(never); }
    Inspection inspect(std::error_code& ec) {
        return detail::answer([&] { return inspect(); }, Inspection(), ec);
    }

    // Returns true if this owner holds the lock, according to the server. One round trip.
    //   is_held_by(Owner)    an owner of this client
    //   is_held_by(number)   Hold::owner() of a hold of this client
    //   is_held_by(text)     Holder::owner, as inspect() returns it, of any client in any language. Throws
    //                        Error(errc::invalid_argument) for a text that no owner has: an empty one, or "mode"
    using LockApi::is_held_by;
    bool is_held_by(std::uint64_t owner);
    bool is_held_by(std::string_view owner);
    bool is_held_by(std::uint64_t owner, std::error_code& ec) {
        return detail::answer([&] { return is_held_by(owner); }, false, ec);
    }
    bool is_held_by(std::string_view owner, std::error_code& ec) {
        return detail::answer([&] { return is_held_by(owner); }, false, ec);
    }

protected:
    NamedLock(std::shared_ptr<SessionHandle> core, const StateMaker& maker, std::string_view name,
              const ObjectOptions& own)
        : handle_(std::move(core), maker, name, own) {}

    // The options of this object.
    const Settings& settings() const noexcept { return handle_.settings(); }

    // Returns this process's state of the lock.
    LockState& state();

    void prepare(LockRequest& request) override { request.settings = settings(); }
    REDLATCH_INLINE HoldKeeper& keeper() override;
    REDLATCH_INLINE HeldLevel keeper_of_holds() override;
    REDLATCH_INLINE bool force_release(Instant limit) override;
    REDLATCH_INLINE bool ask_locked(Instant limit) override;
    REDLATCH_INLINE int ask_hold_count(OwnerNumber owner, Instant limit) override;
    REDLATCH_INLINE std::optional<Milliseconds> ask_remaining_lease(Instant limit) override;

private:
    friend struct LockAccess;

    Inspection ask_inspection(Instant limit);

    StateHandle handle_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/lock/named_lock.ipp"
#endif
