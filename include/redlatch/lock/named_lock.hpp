// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/lock/lock_access.hpp"
#include "redlatch/lock/lock_api.hpp"
#include "redlatch/protocol/lock_queries.hpp"
#include "redlatch/session/queries.hpp"
#include "redlatch/session/state_handle.hpp"

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace v0_1 {
namespace detail {

// Implements LockApi for one named lock. Locks that query the server in another way redefine the ask_* members.
template <class Lock, class T, class State>
class NamedLock : public LockApi<Lock> {
public:
    // The name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return binding_.name(); }

protected:
    friend class LockApi<Lock>;
    friend struct LockAccess;

    NamedLock(std::shared_ptr<SessionHandle<T>> core, std::string_view name) : binding_(std::move(core), name) {}

    // Returns this process's state of the lock.
    State& state() { return binding_.state(); }

    // --- on behalf of an owner --------------------------------------------------------------------------------

    bool acquire(const LockRequest& request) { return state().acquire(request); }
    std::error_code release(OwnerNumber owner) { return state().release(owner); }
    bool force_release(Instant limit = never) { return state().force_release(limit); }
    Instant valid_until_of(OwnerNumber owner) { return state().valid_until(owner); }
    std::stop_token lost_of(OwnerNumber owner) { return state().lost(owner); }
    bool ask_locked(Instant limit = never) {
        State& s = state();
        return read_is_locked(query(s.session(), s.key(), s.protocol().is_locked(), limit), s.key());
    }
    int ask_hold_count(OwnerNumber owner, Instant limit = never) {
        State& s = state();
        return read_count(query(s.session(), s.key(), s.protocol().hold_count(s.part(owner).hold), limit), s.key());
    }
    std::optional<Milliseconds> ask_remaining_lease(Instant limit = never) {
        State& s = state();
        return read_lease(query(s.session(), s.key(), s.protocol().remaining_lease(), limit), s.key());
    }

private:
    StateHandle<T, State> binding_;
};

}  // namespace detail
}  // namespace v0_1
}  // namespace redlatch
