// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/client.hpp"
#include "redlatch/inspection.hpp"
#include "redlatch/lock/lock_api.hpp"
#include "redlatch/lock/named_lock.hpp"
#include "redlatch/session/call_options.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>

namespace redlatch {
inline namespace REDLATCH_ABI {

// Options of a ReadWriteLock.
struct ReadWriteOptions {
    // If true, readers that hold nothing yet stay out while a writer of this object waits, so that a stream of readers
    // cannot starve it. After every writer the readers get a turn. So a reader must not wait for a thread that is yet
    // to become one. Readers in Java ignore this option. It costs a waiting process one command every 2.5 s, and delays
    // readers by up to 5 s if that process dies.
    bool writer_preference = false;
};

// Provides a distributed lock that many readers or one writer hold at a time. The counterpart of Redisson's
// ReadWriteLock and the same lock as one of that name there. An RLock of that name is a different kind of lock and is
// refused.
//
// Each hold has its own lease: a reader that died blocks writers only until its lease expires, whatever other readers do. A
// waiting writer may notice that expiry up to 30 s later, if several readers leave one after another. Reentrant on both
// sides. A writer may take the read side as well, and stays a reader when it releases the write side. A reader that requests
// the write side would wait for itself, so it gets errc::would_deadlock, even from try_lock().
//
// Models Cpp17SharedTimedLockable: use it with std::unique_lock, std::shared_lock, std::scoped_lock. The members of
// LockApi are the writer's. Two objects with the same name are the same lock. Neither copyable nor movable. Any number
// of threads may use one object. Destroying the object ends no hold.
class ReadWriteLock : public detail::LockApi {
public:
    // One side, as a lock of its own: it has all members of a lock.
    class Side : public detail::NamedLock {
    protected:
        using NamedLock::NamedLock;

    private:
        // A side is locked while it has a lease.
        REDLATCH_INLINE bool ask_locked(Instant limit) override;
    };

    // The read side: many threads may hold it at a time.
    class ReadLock final : public Side {
        friend ReadWriteLock;
        ReadLock(Client& client, std::string_view name, const ObjectOptions& own);
    };

    // The write side. Acquiring it throws Error(errc::would_deadlock), before anything is sent, for a thread or Owner
    // that holds only the read side.
    class WriteLock final : public Side {
        friend ReadWriteLock;
        WriteLock(Client& client, std::string_view name, ReadLock& readers, ReadWriteOptions options,
                  const ObjectOptions& own);

        REDLATCH_INLINE void prepare(detail::LockRequest& request) override;

        ReadLock& readers_;
        const ReadWriteOptions options_;
    };

    // Makes an object for the lock of this name. Throws Error(errc::invalid_argument) if the name is empty, is longer
    // than 1,024 bytes, or has braces other than one non-empty {tag}, and for options that cannot work: see
    // ObjectOptions. Both sides have `own`. Sends nothing.
    ReadWriteLock(Client& client, std::string_view name, ReadWriteOptions options = {}, const ObjectOptions& own = {});

    // Returns the name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return read_.name(); }

    // Returns the holders of both sides, readers and writer, as one moment shows them: see Inspection. One round trip.
    // Throws Error, or stores its code, as NamedLock::inspect() does.
    Inspection inspect();
    Inspection inspect(std::error_code& ec);

    // Returns true if this owner holds the write side, according to the server. One round trip.
    //   is_held_by(Owner)    an owner of this client
    //   is_held_by(number)   Hold::owner() of a hold of this client
    //   is_held_by(text)     Holder::owner, as inspect() returns it, of any client in any language. Throws
    //                        Error(errc::invalid_argument) for a text that no owner has: an empty one, or "mode"
    using LockApi::is_held_by;
    bool is_held_by(std::uint64_t owner) { return write_.is_held_by(owner); }
    bool is_held_by(std::string_view owner) { return write_.is_held_by(owner); }
    bool is_held_by(std::uint64_t owner, std::error_code& ec);
    bool is_held_by(std::string_view owner, std::error_code& ec);

    // Returns the read side as a lock of its own, valid as long as this object.
    ReadLock& read_lock() noexcept { return read_; }

    // Returns the write side as a lock of its own, valid as long as this object.
    WriteLock& write_lock() noexcept { return write_; }

    // Acquires the read side and waits for it: as lock() does for the write side, with the same trailing arguments and
    // the same errors. One round trip if no writer holds the lock.
    template <class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] auto lock_shared(Tail&&... tail) { return read_.lock(tail...); }

    // Acquires the read side if no writer holds the lock: as try_lock() for the write side.
    template <class... Tail>
    requires detail::TryOption<Tail...>
    [[nodiscard]] bool try_lock_shared(Tail&&... tail) { return read_.try_lock(tail...); }

    // Acquires the read side within a time: as try_lock_for() for the write side.
    template <class Rep, class Period, class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] bool try_lock_shared_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return read_.try_lock_for(timeout, tail...);
    }

    // Acquires the read side before an instant: as try_lock_until() for the write side.
    template <class AnyClock, class Duration, class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] bool try_lock_shared_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return read_.try_lock_until(when, tail...);
    }

    // Acquires the read side for an object, which it returns: as hold() for the write side.
    template <class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] Hold hold_shared(Tail&&... tail) { return read_.hold(tail...); }

    // Acquires the read side for an object if no writer holds the lock: as try_hold() for the write side.
    template <class... Tail>
    requires detail::TryOption<Tail...>
    [[nodiscard]] Hold try_hold_shared(Tail&&... tail) { return read_.try_hold(tail...); }

    // Acquires the read side for an object within a time: as try_hold_for() for the write side.
    template <class Rep, class Period, class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] Hold try_hold_shared_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return read_.try_hold_for(timeout, tail...);
    }

    // Acquires the read side for an object before an instant: as try_hold_until() for the write side.
    template <class AnyClock, class Duration, class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] Hold try_hold_shared_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return read_.try_hold_until(when, tail...);
    }

    // Acquires the read side without a thread that waits: as async_lock() for the write side.
    template <class... Tail>
    requires detail::AsyncOption<Tail...> Operation<Hold> async_lock_shared(Tail&&... tail) {
        return read_.async_lock(tail...);
    }

    // Tries the read side without a thread that waits: as async_try_lock() for the write side.
    template <class... Tail>
    requires detail::AsyncOption<Tail...> && detail::TryOption<Tail...> Operation<Hold> async_try_lock_shared(
        Tail&&... tail) {
        return read_.async_try_lock(tail...);
    }

    // Acquires the read side within a time, without a thread that waits: as async_try_lock_for() for the write side. The
    // time begins to run with this call.
    template <class Rep, class Period, class... Tail>
    requires detail::AsyncOption<Tail...> Operation<Hold> async_try_lock_shared_for(
        std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return read_.async_try_lock_for(timeout, tail...);
    }

    // Acquires the read side before an instant, without a thread that waits: as async_try_lock_until() for the write
    // side.
    template <class AnyClock, class Duration, class... Tail>
    requires detail::AsyncOption<Tail...> Operation<Hold> async_try_lock_shared_until(
        std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return read_.async_try_lock_until(when, tail...);
    }

    // Releases one level of the read side of this thread, or of an Owner: one round trip. Throws and stores what unlock()
    // does.
    void unlock_shared() { read_.unlock(); }
    void unlock_shared(std::error_code& ec) { read_.unlock(ec); }
    void unlock_shared(Owner owner) { read_.unlock(owner); }
    void unlock_shared(Owner owner, std::error_code& ec) { read_.unlock(owner, ec); }

private:
    // --- on behalf of an owner: the write side ----------------------------------------------------------------

    REDLATCH_INLINE detail::HoldKeeper& keeper() override;
    REDLATCH_INLINE detail::HeldLevel keeper_of_holds() override;
    REDLATCH_INLINE void prepare(detail::LockRequest& request) override;
    REDLATCH_INLINE bool force_release(Instant limit) override;
    REDLATCH_INLINE bool ask_locked(Instant limit) override;
    REDLATCH_INLINE int ask_hold_count(detail::OwnerNumber owner, Instant limit) override;
    REDLATCH_INLINE std::optional<Milliseconds> ask_remaining_lease(Instant limit) override;

    ReadLock read_;
    WriteLock write_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/read_write_lock.ipp"
#endif
