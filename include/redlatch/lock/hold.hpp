// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/lock/hold_keeper.hpp"
#include "redlatch/session/call_options.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <chrono>
#include <cstdint>
#include <stop_token>
#include <string>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {

class Hold;
template <class R>
class Operation;

namespace detail {
class LockApi;

struct HoldAccess {
    // Makes the object for a level that its owner has acquired.
    static Hold make(HeldLevel level) noexcept;

    // Makes the task that releases the hold, and waits as `by` says. Once it runs, the hold holds nothing, and `level` keeps
    // alive what the task needs. Both must outlive the task.
    static Task<std::error_code> release(Hold& hold, HeldLevel& level, WaitBy by);
};
}  // namespace detail

// Holds a lock, or one level of it, for whoever has the object, and not for a thread: it can be moved into another
// thread, a task or a container, and released there. The destructor releases it.
//
//   redlatch::Hold hold = orders.hold();   // waits, like lock()
//   std::thread([hold = std::move(hold)] { … }).detach();
//
// Each hold has an owner of its own, unless it was acquired for an Owner: then it is one level of that one's hold (of a
// MultiLock or RedLock: of whichever hold the Owner has). So two holds of one lock exclude each other, and a hold excludes the
// threads that call lock(), also in the thread that has it. It keeps alive what it needs, so it may outlive the lock and
// the client; a hold of a MultiLock or RedLock ends with that object. Movable, not copyable. Different threads may use
// different objects at once; one object needs the care of a std::unique_ptr.
//
// After a fork the child holds nothing: there its copies of a hold do nothing.
class [[nodiscard]] Hold {
public:
    // Holds nothing.
    Hold() noexcept = default;

    // Takes over what the other one holds, which is empty then.
    Hold(Hold&& other) noexcept : level_(std::exchange(other.level_, {})) {}
    // Releases its own hold as the destructor does, and takes over that of the other one.
    Hold& operator=(Hold&& other) noexcept {
        Hold old(std::move(*this));
        level_ = std::exchange(other.level_, {});
        return *this;
    }

    // Releases the hold without waiting for the server, and never throws. Without memory for that, the hold ends with
    // its lease. Preserves errno.
    ~Hold();

    // Returns true unless it holds nothing: it was released, moved from, or never acquired. Says nothing about the
    // lease: see valid_until().
    explicit operator bool() const noexcept { return level_.keeper != nullptr; }

    // Returns the number of the hold: on the wire its owner is "<client id>:<number>". For a MultiLock or RedLock, whose
    // members have numbers of their own, it is known to this process only, and 0 for a hold of an Owner. 0 if it holds
    // nothing.
    std::uint64_t owner() const noexcept { return level_.facts.number; }

    // Returns the name of the lock as given; an empty string if it holds nothing.
    std::string name() const;

    // Returns the fencing token. Throws Error(errc::unsupported) unless it holds a FencedLock.
    [[nodiscard]] std::int64_t token() const;

    // Returns until when it certainly holds the lock: see RLock::valid_until(). Returns time_point::min() if it holds
    // nothing. Sends no command.
    [[nodiscard]] std::chrono::steady_clock::time_point valid_until() const;

    // Returns a token that is requested when the hold is lost: see RLock::lost(). It is requested already if it holds
    // nothing. Sends no command.
    [[nodiscard]] std::stop_token lost() const;

    // Releases the hold and waits for the reply: one round trip. Afterwards it holds nothing, whatever the outcome:
    // hold_lost if the hold had already ended, unreachable if the release could not be delivered yet (the background
    // resends it), not_owner if it held nothing. Preserves errno.
    std::error_code unlock() noexcept;

    // Does the same without a thread that waits: see Operation. From this call on the object holds nothing, and the
    // operation has the hold: if it is cancelled or never begun, the hold is released all the same.
    //   std::error_code ec = co_await std::move(hold).async_unlock();
    Operation<std::error_code> async_unlock() &&;

    // Acquires one more level for the same owner, which lasts until it is released, too: one round trip. Takes an
    // optional Lease and std::error_code&. Throws Error: hold_lost if the hold has ended, would_deadlock for a lock
    // that is not reentrant, not_owner if it holds nothing.
    template <class... Tail>
    requires(detail::TryOption<Tail...> && !detail::has_owner<Tail...>) [[nodiscard]] Hold again(Tail&&... tail) const {
        return detail::answer(
            [&] {
                detail::LockRequest request = detail::lock_request(level_.owner, never, tail...);
                request.again = true;
                request.reentry = level_.reentry;
                return another_level(request);
            },
            Hold(), tail...);
    }

private:
    friend class detail::LockApi;
    friend struct detail::HoldAccess;

    // Holds the level, which its owner has acquired.
    explicit Hold(detail::HeldLevel level) noexcept : level_(std::move(level)) {}

    Hold another_level(detail::LockRequest request) const;

    detail::HeldLevel level_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/lock/hold.ipp"
#endif
