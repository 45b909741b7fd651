// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/client.hpp"
#include "redlatch/inspection.hpp"
#include "redlatch/semaphore/permits.hpp"
#include "redlatch/session/call_options.hpp"
#include "redlatch/session/operation.hpp"
#include "redlatch/session/state_handle.hpp"
#include "redlatch/wait/wait_request.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>

namespace redlatch {
inline namespace REDLATCH_ABI {

// Provides a distributed semaphore: a std::counting_semaphore across processes, and the counterpart of Redisson's
// RSemaphore. A permit has no owner: any thread may release it, and the permits of a process that dies are lost. Use
// PermitExpirableSemaphore if they must come back.
//
// There are no permits before try_set_permits() or release(). Within a process, waiting threads are served in order of
// arrival, so requests for few permits cannot starve one for many. There is no order among processes. A request for
// more permits than this process has seen available within ten minutes takes turns with those behind it: it holds them
// back for a second, lets them pass for a second, and so on with turns of up to ten seconds. try_acquire() does not
// queue.
//
// Neither copyable nor movable. Any number of threads may use one object. Two objects with the same name are the same
// semaphore. Each member throws Error; with a trailing std::error_code& it stores the code and throws only
// std::bad_alloc. If the server cannot be reached, a call retries for unreachable_timeout (of ObjectOptions or
// ClientOptions), then fails with errc::unreachable. A command may be resent after a lost reply and still takes effect
// once. An acquire that fails, is stopped or times out keeps no permit, even if its outcome is unknown. Numbers of
// permits are from 0 to max(); any other number throws Error(errc::invalid_argument) before anything is sent. Each
// member is one round trip, except for waiting, and for permits that go to a waiter of this process.
class Semaphore {
public:
    // Makes an object for the semaphore of this name. Throws Error(errc::invalid_argument) if the name is empty, is longer
    // than 1,024 bytes, or has braces other than one non-empty {tag}, and for options that cannot work: see
    // ObjectOptions. Sends nothing.
    Semaphore(Client& client, std::string_view name, const ObjectOptions& options = {});

    // Returns the name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return handle_.name(); }

    // Returns the largest number of permits, which is the largest that Redisson can count.
    static constexpr std::ptrdiff_t max() noexcept { return std::numeric_limits<std::int32_t>::max(); }

    // Sets the number of permits if the semaphore does not exist. Returns true if it was set.
    bool try_set_permits(std::ptrdiff_t permits);
    bool try_set_permits(std::ptrdiff_t permits, std::error_code& ec);

    // Does the same for a semaphore that expires after `ttl`, a chrono duration, rounded down to milliseconds: as if
    // remove() were called then. Throws Error(errc::invalid_argument) if it is below 1 ms or above 100 years.
    template <class Rep, class Period>
    bool try_set_permits(std::ptrdiff_t permits, std::chrono::duration<Rep, Period> ttl) {
        return set_new_permits(permits, Lease(ttl).length());
    }
    template <class Rep, class Period>
    bool try_set_permits(std::ptrdiff_t permits, std::chrono::duration<Rep, Period> ttl, std::error_code& ec) {
        return detail::answer([&] { return try_set_permits(permits, ttl); }, false, ec);
    }

    // Acquires n permits at once (1 by default) and waits for them if necessary. A waiting thread sends one query every
    // 5 to 10 seconds, in case a message was lost. A process with many waiting threads sends no more than that.
    // If nobody has set up the semaphore, the wait raises the event not_set_up and goes on.
    //   acquire(…, token)   gives up if a stop is requested; only this form returns a bool: true if acquired
    //   acquire(…, ec)      stores the error instead of throwing it
    template <class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] auto acquire(std::ptrdiff_t n, Tail&&... tail) {
        const bool acquired =
            detail::answer([&] { return take(n, detail::wait_until(never, tail...)); }, false, tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return acquired;
    }
    template <class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] auto acquire(Tail&&... tail) { return acquire(1, tail...); }

    // Acquires n permits if they are available: one attempt, even if others wait.
    [[nodiscard]] bool try_acquire(std::ptrdiff_t n = 1) { return take(n, {.one_try = true}); }
    [[nodiscard]] bool try_acquire(std::ptrdiff_t n, std::error_code& ec);
    [[nodiscard]] bool try_acquire(std::error_code& ec) { return try_acquire(1, ec); }

    // Waits at most until `timeout` has passed, by a monotonic clock. Returns true if the permits were acquired. Timeouts
    // are rounded up to the next millisecond; zero or less is one attempt; the largest value waits indefinitely. Accepts
    // std::stop_token and std::error_code&.
    template <class Rep, class Period, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool try_acquire_for(std::chrono::duration<Rep, Period> timeout, std::ptrdiff_t n, Tail&&... tail) {
        return timed(deadline_after(Clock::now(), timeout), n, tail...);
    }
    template <class Rep, class Period, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool try_acquire_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return timed(deadline_after(Clock::now(), timeout), 1, tail...);
    }

    // Does the same as try_acquire_for(), until an instant of any clock, which is read once.
    template <class AnyClock, class Duration, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool try_acquire_until(std::chrono::time_point<AnyClock, Duration> when, std::ptrdiff_t n,
                                         Tail&&... tail) {
        return timed(deadline_at(when), n, tail...);
    }
    template <class AnyClock, class Duration, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool try_acquire_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return timed(deadline_at(when), 1, tail...);
    }

    // Acquires n permits (1 by default, at least 1) for an object that gives them back, and returns it: see Permits. Waits
    // and fails as acquire() does; an object that got none is empty.
    template <class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] Permits hold(std::ptrdiff_t n, Tail&&... tail) {
        return held(n, detail::wait_until(never, tail...), tail...);
    }
    template <class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] Permits hold(Tail&&... tail) { return hold(1, tail...); }

    // Acquires n permits for an object if they are available, as try_acquire() does. Otherwise the object is empty.
    template <class... Tail>
    requires(detail::StopOption<Tail...> && !detail::has_stop_token<Tail...>) Permits
        try_hold(std::ptrdiff_t n, Tail&&... tail) {
        return held(n, {.one_try = true}, tail...);
    }
    template <class... Tail>
    requires(detail::StopOption<Tail...> && !detail::has_stop_token<Tail...>) Permits try_hold(Tail&&... tail) {
        return try_hold(1, tail...);
    }

    // Acquires n permits for an object within a time, as try_acquire_for() does. Otherwise the object is empty.
    template <class Rep, class Period, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] Permits try_hold_for(std::chrono::duration<Rep, Period> timeout, std::ptrdiff_t n, Tail&&... tail) {
        return held(n, detail::wait_until(deadline_after(Clock::now(), timeout), tail...), tail...);
    }
    template <class Rep, class Period, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] Permits try_hold_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return try_hold_for(timeout, 1, tail...);
    }

    // Acquires n permits for an object without a thread that waits: see Operation. Waits and fails as hold() does. Accepts
    // a std::stop_token, which cancels the operation.
    template <class... Tail>
    requires detail::AsyncOption<Tail...> && detail::StopOption<Tail...> Operation<Permits> async_acquire(
        std::ptrdiff_t n, Tail&&... tail) {
        return later(n, detail::wait_until(never, tail...));
    }
    template <class... Tail>
    requires detail::AsyncOption<Tail...> && detail::StopOption<Tail...> Operation<Permits> async_acquire(
        Tail&&... tail) {
        return async_acquire(1, tail...);
    }

    // Does the same as async_acquire(), with one try.
    Operation<Permits> async_try_acquire(std::ptrdiff_t n = 1) { return later(n, {.one_try = true}); }

    // Does the same as async_acquire(), for this time at most. It begins to run with this call.
    template <class Rep, class Period, class... Tail>
    requires detail::AsyncOption<Tail...> && detail::StopOption<Tail...> Operation<Permits> async_try_acquire_for(
        std::chrono::duration<Rep, Period> timeout, std::ptrdiff_t n, Tail&&... tail) {
        return later(n, detail::wait_until(deadline_after(Clock::now(), timeout), tail...));
    }
    template <class Rep, class Period, class... Tail>
    requires detail::AsyncOption<Tail...> && detail::StopOption<Tail...> Operation<Permits> async_try_acquire_for(
        std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return async_try_acquire_for(timeout, 1, tail...);
    }

    // Releases n permits, or adds new ones. Creates the semaphore if it does not exist. Throws
    // Error(errc::invalid_argument) and changes nothing if there would be more than max() permits. If the first one that
    // waits in this process wants just n, it gets them, and nobody waits for the server: at most local_handoff_limit times
    // in a row, and not if one of them requires replicas or disks.
    //
    // If no server carries it out in time, the call fails with errc::unreachable or errc::overloaded, but the release
    // is not lost: the client retries it in the background for a minute and a half or more, while the process lives. So
    // do not release again after such an error. If the retries fail too, or it is no longer possible to tell whether
    // the release was carried out, the event unlock_not_delivered reports it.
    void release(std::ptrdiff_t n = 1) {
        check(n, 0);
        if (n > 0) give(n, false);
    }
    void release(std::ptrdiff_t n, std::error_code& ec);
    void release(std::error_code& ec) { release(1, ec); }

    // Does the same, but only if the semaphore exists, for semaphores whose key may have expired. Always asks the server.
    // Returns true if it exists.
    bool release_if_exists(std::ptrdiff_t n = 1) {
        check(n, 0);
        return give(n, true);
    }
    bool release_if_exists(std::ptrdiff_t n, std::error_code& ec);
    bool release_if_exists(std::error_code& ec) { return release_if_exists(1, ec); }

    // Returns the number of available permits: 0 if the semaphore does not exist, negative if add_permits() took away
    // more than there were.
    std::ptrdiff_t available_permits();
    std::ptrdiff_t available_permits(std::error_code& ec);

    // Changes the number of permits by n, from -max() to max(), also while some are acquired.
    void add_permits(std::ptrdiff_t n);
    void add_permits(std::ptrdiff_t n, std::error_code& ec);

    // Takes all available permits and leaves none. Returns their number, which is negative if some were owed.
    [[nodiscard]] std::ptrdiff_t drain_permits();
    [[nodiscard]] std::ptrdiff_t drain_permits(std::error_code& ec);

    // Returns true if the number of permits was set.
    bool exists();
    bool exists(std::error_code& ec);

    // Deletes the semaphore. Returns true if there was one. Waiting callers go on waiting until someone sets a number of
    // permits again. A release() creates the semaphore anew; a release_if_exists() does not.
    bool remove();
    bool remove(std::error_code& ec);

    // Lets the semaphore expire after this duration, rounded down to milliseconds, as if remove() were called then. Replaces
    // an earlier expiry. Returns false if there is no semaphore. Throws Error(errc::invalid_argument) if the duration is
    // below 1 ms or above 100 years.
    template <class Rep, class Period>
    bool expire(std::chrono::duration<Rep, Period> after) {
        return expire_after(Lease(after).length());
    }
    template <class Rep, class Period>
    bool expire(std::chrono::duration<Rep, Period> after, std::error_code& ec) {
        return detail::answer([&] { return expire(after); }, false, ec);
    }

    // Returns the state on the server: see SemaphoreInspection. One round trip. Changes nothing. Throws wrong_type if the
    // key belongs to something else.
    SemaphoreInspection inspect();
    SemaphoreInspection inspect(std::error_code& ec);

private:
    void check(std::ptrdiff_t n, std::ptrdiff_t least) const;
    bool set_new_permits(std::ptrdiff_t permits, Milliseconds ttl);
    bool expire_after(Milliseconds after);
    bool take(std::ptrdiff_t n, detail::WaitRequest request);
    bool give(std::ptrdiff_t n, bool only_existing);
    Operation<Permits> later(std::ptrdiff_t n, detail::WaitRequest request);

    template <class... Tail>
    Permits held(std::ptrdiff_t n, const detail::WaitRequest& request, Tail&... tail) {
        return detail::answer([&] { return later(n, request).get(); }, Permits(), tail...);
    }

    template <class... Tail>
    bool timed(Instant deadline, std::ptrdiff_t n, Tail&... tail) {
        return detail::answer([&] { return take(n, detail::wait_until(deadline, tail...)); }, false, tail...);
    }

    detail::StateHandle handle_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/semaphore.ipp"
#endif
