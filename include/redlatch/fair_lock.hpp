// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client.hpp"
#include "redlatch/client/binding.hpp"
#include "redlatch/client/fair_lock_state.hpp"
#include "redlatch/client/inquiry.hpp"
#include "redlatch/client/lock_face.hpp"

#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>

namespace redlatch {

// A reentrant lock that serves its waiters strictly in the order in which they came, over threads, processes, hosts
// and languages: what Redisson's fair lock is in Java, and the same queue as one of that name there.
//
// The order is the one in which the first tries of waiting calls reached the server; try_lock() does not queue up and
// never passes a waiter. A waiter that dies, is frozen or cannot reach the server loses its place after a few
// seconds (a sixth of ClientOptions::watchdog_timeout, at most 5 s), and one that comes back queues up again at the end:
// the order is that of the living. Each waiting thread of this kind listens to a channel of its own, and every process
// with waiters sends one command in a third of those seconds: use RLock where the order does not matter.
//
// Two objects of one name are the same lock, and exclude an RLock of that name, too, which knows nothing of the queue.
// Models Cpp17TimedLockable. Neither copied nor moved; any number of threads may use one object. Destroying the object
// while a thread waits in it is an error, as for std::mutex; destroying it while held is not.
template <class T = HiredisTransport>
class FairLock : public LockFace<FairLock<T>> {
public:
    // Throws Error(errc::invalid_argument) for an empty name, one above 1,024 bytes, or braces that are not one
    // non-empty {tag}. Sends nothing.
    FairLock(Client<T>& client, std::string_view name) : binding_(client.core(), name) {}

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
    FairLockState<T>& state() { return binding_.state(); }

    Binding<T, FairLockState<T>> binding_;
};

template <class T>
FairLock(Client<T>&, std::string_view) -> FairLock<T>;

}  // namespace redlatch
