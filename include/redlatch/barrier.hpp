// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/client.hpp"
#include "redlatch/inspection.hpp"
#include "redlatch/options.hpp"
#include "redlatch/protocol/permit_id.hpp"
#include "redlatch/session/call_options.hpp"
#include "redlatch/session/state_handle.hpp"
#include "redlatch/wait/wait_request.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {

// Lets a fixed number of parties, in any threads and processes, wait for each other again and again: a std::barrier across
// processes, without a completion function. When as many have arrived as there are parties, the phase ends, all that wait
// go on, and the next phase begins.
//
// An arrival has a lease, which the client's watchdog renews until the phase ends. If its process dies, it ends with that
// lease and no longer counts, so the phase waits for another party in its place. Who waits with an arrival that the server
// no longer has gets errc::hold_lost: the process was paused for longer than the lease, or the barrier was removed, or the
// server lost its data.
//
// The first arrival makes the barrier. It stays until remove(), or until all parties have dropped out. Neither copyable nor
// movable. Any number of threads may use one object; two objects with the same name are the same barrier, and all must name
// the same number of parties. Each member throws Error; with a trailing std::error_code& it stores the code and throws only
// std::bad_alloc. If the server cannot be reached, a call retries for unreachable_timeout (of ObjectOptions or
// ClientOptions), then fails with errc::unreachable. A command may be resent after a lost reply and still takes effect once.
// If an arrival fails, it is taken back, unless it has ended its phase. With require_replicas it also fails with
// errc::not_replicated if they do not confirm it.
class Barrier {
public:
    // An arrival, to be waited with once: a std::barrier::arrival_token. Destroying it takes nothing back: see withdraw().
    class Arrival {
    public:
        // Makes an object without an arrival.
        Arrival() = default;

        // Takes over the arrival of the other one, which has none then.
        Arrival(Arrival&& other) noexcept
            : id_(std::exchange(other.id_, std::nullopt)),
              born_(std::move(other.born_)),
              phase_(other.phase_),
              ended_phase_(other.ended_phase_) {}
        // Does the same. The arrival that this object had stays on the server.
        Arrival& operator=(Arrival&& other) noexcept {
            id_ = std::exchange(other.id_, std::nullopt);
            born_ = std::move(other.born_);
            phase_ = other.phase_;
            ended_phase_ = other.ended_phase_;
            return *this;
        }

        // Returns true if there is an arrival.
        explicit operator bool() const noexcept { return id_.has_value(); }

        // Returns the number of the phase that it belongs to, from 1 on; 0 without one.
        std::uint64_t phase() const noexcept { return id_ ? static_cast<std::uint64_t>(phase_) : 0; }

    private:
        friend class Barrier;

        std::optional<PermitId> id_{};
        std::string born_{};  // which barrier of the name it was
        std::int64_t phase_ = 0;
        bool ended_phase_ = false;
    };
    // The name that std::barrier has for it.
    using arrival_token = Arrival;

    // Makes an object for the barrier of this name. Throws Error(errc::invalid_argument) if the number of parties is not from
    // 1 to max(), if the name is empty, is longer than 1,024 bytes, or has braces other than one non-empty {tag}, and for
    // options that cannot work: see ObjectOptions. Sends nothing.
    Barrier(Client& client, std::string_view name, std::ptrdiff_t parties, const ObjectOptions& options = {});

    // Returns the name as given, without the client's key_prefix.
    const std::string& name() const noexcept { return handle_.name(); }

    // Returns the number of parties, as given.
    std::ptrdiff_t parties() const noexcept { return parties_; }

    // Returns the largest number of parties.
    static constexpr std::ptrdiff_t max() noexcept { return std::numeric_limits<std::int32_t>::max(); }

    // Arrives at the current phase and does not wait: one round trip. Throws Error(errc::invalid_argument) if the barrier has
    // another number of parties.
    [[nodiscard]] Arrival arrive() { return arrive_once(false); }
    [[nodiscard]] Arrival arrive(std::error_code& ec);

    // Arrives at the current phase for the last time: in the next ones there is one party less. This arrival has no lease, so
    // the process may end. One round trip.
    void arrive_and_drop() { static_cast<void>(arrive_once(true)); }
    void arrive_and_drop(std::error_code& ec);

    // Waits until the phase of the arrival has ended. Returns at once, without a round trip, if this arrival has ended it. A
    // process with any number of waiting threads sends one query every 5 to 10 seconds, in case a message was lost. Throws
    // hold_lost if the server no longer has the arrival, and invalid_argument for an object without one.
    //   wait(arrival, token)   gives up when a stop is requested; only this form returns a bool: true if the phase has ended.
    //                          The arrival still counts, and can be waited with again
    //   wait(arrival, …, ec)   stores the error instead of throwing it
    template <class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] auto wait(Arrival& arrival, Tail&&... tail) {
        const bool ended =
            detail::answer([&] { return await(arrival, detail::wait_until(never, tail...)); }, false, tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return ended;
    }
    template <class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] auto wait(Arrival&& arrival, Tail&&... tail) { return wait(arrival, tail...); }

    // Waits at most until `timeout` has passed, by a monotonic clock. Returns true if the phase has ended; otherwise the
    // arrival still counts. Timeouts are rounded up to the next millisecond; zero or less asks once; the largest value waits
    // indefinitely. Accepts std::stop_token and std::error_code&.
    template <class Rep, class Period, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool wait_for(Arrival& arrival, std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return timed(arrival, deadline_after(Clock::now(), timeout), tail...);
    }

    // Does the same as wait_for(), until an instant of any clock, which is read once.
    template <class AnyClock, class Duration, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool wait_until(Arrival& arrival, std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return timed(arrival, deadline_at(when), tail...);
    }

    // Arrives and waits for the end of the phase. One round trip if this arrival ends it.
    //   arrive_and_wait(token)   takes the arrival back when a stop is requested; only this form returns a bool: false if it
    //                            was taken back, true if the phase has ended
    //   arrive_and_wait(…, ec)   stores the error instead of throwing it
    template <class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] auto arrive_and_wait(Tail&&... tail) {
        const bool ended = detail::answer([&] { return meet(detail::wait_until(never, tail...)); }, false, tail...);
        if constexpr (detail::has_stop_token<Tail&...>) return ended;
    }

    // Arrives and waits at most until `timeout` has passed. Returns true if the phase has ended. Otherwise the arrival is taken
    // back: it no longer counts. Accepts std::stop_token and std::error_code&.
    template <class Rep, class Period, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool arrive_and_wait_for(std::chrono::duration<Rep, Period> timeout, Tail&&... tail) {
        return timed_meeting(deadline_after(Clock::now(), timeout), tail...);
    }

    // Does the same as arrive_and_wait_for(), until an instant of any clock, which is read once.
    template <class AnyClock, class Duration, class... Tail>
    requires detail::StopOption<Tail...>
    [[nodiscard]] bool arrive_and_wait_until(std::chrono::time_point<AnyClock, Duration> when, Tail&&... tail) {
        return timed_meeting(deadline_at(when), tail...);
    }

    // Takes an arrival back: it no longer counts, and the object has none then. Returns false if its phase has ended, so that
    // it did count. One round trip. If no server replies, the call fails, and the arrival ends with its lease.
    bool withdraw(Arrival&& arrival);
    bool withdraw(Arrival&& arrival, std::error_code& ec);

    // Deletes the barrier. Who waits at it gets errc::hold_lost, and so does a party that has not yet learned that its phase
    // is over: remove it when all have returned. Returns true if there was one. One round trip.
    bool remove();
    bool remove(std::error_code& ec);

    // Returns the state on the server: see BarrierInspection. One round trip. Changes nothing. Throws wrong_type if the key
    // belongs to something else.
    BarrierInspection inspect();
    BarrierInspection inspect(std::error_code& ec);

private:
    Arrival arrive_once(bool drops_out);
    bool await(Arrival& arrival, detail::WaitRequest request);
    bool meet(const detail::WaitRequest& request);

    template <class... Tail>
    bool timed(Arrival& arrival, Instant deadline, Tail&... tail) {
        return detail::answer([&] { return await(arrival, detail::wait_until(deadline, tail...)); }, false, tail...);
    }

    template <class... Tail>
    bool timed_meeting(Instant deadline, Tail&... tail) {
        return detail::answer([&] { return meet(detail::wait_until(deadline, tail...)); }, false, tail...);
    }

    const std::ptrdiff_t parties_;
    detail::StateHandle handle_;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/barrier.ipp"
#endif
