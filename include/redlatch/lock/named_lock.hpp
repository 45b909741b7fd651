// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/lock/lock_api.hpp"
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

// Implements LockApi for one named lock. Members that take an owner act on behalf of that thread, as MultiLock and
// RedLock need. Locks whose key is not a hash of owner -> hold count redefine the ask_* members.
template <class Lock, class T, class State>
class NamedLock : public LockApi<Lock> {
public:
    // The name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return binding_.name(); }

    bool acquire(const LockRequest& request) { return state().acquire(request); }
    std::error_code release(OwnerNumber owner) { return state().release(owner); }
    bool force_release(Instant limit = never) { return state().force_release(limit); }
    Instant valid_until_of(OwnerNumber owner) { return state().valid_until(owner); }
    std::stop_token lost_of(OwnerNumber owner) { return state().lost(owner); }
    bool ask_locked(Instant limit = never) { return redlatch::ask_locked(state().session(), state().key(), limit); }
    int ask_hold_count(OwnerNumber owner, Instant limit = never) {
        return redlatch::ask_hold_count(state().session(), state().key(), state().wire().text(state().part(owner).hold),
                                        limit);
    }
    std::optional<Milliseconds> ask_remaining_lease(Instant limit = never) {
        return redlatch::ask_remaining_lease(state().session(), state().key(), limit);
    }

    // Returns this process's state of the lock.
    State& state() { return binding_.state(); }

protected:
    NamedLock(std::shared_ptr<SessionHandle<T>> core, std::string_view name) : binding_(std::move(core), name) {}

private:
    StateHandle<T, State> binding_;
};

}  // namespace v0_1
}  // namespace redlatch
