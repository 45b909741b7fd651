// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/client.hpp"
#include "redlatch/error.hpp"
#include "redlatch/lock/hold.hpp"
#include "redlatch/lock/lock_api.hpp"
#include "redlatch/options.hpp"
#include "redlatch/session/call_options.hpp"
#include "redlatch/session/state_handle.hpp"
#include "redlatch/wait/wait_request.hpp"

#include <chrono>
#include <concepts>
#include <cstddef>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <system_error>

namespace redlatch {
inline namespace REDLATCH_ABI {

// A lock and a Hold of it as one lockable object, for ConditionVariable and whatever else takes one. Refers to both.
//
//   redlatch::Hold hold = orders.hold();
//   redlatch::HeldLock held{orders, hold};
//   changed.wait(held, [&] { return !queue.empty(); });
class HeldLock {
public:
    // `lock` is any lock of this library, of which `hold` holds one level.
    HeldLock(detail::LockApi& lock, Hold& hold) noexcept : lock_(lock), hold_(hold) {}

    // Acquires the lock for the object, under the watchdog, with an owner of its own. Waits and fails as hold() of the lock
    // does.
    void lock() { hold_ = lock_.hold(); }

    // Releases what the object holds. Throws Error(errc::not_owner) if it holds nothing.
    void unlock() {
        if (const std::error_code ec = hold_.unlock(); ec == errc::not_owner)
            throw Error(errc::not_owner, {}, "this object holds nothing");
    }
    void unlock(std::error_code& ec) { ec = hold_.unlock(); }

private:
    detail::LockApi& lock_;
    Hold& hold_;
};

namespace detail {

// What a condition variable releases while it waits.
template <class Lock>
concept Relockable = requires(Lock& lock) {
    lock.lock();
    lock.unlock();
};

// Unlocks. Returns true if the lock had been lost before, or may have been, as far as its type tells.
template <class Lock>
bool unlock_lost(Lock& lock) {
    if constexpr (requires(std::error_code & ec) { lock.unlock(ec); }) {
        std::error_code ec;
        lock.unlock(ec);
        if (ec == errc::not_owner) lock.unlock();  // throws
        return static_cast<bool>(ec);
    } else {
        lock.unlock();
        return false;
    }
}
template <class Mutex>
bool unlock_lost(std::unique_lock<Mutex>& guard) {
    if (!guard.owns_lock()) guard.unlock();  // throws
    Mutex& mutex = *guard.release();
    guard = std::unique_lock(mutex, std::defer_lock);
    return unlock_lost(mutex);
}
template <class Mutex>
bool unlock_lost(std::shared_lock<Mutex>& guard) {
    if constexpr (requires {
                      { guard.mutex()->read_lock() } -> std::convertible_to<LockApi&>;
                  }) {
        if (!guard.owns_lock()) guard.unlock();  // throws
        Mutex& mutex = *guard.release();
        guard = std::shared_lock(mutex, std::defer_lock);
        return unlock_lost(mutex.read_lock());
    } else {
        guard.unlock();
        return false;
    }
}

// The same without its type.
class AnyRelockable {
public:
    virtual ~AnyRelockable() = default;
    virtual void lock() = 0;
    virtual bool unlock() = 0;
};

template <class Lock>
class RelockableOf final : public AnyRelockable {
public:
    explicit RelockableOf(Lock& lock) : lock_(lock) {}
    void lock() override { lock_.lock(); }
    bool unlock() override { return unlock_lost(lock_); }

private:
    Lock& lock_;
};

}  // namespace detail

// Lets threads of any processes wait until something has changed that a lock protects: a std::condition_variable_any across
// processes. Use it with an RLock or any other lock of this library that the calling thread holds, a std::unique_lock of
// one, or a Hold (see HeldLock). All that wait and notify must use the same lock. The lock must be held once: a second level
// would keep the others out.
//
//   redlatch::RLock orders{redis, "orders"};
//   redlatch::ConditionVariable changed{redis, "orders:changed"};
//   std::unique_lock guard{orders};
//   changed.wait(guard, [&] { return has_order(); });
//
// A waiter registers on the server before it releases the lock. So a notification by anyone who acquires the lock after that
// is not lost. A registration has a lease, which the client's watchdog renews while the call waits. If a waiter that was
// notified dies, or gives up, the next one gets its notification. Waiters are notified in the order of their registration. A
// call may return without a notification: when the server has lost its data, the process was paused for longer than the
// lease, or the hold of the lock had been lost. So use a predicate. A lockable object of your own reports a lost hold through
// unlock(std::error_code&), if it has that member.
//
// The client sends nothing while it waits, except renewals, and one query every 5 to 10 seconds for all waiters of a
// process, in case a message was lost. Waiting takes three round trips besides those of the lock.
//
// Neither copyable nor movable. Any number of threads may use one object; two objects with the same name are the same
// condition variable. Each member throws Error; with a trailing std::error_code& it stores the code. A call that waits holds
// the lock again when it returns or throws, unless the error is that of acquiring the lock: then it is not held, and
// std::unique_lock::owns_lock(), is_held() or the Hold tell so.
class ConditionVariable {
public:
    // Makes an object for the condition variable of this name. Throws Error(errc::invalid_argument) if the name is empty, is
    // longer than 1,024 bytes, or has braces other than one non-empty {tag}, and for options that cannot work: see
    // ObjectOptions. Sends nothing.
    ConditionVariable(Client& client, std::string_view name, const ObjectOptions& options = {});

    // Returns the name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return handle_.name(); }

    // Releases the lock, waits for a notification, and acquires the lock again. Throws Error(errc::not_owner) if the lock is
    // not held.
    //   wait(lock, token)   gives up when a stop is requested; only this form returns a bool: true if it was notified
    //   wait(lock, …, ec)   stores the error instead of throwing it
    template <detail::Relockable Lock, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] auto wait(Lock& lock, Tail&&... tail) {
        const bool notified =
            detail::answer([&] { return wait_once(lock, detail::wait_until(never, tail...)); }, false, tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return notified;
    }

    // Waits until pred(), which is called with the lock held, returns true; does not wait if it does already. With a stop
    // token it returns the last result of pred().
    template <detail::Relockable Lock, std::predicate Pred, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] auto wait(Lock& lock, Pred pred, Tail&&... tail) {
        const bool fulfilled =
            detail::answer([&] { return wait_until_true(lock, pred, never, tail...); }, false, tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return fulfilled;
    }

    // Waits for a notification until `timeout` has passed, by a monotonic clock; acquiring the lock again may take longer.
    // Returns true if it was notified. Timeouts are rounded up to the next millisecond; the largest value waits
    // indefinitely. Accepts std::stop_token and std::error_code&.
    template <detail::Relockable Lock, class Rep, class Period, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool wait_for(Lock& lock, std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return timed(lock, deadline_after(Clock::now(), timeout), tail...);
    }

    // Does the same until pred() returns true. Returns the last result of pred().
    template <detail::Relockable Lock, class Rep, class Period, std::predicate Pred, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool wait_for(Lock& lock, std::chrono::duration<Rep, Period> timeout, Pred pred, Tail&&... tail) {
        return timed_until_true(lock, pred, deadline_after(Clock::now(), timeout), tail...);
    }

    // Do the same as wait_for(), until an instant of any clock, which is read once.
    template <detail::Relockable Lock, class AnyClock, class Duration, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool wait_until(Lock& lock, std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return timed(lock, deadline_at(when), tail...);
    }
    template <detail::Relockable Lock, class AnyClock, class Duration, std::predicate Pred, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool wait_until(Lock& lock, std::chrono::time_point<AnyClock, Duration> when, Pred pred,
                                  Tail&&... tail) {
        return timed_until_true(lock, pred, deadline_at(when), tail...);
    }

    // Notifies the waiter that has waited longest. Returns false if nobody waits. One round trip. The lock need not be held;
    // if it is, the waiter goes on when it is released.
    bool notify_one();
    bool notify_one(std::error_code& ec);

    // Notifies all that wait now. Returns how many. One round trip.
    std::ptrdiff_t notify_all();
    std::ptrdiff_t notify_all(std::error_code& ec);

    // Returns how many wait now, in all processes, and are not notified yet. One that has died counts until it is found. One
    // round trip.
    std::ptrdiff_t waiters();
    std::ptrdiff_t waiters(std::error_code& ec);

private:
    template <class Lock>
    bool wait_once(Lock& lock, const detail::WaitRequest& request) {
        detail::RelockableOf<Lock> relockable(lock);
        return await(relockable, request);
    }

    template <class Lock, class Pred, class... Tail>
    bool wait_until_true(Lock& lock, Pred& pred, Instant deadline, Tail&... tail) {
        while (!pred())
            if (!wait_once(lock, detail::wait_until(deadline, tail...))) return pred();
        return true;
    }

    template <class Lock, class... Tail>
    bool timed(Lock& lock, Instant deadline, Tail&... tail) {
        return detail::answer([&] { return wait_once(lock, detail::wait_until(deadline, tail...)); }, false, tail...);
    }

    template <class Lock, class Pred, class... Tail>
    bool timed_until_true(Lock& lock, Pred& pred, Instant deadline, Tail&... tail) {
        return detail::answer([&] { return wait_until_true(lock, pred, deadline, tail...); }, false, tail...);
    }

    bool await(detail::AnyRelockable& lock, detail::WaitRequest request);

    detail::StateHandle handle_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/condition_variable.ipp"
#endif
