// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/keep_errno.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/session/call_options.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <chrono>
#include <concepts>
#include <new>
#include <optional>
#include <stop_token>
#include <system_error>
#include <type_traits>
#include <utility>

namespace redlatch {
inline namespace v0_1 {

// The public members of every lock, on top of what the lock itself does for an owner that it is told:
//   bool acquire(const LockRequest&), std::error_code release(OwnerNumber), and the inquiries.
//
// All members may be called by any number of threads at once. Each throws Error, or with a trailing std::error_code&
// stores the code and throws nothing but std::bad_alloc. A call waits for another holder as long as it takes, but for
// a server that cannot be reached at most ClientOptions::unreachable_timeout, then fails with errc::unreachable.
// Whatever fails, times out or is stopped leaves no hold behind.
template <class Lock>
class LockApi {
public:
    // Takes the lock, waiting for it. Reentrant: as many unlock() as lock(). One round trip when nobody holds it; a
    // waiting thread sends nothing until the lock is released or its holder's lease ends. (A Mutex is not reentrant; it
    // and a SpinLock ask while they wait.)
    //   lock(Lease{d})   the hold ends by itself after d and is never renewed; without it the watchdog renews it
    //   lock(token)      gives up when a stop is requested; then, and only then, returns a bool: whether it is held
    //   lock(…, ec)      stores the error instead of throwing it
    template <class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] auto lock(Tail&&... tail) { return waiting(never, tail...); }

    // Takes the lock if nobody holds it: one try, one round trip. May be given Lease and std::error_code&.
    template <class... Tail>
    requires TryOption<Tail...>
    [[nodiscard]] bool try_lock(Tail&&... tail) {
        return detail::answer(
            [&] {
                LockRequest request = request_of(tail...);
                request.one_try = true;
                return self().acquire(request);
            },
            false, tail...);
    }

    // Takes the lock, waiting for it until `timeout` is over or the instant has come, by a monotonic clock. Waits are
    // rounded up to the next millisecond; zero or less is one try, the largest value is for ever. The first
    // question to the server is given 250 ms in any case, so that a short wait for a free lock is not in vain. False
    // when not held in time. May be given Lease, std::stop_token and std::error_code&.
    template <class Rep, class Period, class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] bool try_lock_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return timed(deadline_after(Clock::now(), timeout), tail...);
    }

    template <class AnyClock, class Duration, class... Tail>
    requires LockOption<Tail...>
    [[nodiscard]] bool try_lock_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return timed(deadline_at(when), tail...);
    }

    // Gives one level back: one round trip. Throws Error(errc::not_owner) when this thread never took the lock, and
    // nothing else, so that a guard can end in peace: that the hold was lost meanwhile, or that the server could not
    // be told (it will be, in the background, until the lease is over), is told by lost() and on_event. Keeps errno.
    void unlock() {
        const KeepErrno kept;
        [[maybe_unused]] const std::error_code quiet = self().release(this_thread_number());
    }

    // The same without throwing; `ec` tells all: not_owner, hold_lost, unreachable, …
    void unlock(std::error_code& ec) {
        const KeepErrno kept;
        try {
            ec = self().release(this_thread_number());
        } catch (const std::system_error& error) {
            ec = error.code();
        }
    }

    // Whether anybody holds it. One round trip, as the next three, which ask the server too.
    bool is_locked() { return self().ask_locked(); }
    bool is_locked(std::error_code& ec) {
        return detail::answer([&] { return is_locked(); }, false, ec);
    }

    // Whether this thread holds it, by the server's word.
    bool is_held() { return hold_count() > 0; }
    bool is_held(std::error_code& ec) { return hold_count(ec) > 0; }

    // How many times this thread holds it, by the server's word; 0 when it does not.
    int hold_count() { return self().ask_hold_count(this_thread_number()); }
    int hold_count(std::error_code& ec) {
        return detail::answer([&] { return hold_count(); }, 0, ec);
    }

    // What the present holder's lease has left, nothing when nobody holds it; milliseconds::max() for a key without
    // TTL.
    std::optional<std::chrono::milliseconds> remaining_lease() { return self().ask_remaining_lease(); }
    std::optional<std::chrono::milliseconds> remaining_lease(std::error_code& ec) {
        return detail::answer([&] { return remaining_lease(); }, std::optional<std::chrono::milliseconds>(), ec);
    }

    // Until when this thread's hold is certain, counted on the safe side; time_point::min() when it holds nothing. No
    // command. After it, others may hold the lock: check it before each write that must not come late. Time for which
    // the machine was suspended counts (Linux).
    [[nodiscard]] std::chrono::steady_clock::time_point valid_until() {
        return self().valid_until_of(this_thread_number());
    }

    // A token that is requested when this thread's present hold is lost, or can no longer be vouched for: at
    // valid_until() at the latest, plus what the machine needs to run a thread; also when the client ends while it holds.
    // Requested already when it holds nothing. Its callbacks run on a thread of the client's, one after another, and
    // should be short; those of a client that ends, on the thread that ends it. No command.
    [[nodiscard]] std::stop_token lost() { return self().lost_of(this_thread_number()); }

    // Ends anyone's hold and wakes the waiters; whether there was one. Two round trips: it looks who holds the lock, and
    // ends that hold, so a copy of the command that arrives late ends nobody else's.
    bool force_unlock() { return self().force_release(); }
    bool force_unlock(std::error_code& ec) {
        return detail::answer([&] { return force_unlock(); }, false, ec);
    }

private:
    Lock& self() { return static_cast<Lock&>(*this); }

    // Which thread asks is decided here and nowhere below.
    template <class... Tail>
    static LockRequest request_of(const Tail&... tail) {
        LockRequest request;
        request.owner = this_thread_number();
        [[maybe_unused]] const auto take = [&](const auto& argument) {
            using Argument = std::remove_cvref_t<decltype(argument)>;
            if constexpr (std::same_as<Argument, Lease>) request.lease = argument.length();
            if constexpr (std::same_as<Argument, std::stop_token>) request.stop = argument;
        };
        (take(tail), ...);
        return request;
    }

    template <class... Tail>
    auto waiting(Instant deadline, Tail&... tail) {
        const bool held = detail::answer(
            [&] {
                LockRequest request = request_of(tail...);
                request.deadline = deadline;
                return self().acquire(request);
            },
            false, tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return held;
    }

    template <class... Tail>
    bool timed(Instant deadline, Tail&... tail) {
        return detail::answer(
            [&] {
                LockRequest request = request_of(tail...);
                request.deadline = deadline;
                request.one_try = deadline <= Clock::now();
                return self().acquire(request);
            },
            false, tail...);
    }
};

}  // namespace v0_1
}  // namespace redlatch
