// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/client.hpp"
#include "redlatch/inspection.hpp"
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

// Lets any number of threads in many processes wait until a shared count reaches zero: a std::latch across processes,
// and the counterpart of Redisson's RCountDownLatch. It differs from std::latch in three ways:
//   - try_set_count() sets the count, and may set it again after it has ended.
//   - Counting down by more than is left ends the count at zero.
//   - While there is no count, waiting returns at once.
//
// Neither copyable nor movable. Any number of threads may use one object. Two objects with the same name are the same
// latch. Each member throws Error; with a trailing std::error_code& it stores the code and throws only std::bad_alloc.
// If the server cannot be reached, a call retries for unreachable_timeout (of ObjectOptions or ClientOptions), then
// fails with errc::unreachable. A command may be resent after a lost reply and still takes effect once.
class CountDownLatch {
public:
    // Makes an object for the latch of this name. Throws Error(errc::invalid_argument) if the name is empty, is longer
    // than 1,024 bytes, or has braces other than one non-empty {tag}. On a cluster the name must have no {tag} either,
    // because its channel would lie in another slot. Throws for options that cannot work: see ObjectOptions. Sends nothing.
    CountDownLatch(Client& client, std::string_view name, const ObjectOptions& options = {});

    // Returns the name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return handle_.name(); }

    // Returns the largest count, which is the largest that Redisson can read.
    static constexpr std::ptrdiff_t max() noexcept { return std::numeric_limits<std::int32_t>::max(); }

    // Sets the count if there is none. Returns true if it was set. One round trip, like every member that does not
    // wait. Throws Error(errc::invalid_argument) if `count` is not from 1 to max().
    bool try_set_count(std::ptrdiff_t count);
    bool try_set_count(std::ptrdiff_t count, std::error_code& ec);

    // Returns the number left to count down, or 0 if there is no count.
    std::ptrdiff_t count() const;
    std::ptrdiff_t count(std::error_code& ec) const;

    // Counts down by n. At zero all waiters return. Does nothing if there is no count or n is 0. Throws
    // Error(errc::invalid_argument) if n is negative.
    //
    // If no server carries it out in time, the call fails with errc::unreachable or errc::overloaded, but the
    // count-down is not lost: the client retries it in the background for a minute and a half or more, while the
    // process lives. So do not count down again after such an error. If the retries fail too, the event
    // unlock_not_delivered reports it.
    void count_down(std::ptrdiff_t n = 1);
    void count_down(std::ptrdiff_t n, std::error_code& ec);
    void count_down(std::error_code& ec) { count_down(1, ec); }

    // Returns true if there is nothing left to count down.
    [[nodiscard]] bool try_wait() const { return wait_for_end({.one_try = true}); }
    [[nodiscard]] bool try_wait(std::error_code& ec) const;

    // Waits until the count that was set at the time of the call has ended: it reached zero, was reset, or its key
    // expired. A count set after that does not matter. A waiting thread sends one query every 5 to 10 seconds, in case
    // a message was lost. A process with many waiting threads sends no more than that.
    //   wait(token)   returns early if a stop is requested; only this form returns a bool: true if the count has ended
    //   wait(…, ec)   stores the error instead of throwing it
    template <class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] auto wait(Tail&&... tail) const {
        const bool ended =
            detail::answer([&] { return wait_for_end(detail::wait_until(never, tail...)); }, false, tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return ended;
    }

    // Waits at most until `timeout` has passed, by a monotonic clock. Returns true if the count has ended. Timeouts are
    // rounded up to the next millisecond; zero or less checks once; the largest value waits indefinitely. Accepts
    // std::stop_token and std::error_code&.
    template <class Rep, class Period, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool wait_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) const {
        return timed(deadline_after(Clock::now(), timeout), tail...);
    }

    // Does the same as wait_for(), until an instant of any clock, which is read once.
    template <class AnyClock, class Duration, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool wait_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) const {
        return timed(deadline_at(when), tail...);
    }

    // Wait for the end of the count without a thread that waits: see Operation. The result is true if the count has ended.
    // Accept a std::stop_token, which cancels the operation.
    template <class... Tail>
    requires detail::AsyncOption<Tail...> && detail::StopOption<Tail...> Operation<bool> async_wait(Tail&&... tail)
    const { return later(detail::wait_until(never, tail...)); }

    // Does the same as async_wait(), for this time at most. It begins to run with this call.
    template <class Rep, class Period, class... Tail>
    requires detail::AsyncOption<Tail...> && detail::StopOption<Tail...> Operation<bool> async_wait_for(
        std::chrono::duration<Rep, Period> timeout, Tail&&... tail)
    const { return later(detail::wait_until(deadline_after(Clock::now(), timeout), tail...)); }

    // Calls count_down(n), then wait(…) for the end of the same count. Takes one round trip if this call ended the
    // count.
    template <class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] auto arrive_and_wait(std::ptrdiff_t n, Tail&&... tail) {
        const bool ended =
            detail::answer([&] { return arrive(n, detail::wait_until(never, tail...)); }, false, tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return ended;
    }
    template <class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] auto arrive_and_wait(Tail&&... tail) { return arrive_and_wait(1, tail...); }

    // Ends the count at once, as if it had reached zero; all waiters return. Returns true if there was a count.
    bool reset();
    bool reset(std::error_code& ec);

    // Returns true if there is a count.
    bool exists() const;
    bool exists(std::error_code& ec) const;

    // Does the same as reset(): deletes the latch, and all waiters return.
    bool remove() { return reset(); }
    bool remove(std::error_code& ec);

    // Lets the count end after this duration, rounded down to milliseconds, unless it reaches zero before. Waiters may
    // notice that end up to 10 s later, because the server publishes no message. Replaces an earlier expiry. Returns
    // false if there is no count. Throws Error(errc::invalid_argument) if the duration is below 1 ms or above 100 years.
    template <class Rep, class Period>
    bool expire(std::chrono::duration<Rep, Period> after) {
        return expire_after(Lease(after).length());
    }
    template <class Rep, class Period>
    bool expire(std::chrono::duration<Rep, Period> after, std::error_code& ec) {
        return detail::answer([&] { return expire(after); }, false, ec);
    }

    // Returns the state on the server: see LatchInspection. One round trip. Changes nothing. Throws wrong_type if the key
    // belongs to something else.
    LatchInspection inspect() const;
    LatchInspection inspect(std::error_code& ec) const;

private:
    bool expire_after(Milliseconds after);
    bool wait_for_end(detail::WaitRequest request) const;
    bool arrive(std::ptrdiff_t n, detail::WaitRequest request);
    Operation<bool> later(detail::WaitRequest request) const;

    template <class... Tail>
    bool timed(Instant deadline, Tail&... tail) const {
        return detail::answer([&] { return wait_for_end(detail::wait_until(deadline, tail...)); }, false, tail...);
    }

    // Waiting is const, as it is for std::latch.
    mutable detail::StateHandle handle_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/count_down_latch.ipp"
#endif
