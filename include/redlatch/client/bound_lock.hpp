// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client/binding.hpp"
#include "redlatch/client/inquiry.hpp"
#include "redlatch/client/lock_face.hpp"

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace v0_1 {

// A lock of the user's, `Lock`: its public members, and below them the same for an owner that is told, for LockFace and
// for composed locks. What is no hash of owner -> hold count on the server asks in a way of its own.
template <class Lock, class T, class State>
class BoundLock : public LockFace<Lock> {
public:
    // As given, without the client's key_prefix.
    const std::string& name() const noexcept { return binding_.name(); }

    bool acquire(const LockRequest& request) { return state().acquire(request); }
    std::error_code release(OwnerNumber owner) { return state().release(owner); }
    bool force_release(Instant limit = never) { return state().force_release(limit); }
    Instant valid_until_of(OwnerNumber owner) { return state().valid_until(owner); }
    std::stop_token lost_of(OwnerNumber owner) { return state().lost(owner); }
    bool ask_locked(Instant limit = never) { return redlatch::ask_locked(state().runtime(), state().key(), limit); }
    int ask_hold_count(OwnerNumber owner, Instant limit = never) {
        return redlatch::ask_hold_count(state().runtime(), state().key(), state().wire().text(state().part(owner).hold),
                                        limit);
    }
    std::optional<Milliseconds> ask_remaining_lease(Instant limit = never) {
        return redlatch::ask_remaining_lease(state().runtime(), state().key(), limit);
    }

    // What this process knows of the lock.
    State& state() { return binding_.state(); }

protected:
    BoundLock(std::shared_ptr<Core<T>> core, std::string_view name) : binding_(std::move(core), name) {}

private:
    Binding<T, State> binding_;
};

}  // namespace v0_1
}  // namespace redlatch
