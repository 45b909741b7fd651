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
#include "redlatch/session/operation.hpp"
#include "redlatch/session/state_handle.hpp"
#include "redlatch/wait/lock_request.hpp"
#include "redlatch/wait/wait_request.hpp"

#include <chrono>
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
    // Returns the name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return handle_.name(); }

    // Returns who holds the lock, whoever it is and in whatever language, and what else the server knows about it: see
    // Inspection. A side of a ReadWriteLock returns its own holders. One round trip. Changes nothing. Throws Error, or
    // stores its code: wrong_type if the key belongs to something else, rejected, unreachable.
    Inspection inspect() { return ask_inspection(never); }
    Inspection inspect(std::error_code& ec);

    // Returns true if this owner holds the lock, according to the server. One round trip.
    //   is_held_by(Owner)    an owner of this client
    //   is_held_by(number)   Hold::owner() of a hold of this client
    //   is_held_by(text)     Holder::owner, as inspect() returns it, of any client in any language. Throws
    //                        Error(errc::invalid_argument) for a text that no owner has: an empty one, or "mode"
    using LockApi::is_held_by;
    bool is_held_by(std::uint64_t owner);
    bool is_held_by(std::string_view owner);
    bool is_held_by(std::uint64_t owner, std::error_code& ec);
    bool is_held_by(std::string_view owner, std::error_code& ec);

    // Waits until every hold that it finds has ended, and acquires nothing: for code that needs what the holder does to be
    // done, but not the lock. A hold ends by its release, by force, or with its lease when its process is dead. Returns at
    // once if there is none. Others may hold the lock by then. A side of a ReadWriteLock waits for its own holders: for
    // the first 1,000 of the readers.
    //
    // One round trip, and one more after each message about the lock and whenever a lease that was seen is over, or has
    // been seen for 30 s. All callers of this process that wait for one lock share these. Some ends are not published, so
    // they are noticed only then: a hand-off inside the holder's process, a reader that leaves while others stay, and a
    // release of Redisson's SpinLock. A FairLock publishes for its own waiters only; there it asks after pauses that grow
    // up to 500 ms. A SpinLock and a Mutex pause as their SpinOptions say.
    //
    // Throws Error as lock() does, and would_deadlock if the calling thread itself holds the lock. Thread-safe.
    //   wait_release(token)   gives up when a stop is requested; only this form returns a bool: true if they have ended
    //   wait_release(…, ec)   stores the error instead of throwing it
    template <class... Tail>
    requires StopOption<Tail...>
    [[nodiscard]] auto wait_release(Tail&&... tail) {
        const bool ended =
            detail::answer([&] { return await_release(detail::wait_until(never, tail...)); }, false, tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return ended;
    }

    // Waits at most until `timeout` has passed, by a monotonic clock. Returns true if the holds have ended. Timeouts are
    // rounded up to the next millisecond; zero or less checks once; the largest value waits indefinitely. Accepts
    // std::stop_token and std::error_code&.
    template <class Rep, class Period, class... Tail>
    requires StopOption<Tail...>
    [[nodiscard]] bool wait_release_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return timed_release(deadline_after(Clock::now(), timeout), tail...);
    }

    // Does the same as wait_release_for(), until an instant of any clock, which is read once.
    template <class AnyClock, class Duration, class... Tail>
    requires StopOption<Tail...>
    [[nodiscard]] bool wait_release_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return timed_release(deadline_at(when), tail...);
    }

    // Waits without a thread that waits: see Operation. The result is true if the holds have ended. Accepts a
    // std::stop_token, which cancels the operation. No thread waits, so a hold of the calling thread is as any other.
    //   orders.async_wait_release().start([](std::error_code ec, bool ended) { … });
    template <class... Tail>
    requires AsyncOption<Tail...> && StopOption<Tail...> Operation<bool> async_wait_release(Tail&&... tail) {
        return release_later(detail::wait_until(never, tail...));
    }

    // Does the same as async_wait_release(), for this time at most. It begins to run with this call.
    template <class Rep, class Period, class... Tail>
    requires AsyncOption<Tail...> && StopOption<Tail...> Operation<bool> async_wait_release_for(
        std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return release_later(detail::wait_until(deadline_after(Clock::now(), timeout), tail...));
    }

protected:
    // `own` and `reentry` are those of this object. Another object of the same lock may differ.
    NamedLock(std::shared_ptr<SessionHandle> core, const StateMaker& maker, std::string_view name,
              const ObjectOptions& own, Reentry reentry = Reentry::allowed)
        : handle_(std::move(core), maker, name, own), reentry_(reentry) {}

    // The options of this object.
    const Settings& settings() const noexcept { return handle_.settings(); }

    // Returns this process's state of the lock.
    LockState& state();

    REDLATCH_INLINE HoldKeeper& keeper() override;
    REDLATCH_INLINE HeldLevel keeper_of_holds() override;
    REDLATCH_INLINE void prepare(LockRequest& request) override;
    REDLATCH_INLINE bool force_release(Instant limit) override;
    REDLATCH_INLINE bool ask_locked(Instant limit) override;
    REDLATCH_INLINE int ask_hold_count(OwnerNumber owner, Instant limit) override;
    REDLATCH_INLINE std::optional<Milliseconds> ask_remaining_lease(Instant limit) override;

private:
    friend struct LockAccess;

    Inspection ask_inspection(Instant limit);

    bool await_release(const WaitRequest& request);
    Operation<bool> release_later(WaitRequest request);

    template <class... Tail>
    bool timed_release(Instant deadline, Tail&... tail) {
        return detail::answer([&] { return await_release(detail::wait_until(deadline, tail...)); }, false, tail...);
    }

    // Returns how this lock polls; nothing if messages wake its waiters.
    std::optional<Polling> polling();

    StateHandle handle_;
    const Reentry reentry_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/lock/named_lock.ipp"
#endif
