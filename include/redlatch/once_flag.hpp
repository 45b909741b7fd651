// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/client.hpp"
#include "redlatch/fenced_lock.hpp"
#include "redlatch/session/call_options.hpp"
#include "redlatch/session/state_handle.hpp"
#include "redlatch/wait/wait_request.hpp"

#include <chrono>
#include <concepts>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {

// Options of a OnceFlag and of call_once().
struct OnceOptions {
    // How long it is known that the work was done, from its end on. Afterwards it may be done once more. If empty, without
    // an end: the key then stays on the server until reset(). From 1 ms to 100 years.
    std::optional<std::chrono::milliseconds> keep = {};
};

// Lets a piece of work be done once in the whole fleet: a std::once_flag across processes. See call_once().
//
// The caller that does the work holds the FencedLock of this name, which the watchdog renews. A key of its own records that
// the work was done: redlatch_once:{name}. If the process dies in the midst of the work, or the function throws, the work is
// not done, and another caller does it. So it may be begun several times, but is finished once, unless a lease is lost.
//
// Neither copyable nor movable. Any number of threads may use one object. Two objects of one name are the same flag. Each
// member throws Error; with a trailing std::error_code& it stores the code.
class OnceFlag {
public:
    // Makes an object for the flag of this name. Throws Error(errc::invalid_argument) for a bad name or option. Sends
    // nothing.
    OnceFlag(Client& client, std::string_view name, const OnceOptions& options = {}, const ObjectOptions& own = {});

    // Returns the name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return lock_.name(); }

    // Calls f(), or f(std::stop_token), unless that was done before, and waits until it is done, here or elsewhere. The
    // token is requested when the lock is lost, or a stop is requested. What f returns is ignored.
    //
    // If it was done before: one round trip. If this call does it: five. Who waits sends nothing meanwhile, but for a look
    // when the lease that it saw is over, and after 15 to 30 s in case a message was lost.
    //
    // What f throws is thrown, and leaves the work open. Throws Error(errc::hold_lost) if the lock was lost before f
    // returned: then others may do the work again; otherwise as FencedLock::lock() does. f must not call the same flag.
    // While no server replies after f has returned, the call goes on for unreachable_timeout, and while it has the lock.
    //   call(f, token)   gives up waiting when a stop is requested; only this form returns a bool: true if it is done
    //   call(f, …, ec)   stores the code of a std::system_error, also of one that f throws
    template <class F, class... Tail>
    requires detail::StopOption<Tail...> &&
        (std::invocable<F&> || std::invocable<F&, std::stop_token>)auto call(F&& f, Tail&&... tail) {
        const bool done =
            detail::answer([&] { return run(work_of(f), detail::wait_until(never, tail...)); }, false, tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return done;
    }

    // Does the same, but waits for others for at most this time. Returns true if it is done. f itself has no time limit.
    template <class Rep, class Period, class F, class... Tail>
    requires detail::StopOption<Tail...> &&(std::invocable<F&> || std::invocable<F&, std::stop_token>)
        [[nodiscard]] bool call_for(std::chrono::duration<Rep, Period> timeout, F&& f, Tail&&... tail) {
        const Instant deadline = deadline_after(Clock::now(), timeout);
        return detail::answer([&] { return run(work_of(f), detail::wait_until(deadline, tail...)); }, false, tail...);
    }

    // Returns true if it was done. One round trip.
    [[nodiscard]] bool is_done();
    [[nodiscard]] bool is_done(std::error_code& ec);

    // Forgets that it was done, so that the next call does it again. Returns true if it was. Two round trips, and the
    // second names what the first has found: a late copy of it forgets nothing else.
    bool reset();
    bool reset(std::error_code& ec);

private:
    using Work = std::function<void(const std::stop_token&)>;

    template <class F>
    static Work work_of(F& f) {
        return [&f](const std::stop_token& ending) {
            if constexpr (std::invocable<F&, std::stop_token>)
                static_cast<void>(std::invoke(f, ending));
            else
                static_cast<void>(std::invoke(f));
        };
    }

    bool run(const Work& work, const detail::WaitRequest& request);

    FencedLock lock_;
    detail::StateHandle record_;
    const std::chrono::milliseconds keep_;
};

// Does a piece of work once in the whole fleet, and waits until it is done: see OnceFlag::call().
//   redlatch::call_once(redis, "migration-7", [&] { migrate(); });
template <class F, class... Tail>
requires detail::StopOption<Tail...> &&
    (std::invocable<F&> || std::invocable<F&, std::stop_token>)auto call_once(OnceFlag& flag, F&& f, Tail&&... tail) {
    return flag.call(f, tail...);
}
template <class F, class... Tail>
requires detail::StopOption<Tail...> &&
    (std::invocable<F&> || std::invocable<F&, std::stop_token>)auto call_once(Client& client, std::string_view name,
                                                                              const OnceOptions& options, F&& f,
                                                                              Tail&&... tail) {
    const bool done = detail::answer(
        [&] {
            OnceFlag flag{client, name, options};
            return flag.call(f, detail::wait_until(never, tail...).stop);
        },
        false, tail...);
    if constexpr (detail::has_stop_token<Tail&...>) return done;
}
template <class F, class... Tail>
requires detail::StopOption<Tail...> &&
    (std::invocable<F&> || std::invocable<F&, std::stop_token>)auto call_once(Client& client, std::string_view name,
                                                                              F&& f, Tail&&... tail) {
    return redlatch::call_once(client, name, OnceOptions(), f, tail...);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/once_flag.ipp"
#endif
