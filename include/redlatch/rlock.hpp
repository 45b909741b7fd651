// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client.hpp"
#include "redlatch/client/binding.hpp"
#include "redlatch/client/inquiry.hpp"
#include "redlatch/client/lock_face.hpp"
#include "redlatch/client/lock_state.hpp"
#include "redlatch/client/rlock_wire.hpp"

#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>

namespace redlatch {

// A reentrant lock of the whole fleet: one thread of one process holds it at a time, for as long as its lease is
// valid. What Redisson's RLock is in Java, and the same lock as an RLock of that name there.
//
// Two objects of one name are the same lock. Not fair: a releasing process may win again; FairLock keeps an order.
// Models Cpp17TimedLockable: use it with std::lock_guard, std::unique_lock, std::scoped_lock,
// std::condition_variable_any. Neither copied nor moved; any number of threads may use one object. Destroying the
// object while a thread waits in it is an error, as for std::mutex; destroying it while held is not: the hold goes
// on, and may be given back through another object of that name.
template <class T = HiredisTransport>
class RLock : public LockFace<RLock<T>> {
public:
    // Throws Error(errc::invalid_argument) for an empty name, one above 1,024 bytes, or braces that are not one
    // non-empty {tag}. Sends nothing.
    RLock(Client<T>& client, std::string_view name) : binding_(client.core(), name) {}

    // As given, without the client's key_prefix.
    const std::string& name() const noexcept { return binding_.name(); }

    // --- for LockFace and for composed locks: every operation is told its owner -----------------------------------

    bool acquire(const LockRequest& request) { return state().acquire(request); }
    std::error_code release(OwnerNumber owner) { return state().release(owner); }
    bool force_release() { return state().force_release(); }
    Instant valid_until_of(OwnerNumber owner) { return state().valid_until(owner); }
    std::stop_token lost_of(OwnerNumber owner) { return state().lost(owner); }
    bool ask_locked() { return redlatch::ask_locked(state().runtime(), state().key()); }
    int ask_hold_count(OwnerNumber owner) {
        return redlatch::ask_hold_count(state().runtime(), state().key(), state().wire().text(owner));
    }
    std::optional<Milliseconds> ask_remaining_lease() {
        return redlatch::ask_remaining_lease(state().runtime(), state().key());
    }

private:
    LockState<T, RLockWire>& state() { return binding_.state(); }

    Binding<T, LockState<T, RLockWire>> binding_;
};

template <class T>
RLock(Client<T>&, std::string_view) -> RLock<T>;

}  // namespace redlatch
