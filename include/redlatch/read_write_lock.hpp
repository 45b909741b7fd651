// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client.hpp"
#include "redlatch/error.hpp"
#include "redlatch/lock/lock_api.hpp"
#include "redlatch/lock/lock_state.hpp"
#include "redlatch/lock/named_lock.hpp"
#include "redlatch/protocol/read_write_lock.hpp"
#include "redlatch/session/queries.hpp"

#include <chrono>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>

namespace redlatch {
inline namespace v0_1 {

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
// Each hold has its own lease: a reader that died blocks writers only until its lease expires, whatever other readers
// do. Reentrant on both sides. A writer may take the read side as well, and stays a reader when it releases the write
// side. A reader that requests the write side would wait for itself, so it gets errc::would_deadlock, even from
// try_lock().
//
// Models Cpp17SharedTimedLockable: use it with std::unique_lock, std::shared_lock, std::scoped_lock. The members of
// LockApi are the writer's. Two objects with the same name are the same lock. Neither copyable nor movable. Any number
// of threads may use one object. Destroying the object ends no hold.
template <class T>
class BasicReadWriteLock : public detail::LockApi<BasicReadWriteLock<T>> {
    // Implements what both sides share: all members of a lock. A side is locked while it has a lease.
    template <class Self, class Protocol>
    class Side : public detail::NamedLock<Self, T, detail::LockState<T, Protocol>> {
    protected:
        friend class detail::LockApi<Self>;
        friend struct detail::LockAccess;

        bool ask_locked(Instant limit = never) { return this->ask_remaining_lease(limit).has_value(); }

        Side(BasicClient<T>& client, std::string_view name) : Side::NamedLock(client.core(), name) {}
    };

public:
    // The read side: many threads may hold it at a time.
    class ReadLock final : public Side<ReadLock, detail::ReadProtocol> {
        friend BasicReadWriteLock;
        using Side<ReadLock, detail::ReadProtocol>::Side;
    };

    // The write side. Acquiring it throws Error(errc::would_deadlock), before anything is sent, in a thread that holds
    // only the read side.
    class WriteLock final : public Side<WriteLock, detail::WriteProtocol> {
        friend BasicReadWriteLock;
        friend class detail::LockApi<WriteLock>;
        friend struct detail::LockAccess;

        bool acquire(const detail::LockRequest& request) {
            const Instant now = Clock::now();
            if (detail::LockAccess::valid_until(readers_, request.owner) > now &&
                this->valid_until_of(request.owner) <= now)
                throw Error(errc::would_deadlock, this->state().key(),
                            "this thread holds the read side; release that before locking the write side");
            if (!options_.writer_preference) return this->state().acquire(request);
            detail::LockRequest first = request;
            first.precedence = true;
            return this->state().acquire(first);
        }

        WriteLock(BasicClient<T>& client, std::string_view name, ReadLock& readers, ReadWriteOptions options)
            : Side<WriteLock, detail::WriteProtocol>(client, name), readers_(readers), options_(options) {}

        ReadLock& readers_;
        const ReadWriteOptions options_;
    };

    // Throws Error(errc::invalid_argument) if the name is empty, is longer than 1,024 bytes, or has braces other than
    // one non-empty {tag}. Sends nothing.
    BasicReadWriteLock(BasicClient<T>& client, std::string_view name, ReadWriteOptions options = {})
        : read_(client, name), write_(client, name, read_, options) {}

    // Returns the name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return read_.name(); }

    // Return each side as a lock of its own, valid as long as this object.
    ReadLock& read_lock() noexcept { return read_; }
    WriteLock& write_lock() noexcept { return write_; }

    // The members of the read side. LockApi documents the same members for the write side: one round trip if no writer
    // holds the lock, the same trailing arguments, the same errors.
    template <class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] auto lock_shared(Tail&&... tail) { return read_.lock(tail...); }

    template <class... Tail>
    requires detail::TryOption<Tail...>
    [[nodiscard]] bool try_lock_shared(Tail&&... tail) { return read_.try_lock(tail...); }

    template <class Rep, class Period, class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] bool try_lock_shared_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return read_.try_lock_for(timeout, tail...);
    }

    template <class AnyClock, class Duration, class... Tail>
    requires detail::LockOption<Tail...>
    [[nodiscard]] bool try_lock_shared_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return read_.try_lock_until(when, tail...);
    }

    void unlock_shared() { read_.unlock(); }
    void unlock_shared(std::error_code& ec) { read_.unlock(ec); }

private:
    friend class detail::LockApi<BasicReadWriteLock>;
    friend struct detail::LockAccess;

    // --- on behalf of an owner: the write side ----------------------------------------------------------------

    bool acquire(const detail::LockRequest& request) { return detail::LockAccess::acquire(write_, request); }
    std::error_code release(detail::OwnerNumber owner) { return detail::LockAccess::release(write_, owner); }
    bool force_release() { return detail::LockAccess::force_release(write_); }
    Instant valid_until_of(detail::OwnerNumber owner) { return detail::LockAccess::valid_until(write_, owner); }
    std::stop_token lost_of(detail::OwnerNumber owner) { return detail::LockAccess::lost(write_, owner); }
    bool ask_locked() { return detail::LockAccess::ask_locked(write_); }
    int ask_hold_count(detail::OwnerNumber owner) { return detail::LockAccess::ask_hold_count(write_, owner); }
    std::optional<Milliseconds> ask_remaining_lease() { return detail::LockAccess::ask_remaining_lease(write_); }

    ReadLock read_;
    WriteLock write_;
};

template <class T>
BasicReadWriteLock(BasicClient<T>&, std::string_view) -> BasicReadWriteLock<T>;
template <class T>
BasicReadWriteLock(BasicClient<T>&, std::string_view, ReadWriteOptions) -> BasicReadWriteLock<T>;

using ReadWriteLock = BasicReadWriteLock<HiredisTransport>;

}  // namespace v0_1
}  // namespace redlatch
