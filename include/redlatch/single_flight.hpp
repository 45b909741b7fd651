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
#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {

// A value that a SingleFlight has.
struct FlightValue {
    std::string value;                  // any bytes, at most 1,000,000
    std::int64_t version = 0;           // the fencing token of the computation: each later value has a greater one
    std::chrono::milliseconds fresh{};  // how long it still stays on the server
    bool computed = false;              // true if this very call has computed it
};

namespace detail {

// A function that computes the value: f() or f(std::stop_token), whose result is a text.
template <class F>
concept Computes = requires(F& f) {
    { std::invoke(f) } -> std::convertible_to<std::string>;
}
|| requires(F& f, std::stop_token ending) {
    { std::invoke(f, ending) } -> std::convertible_to<std::string>;
};

}  // namespace detail

// Lets one process compute a value that many want at the same time, and the others wait for the value: against the
// stampede on a cache entry that has expired. The value is kept in Redis for `ttl`, in redlatch_flight:{name}.
//
//   redlatch::SingleFlight report{redis, "report:7", 60s};
//   std::string text = report.get([&] { return render(7); }).value;
//
// Who computes holds the FencedLock of this name, which the watchdog renews however long it takes. If its process dies,
// one of those who wait takes over when the lease is over; if its function throws, at once.
//
// Neither copyable nor movable. Any number of threads may use one object. Two objects of one name have the same value.
// Each member throws Error; with a trailing std::error_code& it stores the code.
class SingleFlight {
public:
    // Makes an object for the value of this name. A value that is computed through it stays for `ttl`, from 1 ms to 100
    // years. Throws Error(errc::invalid_argument) for a bad name, time or option. Sends nothing.
    SingleFlight(Client& client, std::string_view name, std::chrono::milliseconds ttl,
                 const ObjectOptions& options = {});

    // Returns the name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return lock_.name(); }

    // Returns the value. If there is none, one caller of the fleet computes it by f(), or f(std::stop_token), and the
    // others wait for it. The token is requested when the lock is lost, or a stop is requested.
    //
    // If there is a value: one round trip. If this call computes it: five. Who waits sends nothing meanwhile, but for a look
    // when the lease that it saw is over, and after 15 to 30 s in case a message was lost. All threads of a process that
    // wait share these, and one message.
    //
    // What f throws is thrown here only; then the next caller computes. A value of more than 1,000,000 bytes counts as a
    // failure of f: Error(errc::invalid_argument). Throws Error(errc::hold_lost) if the lock was lost before f returned: its
    // value may be older than that of another one, and is dropped; otherwise as FencedLock::lock() does. f must not ask for the
    // same value. While no server replies after f has returned, the call goes on for unreachable_timeout, and while it has
    // the lock.
    //   get(f, token)   gives up waiting when a stop is requested; returns an optional, which is empty then
    //   get(f, …, ec)   stores the code of a std::system_error, also of one that f throws; returns an optional, too
    template <detail::Computes F, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] auto get(F&& f, Tail&&... tail) {
        if constexpr (sizeof...(Tail) == 0)
            return *run(work_of(f), {});
        else
            return get_until(never, f, tail...);
    }

    // Does the same, but waits for others for at most this time; then it is empty. f itself has no time limit.
    template <class Rep, class Period, detail::Computes F, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] std::optional<FlightValue> get_for(std::chrono::duration<Rep, Period> timeout, F&& f,
                                                     Tail&&... tail) {
        return get_until(deadline_after(Clock::now(), timeout), f, tail...);
    }

    // Returns the value if there is one. One round trip; computes nothing and waits for nobody.
    [[nodiscard]] std::optional<FlightValue> peek();
    [[nodiscard]] std::optional<FlightValue> peek(std::error_code& ec);

    // Removes the value, so that the next get() computes a new one. Returns true if there was one. Two round trips, and
    // the second names what the first has found: a late copy of it removes no newer value. A computation under way is not
    // ended: its value counts.
    bool invalidate();
    bool invalidate(std::error_code& ec);

private:
    using Work = std::function<std::string(const std::stop_token&)>;

    template <class F>
    static Work work_of(F& f) {
        return [&f](const std::stop_token& ending) -> std::string {
            if constexpr (std::invocable<F&, std::stop_token>)
                return std::invoke(f, ending);
            else
                return std::invoke(f);
        };
    }

    template <class F, class... Tail>
    std::optional<FlightValue> get_until(Instant deadline, F& f, Tail&... tail) {
        return detail::answer([&] { return run(work_of(f), detail::wait_until(deadline, tail...)); },
                              std::optional<FlightValue>(), tail...);
    }

    std::optional<FlightValue> run(const Work& work, const detail::WaitRequest& request);

    FencedLock lock_;
    detail::StateHandle record_;
    const std::chrono::milliseconds ttl_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/single_flight.ipp"
#endif
