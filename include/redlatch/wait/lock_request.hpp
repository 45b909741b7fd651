// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/session/continuations.hpp"
#include "redlatch/session/settings.hpp"

#include <concepts>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <type_traits>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Retries a lock without messages after pauses that double, with jitter.
struct Polling {
    ShortTime first;
    ShortTime longest;

    // Returns the next pause. `bound`: that of the last one, zero before the first.
    Clock::duration next(ShortTime& bound) const { return next_delay(bound, first, longest); }
};

// Whether an owner that holds a lock may have one more level of it.
enum class Reentry : unsigned char { allowed, refused };

// A caller's request for a lock.
struct LockRequest {
    OwnerNumber owner = 0;
    Instant deadline = never;
    std::optional<Milliseconds> lease;  // none: under the watchdog
    std::stop_token stop;
    WaitBy by = by_thread;
    Settings settings{};             // of the object that it is made through, and the bounds of this call
    std::optional<Polling> polling;  // none: woken by messages
    bool one_try = false;            // do not wait, whatever the deadline
    bool precedence = false;         // true for a writer that keeps new readers out while it waits
    Reentry reentry = Reentry::allowed;
    bool again = false;          // only one more level of a hold that the owner has; otherwise throws errc::hold_lost
    std::uint64_t again_of = 0;  // then: the number of that hold on the server; 0 for whichever it is
};

// Takes the settings of the object through which the request is made.
inline void take_settings(LockRequest& request, const Settings& of) {
    const HoldBounds bounds = request.settings.bounds;
    request.settings = of;
    request.settings.bounds = bounds;
}

// Returns the Owner among the arguments; without one, `otherwise()`.
template <class Otherwise, class... Tail>
OwnerNumber owner_among(Otherwise otherwise, const Tail&... tail) {
    std::optional<OwnerNumber> owner;
    [[maybe_unused]] const auto take = [&](const auto& argument) {
        if constexpr (std::same_as<std::remove_cvref_t<decltype(argument)>, Owner>) owner = argument;
    };
    (take(tail), ...);
    return owner ? *owner : otherwise();
}

// Returns a request with the lease and the stop token among the arguments, if there are any.
template <class... Tail>
LockRequest lock_request(OwnerNumber owner, Instant deadline, const Tail&... tail) {
    LockRequest request;
    request.owner = owner;
    request.deadline = deadline;
    [[maybe_unused]] const auto take = [&](const auto& argument) {
        using Argument = std::remove_cvref_t<decltype(argument)>;
        if constexpr (std::same_as<Argument, Lease>) request.lease = argument.length();
        if constexpr (std::same_as<Argument, Lease::Bounds>) {
            request.lease = argument.lease();
            request.settings.bounds = HoldBounds::of(argument.least(), argument.most());
        }
        if constexpr (std::same_as<Argument, std::stop_token>) request.stop = argument;
    };
    (take(tail), ...);
    return request;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
