// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/client.hpp"
#include "redlatch/lock/lock_state.hpp"
#include "redlatch/lock/named_lock.hpp"
#include "redlatch/lock/spin_options.hpp"
#include "redlatch/protocol/mutex.hpp"
#include "redlatch/session/queries.hpp"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace v0_1 {

// The lock of the Redis documentation: SET name value NX PX lease takes it, deleting the key if it holds that value
// gives it back. The key is the name itself (behind the client's key_prefix), so it excludes, and is excluded by,
// everybody who locks that way, in whatever language. Each hold has a value of its own: "<client id>:<thread
// number>:<number>".
//
// Not reentrant: to the thread that holds it lock() and its kin throw Error(errc::would_deadlock), try_lock() too,
// where std::mutex would be undefined; at once, and nothing is sent. A hold that was lost is no hold: that thread asks
// like anybody else.
//
// Nobody is told of a release by this scheme. So a waiting process asks again after pauses that grow, as a SpinLock
// does, one command a pause whatever the number of its waiting threads; threads of one process hand the lock over among
// themselves. Taking a free lock and giving it back is one command each; a try in vain takes two, because the plain
// command does not say why it is refused. Where the server can delete by value itself (Redis 8.4, Valkey 9) that is
// used: the first release of a client finds out, at the price of two commands where it cannot.
//
// Otherwise like RLock: the watchdog, leases, lost(), the errors. Other kinds of lock of that name are refused with
// errc::wrong_type.
template <class T = HiredisTransport>
class Mutex : public NamedLock<Mutex<T>, T, LockState<T, MutexProtocol>> {
public:
    // Throws Error(errc::invalid_argument) for a bad name, as RLock does, and for delays that are not positive or of
    // which the first is longer than the longest. Sends nothing.
    Mutex(Client<T>& client, std::string_view name, SpinOptions options = {})
        : Mutex::NamedLock(client.core(), name), polling_(polling_of(options, name)) {}

    // --- for LockApi and for composed locks: for an owner that is told -------------------------------------------

    bool acquire(LockRequest request) {
        request.polling = polling_;
        return Mutex::NamedLock::acquire(request);
    }

    bool ask_locked(Instant limit = never) { return value(limit).has_value(); }

    // One at most. Without a command when this process knows of no hold: nobody else can have taken one in its name.
    int ask_hold_count(OwnerNumber owner, Instant limit = never) {
        const std::uint64_t hold = this->state().part(owner).hold;
        return hold != 0 && value(limit) == this->state().wire().text(hold).view() ? 1 : 0;
    }

    std::optional<Milliseconds> ask_remaining_lease(Instant limit = never) {
        auto& state = this->state();
        return ask_lease(
            state.session(), state.key(),
            [&](Instant deadline) { return state.wire().remaining_lease(state.session().calling(deadline)); }, limit);
    }

private:
    // The present holder's.
    std::optional<std::string> value(Instant limit) {
        auto& state = this->state();
        return ask_text(
            state.session(), state.key(),
            [&](Instant deadline) { return state.wire().value(state.session().calling(deadline)); }, limit);
    }

    const Polling polling_;
};

template <class T>
Mutex(Client<T>&, std::string_view) -> Mutex<T>;
template <class T>
Mutex(Client<T>&, std::string_view, SpinOptions) -> Mutex<T>;

}  // namespace v0_1
}  // namespace redlatch
