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
    // While a writer of this object waits, readers that hold nothing yet stay out, so that a stream of readers cannot
    // starve it; after every writer they get a turn. So a reader must not wait for a thread that is yet to become one.
    // Readers in Java do not know of it. It costs a waiting process a command every 2.5 s, and readers up to 5 s when
    // that process dies.
    bool writer_preference = false;
};

// A lock of the whole fleet that many readers hold at a time, or one writer. What Redisson's ReadWriteLock is in
// Java, and the same lock as one of that name there; an RLock of that name is another thing, and refused.
//
// Each hold has its own lease: a reader that died blocks writers until its lease is over, and no longer than that,
// whatever other readers do. Reentrant on both sides. A writer may take the read side, too, and go on as a reader when
// it gives back the write side; a reader that asks for the write side would wait for itself and gets
// errc::would_deadlock, even from try_lock().
//
// Models Cpp17SharedTimedLockable: use it with std::unique_lock, std::shared_lock, std::scoped_lock. The members of
// LockApi are the writer's. Two objects of one name are the same lock; neither copied nor moved; any number of
// threads may use one object. Destroying the object while held ends no hold.
template <class T = HiredisTransport>
class ReadWriteLock : public LockApi<ReadWriteLock<T>> {
    // What both sides are: a lock with all its members, which asks in its own way what the server has of it.
    template <class Self, template <class> class Protocol>
    class Side : public NamedLock<Self, T, LockState<T, Protocol>> {
    public:
        bool ask_locked(Instant limit = never) { return ask_remaining_lease(limit).has_value(); }
        int ask_hold_count(OwnerNumber owner, Instant limit = never) {
            auto& state = this->state();
            return ask_count(
                state.session(), state.key(),
                [&](Instant deadline) { return state.wire().hold_count(state.part(owner).hold, deadline); }, limit);
        }
        std::optional<Milliseconds> ask_remaining_lease(Instant limit = never) {
            auto& state = this->state();
            return ask_lease(
                state.session(), state.key(),
                [&](Instant deadline) { return state.wire().remaining_lease(state.session().calling(deadline)); },
                limit);
        }

    protected:
        Side(Client<T>& client, std::string_view name) : Side::NamedLock(client.core(), name) {}
    };

public:
    // The readers' side: held by many at a time.
    class ReadLock final : public Side<ReadLock, ReadProtocol> {
        friend ReadWriteLock;
        using Side<ReadLock, ReadProtocol>::Side;
    };

    // The writer's side. Throws Error(errc::would_deadlock), before anything is sent, to a thread that holds the read
    // side only.
    class WriteLock final : public Side<WriteLock, WriteProtocol> {
    public:
        bool acquire(const LockRequest& request) {
            const Instant now = Clock::now();
            if (readers_.valid_until_of(request.owner) > now && this->valid_until_of(request.owner) <= now)
                throw Error(errc::would_deadlock, this->state().key(),
                            "a reader that asks for the write side waits for itself; give back the read side first");
            if (!options_.writer_preference) return this->state().acquire(request);
            LockRequest first = request;
            first.precedence = true;
            return this->state().acquire(first);
        }

    private:
        friend ReadWriteLock;
        WriteLock(Client<T>& client, std::string_view name, ReadLock& readers, ReadWriteOptions options)
            : Side<WriteLock, WriteProtocol>(client, name), readers_(readers), options_(options) {}

        ReadLock& readers_;
        const ReadWriteOptions options_;
    };

    // Throws Error(errc::invalid_argument) for an empty name, one above 1,024 bytes, or braces that are not one
    // non-empty {tag}. Sends nothing.
    ReadWriteLock(Client<T>& client, std::string_view name, ReadWriteOptions options = {})
        : read_(client, name), write_(client, name, read_, options) {}

    // As given, without the client's key_prefix.
    const std::string& name() const noexcept { return read_.name(); }

    // Each side as a lock of its own, for whoever takes one: valid as long as this object.
    ReadLock& read_lock() noexcept { return read_; }
    WriteLock& write_lock() noexcept { return write_; }

    // The readers' side, as LockApi describes it for the writer's: one round trip when no writer holds the lock, the
    // same trailing arguments, the same errors.
    template <class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] auto lock_shared(Tail&&... tail) { return read_.lock(tail...); }

    template <class... Tail>
    requires TryOption<Tail...>
    [[nodiscard]] bool try_lock_shared(Tail&&... tail) { return read_.try_lock(tail...); }

    template <class Rep, class Period, class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] bool try_lock_shared_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return read_.try_lock_for(timeout, tail...);
    }

    template <class AnyClock, class Duration, class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] bool try_lock_shared_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return read_.try_lock_until(when, tail...);
    }

    void unlock_shared() { read_.unlock(); }
    void unlock_shared(std::error_code& ec) { read_.unlock(ec); }

    // --- for LockApi and for composed locks: the writer's side, for an owner that is told ------------------------

    bool acquire(const LockRequest& request) { return write_.acquire(request); }
    std::error_code release(OwnerNumber owner) { return write_.release(owner); }
    bool force_release() { return write_.force_release(); }
    Instant valid_until_of(OwnerNumber owner) { return write_.valid_until_of(owner); }
    std::stop_token lost_of(OwnerNumber owner) { return write_.lost_of(owner); }
    bool ask_locked() { return write_.ask_locked(); }
    int ask_hold_count(OwnerNumber owner) { return write_.ask_hold_count(owner); }
    std::optional<Milliseconds> ask_remaining_lease() { return write_.ask_remaining_lease(); }

private:
    ReadLock read_;
    WriteLock write_;
};

template <class T>
ReadWriteLock(Client<T>&, std::string_view) -> ReadWriteLock<T>;
template <class T>
ReadWriteLock(Client<T>&, std::string_view, ReadWriteOptions) -> ReadWriteLock<T>;

}  // namespace v0_1
}  // namespace redlatch
