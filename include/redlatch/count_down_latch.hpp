// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client.hpp"
#include "redlatch/protocol/count_down_latch.hpp"
#include "redlatch/semaphore/synchronizer.hpp"
#include "redlatch/session/call_options.hpp"
#include "redlatch/session/queries.hpp"
#include "redlatch/session/state_handle.hpp"
#include "redlatch/wait/wait_request.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace v0_1 {

// A count of the whole fleet on whose end any number of threads wait: the std::latch of several processes, and what
// Redisson's RCountDownLatch is in Java. Unlike std::latch the count is set by try_set_count(), may be counted down
// below what is left (it ends at zero), and can be set anew when it has ended. Without a count nobody waits.
//
// Neither copied nor moved; any number of threads may use one object, and two objects of one name are the same latch.
// Each member throws Error, or with a trailing std::error_code& stores the code and throws nothing but std::bad_alloc.
// A server that cannot be reached is tried for ClientOptions::unreachable_timeout, then the call fails with
// errc::unreachable. Every command may be sent twice, because its answer was lost, and takes effect once.
template <class T = HiredisTransport>
class CountDownLatch {
public:
    // Throws Error(errc::invalid_argument) for an empty name, one above 1,024 bytes, or braces that are not one
    // non-empty {tag}. Sends nothing.
    CountDownLatch(Client<T>& client, std::string_view name) : binding_(client.core(), name) {}

    // As given, without the client's key_prefix.
    const std::string& name() const noexcept { return binding_.name(); }

    // The greatest count: what Redisson can read.
    static constexpr std::ptrdiff_t max() noexcept { return std::numeric_limits<std::int32_t>::max(); }

    // Sets the count, unless there is one: whether it did. One round trip, as all that do not wait. Throws
    // Error(errc::invalid_argument) for what is not from 1 to max().
    bool try_set_count(std::ptrdiff_t count) {
        check(count, 1, "a count must be from 1 to 2147483647");
        State& latch = state();
        const Reply reply = latch.change(
            [&](const RequestId& ticket, Instant deadline) { return latch.wire().set(ticket, count, deadline); });
        if (!reply.is_integer()) throw unexpected(reply, latch.key());
        return reply.integer == 1;
    }
    bool try_set_count(std::ptrdiff_t count, std::error_code& ec) {
        return detail::answer([&] { return try_set_count(count); }, false, ec);
    }

    // What is left to count down; 0 when there is no count.
    std::ptrdiff_t count() const {
        return static_cast<std::ptrdiff_t>(std::max<std::int64_t>(0, ask_number(state().session(), state().key())));
    }
    std::ptrdiff_t count(std::error_code& ec) const {
        return detail::answer([&] { return count(); }, std::ptrdiff_t(0), ec);
    }

    // Counts down; at zero all waiters go on. Nothing happens when there is no count, or for n = 0. Should no server
    // carry it out in time, it fails with errc::unreachable or errc::overloaded, but is not lost: it goes on in the
    // background as long as the process lives, for a minute and a half or more; if that fails too, the event
    // unlock_not_delivered tells. So do not count down again then. Throws Error(errc::invalid_argument) for a negative
    // n.
    void count_down(std::ptrdiff_t n = 1) {
        check(n, 0, counts_down_by);
        if (n > 0) lower(n);
    }
    void count_down(std::ptrdiff_t n, std::error_code& ec) {
        detail::answer([&] { return count_down(n), true; }, false, ec);
    }
    void count_down(std::error_code& ec) { count_down(1, ec); }

    // Whether there is nothing left to count down.
    [[nodiscard]] bool try_wait() const { return wait_for_end({.one_try = true}); }
    [[nodiscard]] bool try_wait(std::error_code& ec) const {
        return detail::answer([&] { return try_wait(); }, false, ec);
    }

    // Waits until the count has ended that was there at the call: it came to zero, was reset, or its key expired. That
    // another was set since does not matter. A waiting thread sends nothing but one question in 5 to 10 seconds, in
    // case that a message is lost, and a process with many waiting threads no more than that.
    //   wait(token)   gives up when a stop is requested; then, and only then, returns a bool: whether the count has ended
    //   wait(…, ec)   stores the error instead of throwing it
    template <class... Tail>
    requires StopOption<Tail...>
    [[nodiscard]] auto wait(Tail&&... tail) const {
        const bool ended =
            detail::answer([&] { return wait_for_end(detail::wait_until(never, tail...)); }, false, tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return ended;
    }

    // Waits until `timeout` is over or the instant has come at the latest, by a monotonic clock: whether the count has
    // ended. Rounded up to the next millisecond; zero or less is one look, the largest value is for ever. May be given
    // std::stop_token and std::error_code&.
    template <class Rep, class Period, class... Tail>
    requires StopOption<Tail...>
    [[nodiscard]] bool wait_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) const {
        return timed(deadline_after(Clock::now(), timeout), tail...);
    }

    template <class AnyClock, class Duration, class... Tail>
    requires StopOption<Tail...>
    [[nodiscard]] bool wait_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) const {
        return timed(deadline_at(when), tail...);
    }

    // count_down(n), then wait(…) for the end of the same count. One round trip where that was the last one.
    template <class... Tail>
    requires StopOption<Tail...>
    [[nodiscard]] auto arrive_and_wait(std::ptrdiff_t n, Tail&&... tail) {
        const bool ended = detail::answer(
            [&] {
                check(n, 0, counts_down_by);
                const WaitRequest request = detail::wait_until(never, tail...);
                if (n == 0) return wait_for_end(request);
                auto [before, want] = lower(n);
                return before <= n || state().obtain(want, request);
            },
            false, tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return ended;
    }
    template <class... Tail>
    requires StopOption<Tail...>
    [[nodiscard]] auto arrive_and_wait(Tail&&... tail) { return arrive_and_wait(1, tail...); }

    // Ends the count without counting down, as if it had come to zero: waiters go on. Whether there was one.
    bool reset() {
        State& latch = state();
        const Reply reply = latch.change([&](const RequestId& ticket, Instant deadline) {
            return latch.wire().lower(ticket, LatchProtocol<T>::all, deadline);
        });
        return latch.wire().decode_lower(reply).before != 0;
    }
    bool reset(std::error_code& ec) {
        return detail::answer([&] { return reset(); }, false, ec);
    }

private:
    using State = Synchronizer<T, LatchProtocol>;

    // To wait is const, as it is for std::latch.
    State& state() const { return binding_.state(); }

    void check(std::ptrdiff_t n, std::ptrdiff_t least, const char* rule) const {
        if (n < least || n > max()) throw Error(errc::invalid_argument, name(), rule);
    }

    static constexpr const char* counts_down_by = "a latch is counted down by a number from 0 to 2147483647";

    typename LatchProtocol<T>::Lowered lower(std::ptrdiff_t n) {
        State& latch = state();
        const Reply reply = latch.change(
            [&](const RequestId& ticket, Instant deadline) { return latch.wire().lower(ticket, n, deadline); },
            [&latch, n](const RequestId& ticket, Completion done) {
                latch.wire().post_lower(ticket, n, std::move(done));
            });
        return latch.wire().decode_lower(reply);
    }

    bool wait_for_end(const WaitRequest& request) const {
        typename LatchProtocol<T>::Want want;
        return state().obtain(want, request);
    }

    template <class... Tail>
    bool timed(Instant deadline, Tail&... tail) const {
        return detail::answer([&] { return wait_for_end(detail::wait_until(deadline, tail...)); }, false, tail...);
    }

    mutable StateHandle<T, State> binding_;
};

template <class T>
CountDownLatch(Client<T>&, std::string_view) -> CountDownLatch<T>;

}  // namespace v0_1
}  // namespace redlatch
