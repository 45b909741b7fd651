// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client.hpp"
#include "redlatch/protocol/semaphore.hpp"
#include "redlatch/semaphore/synchronizer.hpp"
#include "redlatch/session/call_options.hpp"
#include "redlatch/session/queries.hpp"
#include "redlatch/session/state_handle.hpp"
#include "redlatch/wait/wait_request.hpp"

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

// A number of permits that the whole fleet shares: the std::counting_semaphore of several processes, and what
// Redisson's RSemaphore is in Java. Nobody owns a permit: anybody may release, and the permits of a process that dies
// are gone for good. Where that must not be, use PermitExpirableSemaphore.
//
// Without try_set_permits() or release() there are no permits. Within a process waiting threads are served in the order
// of their arrival, so one that wants many is not starved by others that want few; among processes there is no order.
// One that wants more than this process has seen there within ten minutes takes turns with those behind it: it holds
// them back for a second, lets them pass for a second, and so on with turns up to ten seconds. try_acquire() does not
// stand in line.
//
// Neither copied nor moved; any number of threads may use one object, and two objects of one name are the same
// semaphore. Each member throws Error, or with a trailing std::error_code& stores the code and throws nothing but
// std::bad_alloc. A server that cannot be reached is tried for ClientOptions::unreachable_timeout, then the call fails
// with errc::unreachable. Every command may be sent twice, because its answer was lost, and takes effect once; an
// acquire that fails, is stopped or times out keeps no permit, even when its outcome is unknown. Numbers of permits are
// from 0 to max(), everything else throws Error(errc::invalid_argument) before anything is sent. Each member is one
// round trip, but for waiting.
template <class T = HiredisTransport>
class Semaphore {
public:
    // Throws Error(errc::invalid_argument) for an empty name, one above 1,024 bytes, or braces that are not one
    // non-empty {tag}. Sends nothing.
    Semaphore(Client<T>& client, std::string_view name) : binding_(client.core(), name) {}

    // As given, without the client's key_prefix.
    const std::string& name() const noexcept { return binding_.name(); }

    // The greatest number of permits: what Redisson can count.
    static constexpr std::ptrdiff_t max() noexcept { return std::numeric_limits<std::int32_t>::max(); }

    // Sets the number of permits, unless the semaphore exists: whether it did.
    bool try_set_permits(std::ptrdiff_t permits) {
        check(permits, 0);
        State& semaphore = state();
        return is_one(semaphore.change([&](const RequestId& ticket, Instant deadline) {
            return semaphore.wire().set(ticket, permits, deadline);
        }));
    }
    bool try_set_permits(std::ptrdiff_t permits, std::error_code& ec) {
        return detail::answer([&] { return try_set_permits(permits); }, false, ec);
    }

    // Takes n permits at once, one without a number, waiting for them. A waiting thread sends nothing but one question
    // in 5 to 10 seconds, in case that a message is lost, and a process with many waiting threads no more than that.
    //   acquire(…, token)   gives up when a stop is requested; then, and only then, returns a bool: whether it has them
    //   acquire(…, ec)      stores the error instead of throwing it
    template <class... Tail>
    requires StopOption<Tail...>
    [[nodiscard]] auto acquire(std::ptrdiff_t n, Tail&&... tail) {
        const bool acquired =
            detail::answer([&] { return take(n, detail::wait_until(never, tail...)); }, false, tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return acquired;
    }
    template <class... Tail>
    requires StopOption<Tail...>
    [[nodiscard]] auto acquire(Tail&&... tail) { return acquire(1, tail...); }

    // Takes them if they are there: one try, even if others wait.
    [[nodiscard]] bool try_acquire(std::ptrdiff_t n = 1) { return take(n, {.one_try = true}); }
    [[nodiscard]] bool try_acquire(std::ptrdiff_t n, std::error_code& ec) {
        return detail::answer([&] { return try_acquire(n); }, false, ec);
    }
    [[nodiscard]] bool try_acquire(std::error_code& ec) { return try_acquire(1, ec); }

    // Waits until `timeout` is over or the instant has come at the latest, by a monotonic clock: whether it has them.
    // Rounded up to the next millisecond; zero or less is one try, the largest value is for ever. May be given
    // std::stop_token and std::error_code&.
    template <class Rep, class Period, class... Tail>
    requires StopOption<Tail...>
    [[nodiscard]] bool try_acquire_for(std::chrono::duration<Rep, Period> timeout, std::ptrdiff_t n, Tail&&... tail) {
        return timed(deadline_after(Clock::now(), timeout), n, tail...);
    }
    template <class Rep, class Period, class... Tail>
    requires StopOption<Tail...>
    [[nodiscard]] bool try_acquire_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return timed(deadline_after(Clock::now(), timeout), 1, tail...);
    }

    template <class AnyClock, class Duration, class... Tail>
    requires StopOption<Tail...>
    [[nodiscard]] bool try_acquire_until(std::chrono::time_point<AnyClock, Duration> when, std::ptrdiff_t n,
                                         Tail&&... tail) {
        return timed(deadline_at(when), n, tail...);
    }
    template <class AnyClock, class Duration, class... Tail>
    requires StopOption<Tail...>
    [[nodiscard]] bool try_acquire_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return timed(deadline_at(when), 1, tail...);
    }

    // Puts permits back, or new ones in: it creates the semaphore where there is none. Should no server carry it out in
    // time, it fails with errc::unreachable or errc::overloaded, but is not lost: it goes on in the background as long
    // as the process lives, for a minute and a half or more; if that fails too, or nobody can tell any more whether it
    // was carried out, the event unlock_not_delivered tells. So do not release again then. What would make more than
    // max() is refused with errc::invalid_argument, and changes nothing.
    void release(std::ptrdiff_t n = 1) {
        check(n, 0);
        if (n > 0) give(n, false);
    }
    void release(std::ptrdiff_t n, std::error_code& ec) {
        detail::answer([&] { return release(n), true; }, false, ec);
    }
    void release(std::error_code& ec) { release(1, ec); }

    // The same, but only if the semaphore exists: whether it does. For one whose key may have expired.
    bool release_if_exists(std::ptrdiff_t n = 1) {
        check(n, 0);
        return give(n, true);
    }
    bool release_if_exists(std::ptrdiff_t n, std::error_code& ec) {
        return detail::answer([&] { return release_if_exists(n); }, false, ec);
    }
    bool release_if_exists(std::error_code& ec) { return release_if_exists(1, ec); }

    // How many permits are there now; 0 for a semaphore that does not exist, negative after add_permits() took away
    // more than there were.
    std::ptrdiff_t available_permits() {
        return static_cast<std::ptrdiff_t>(ask_number(state().session(), state().key()));
    }
    std::ptrdiff_t available_permits(std::error_code& ec) {
        return detail::answer([&] { return available_permits(); }, std::ptrdiff_t(0), ec);
    }

    // Changes the number of permits by n, from -max() to max(), also while some are taken.
    void add_permits(std::ptrdiff_t n) {
        check(n, -max());
        if (n == 0) return;
        State& semaphore = state();
        is_one(semaphore.change([&](const RequestId& ticket, Instant deadline) {
            return semaphore.wire().add(ticket, n, false, deadline);
        }));
    }
    void add_permits(std::ptrdiff_t n, std::error_code& ec) {
        detail::answer([&] { return add_permits(n), true; }, false, ec);
    }

    // Takes all permits that are there: how many, negative when some were owed. Then there is none.
    std::ptrdiff_t drain_permits() {
        State& semaphore = state();
        const Reply reply = semaphore.change(
            [&](const RequestId& ticket, Instant deadline) { return semaphore.wire().drain(ticket, deadline); });
        if (!reply.is_integer()) throw unexpected(reply, semaphore.key());
        return static_cast<std::ptrdiff_t>(reply.integer);
    }
    std::ptrdiff_t drain_permits(std::error_code& ec) {
        return detail::answer([&] { return drain_permits(); }, std::ptrdiff_t(0), ec);
    }

private:
    using State = Synchronizer<T, SemaphoreProtocol>;

    State& state() { return binding_.state(); }

    void check(std::ptrdiff_t n, std::ptrdiff_t least) const {
        if (n < least || n > max())
            throw Error(errc::invalid_argument, name(), "a number of permits must be from 0 to 2147483647");
    }

    bool is_one(const Reply& reply) {
        if (!reply.is_integer()) throw unexpected(reply, state().key());
        return reply.integer == 1;
    }

    bool take(std::ptrdiff_t n, const WaitRequest& request) {
        check(n, 0);
        if (n == 0) return true;
        typename SemaphoreProtocol<T>::Want want{.permits = n};
        return state().obtain(want, request);
    }

    template <class... Tail>
    bool timed(Instant deadline, std::ptrdiff_t n, Tail&... tail) {
        return detail::answer([&] { return take(n, detail::wait_until(deadline, tail...)); }, false, tail...);
    }

    bool give(std::ptrdiff_t n, bool only_existing) {
        State& semaphore = state();
        return is_one(
            semaphore.change([&](const RequestId& ticket,
                                 Instant deadline) { return semaphore.wire().add(ticket, n, only_existing, deadline); },
                             [&semaphore, n, only_existing](const RequestId& ticket, Completion done) {
                                 semaphore.wire().post_add(ticket, n, only_existing, std::move(done));
                             }));
    }

    StateHandle<T, State> binding_;
};

template <class T>
Semaphore(Client<T>&, std::string_view) -> Semaphore<T>;

}  // namespace v0_1
}  // namespace redlatch
