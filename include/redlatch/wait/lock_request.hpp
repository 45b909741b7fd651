// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <stop_token>
#include <string_view>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// Retries a lock without messages after pauses that double, with jitter.
struct Polling {
    Milliseconds first;
    Milliseconds longest;
};

// A caller's request for a lock.
struct LockRequest {
    OwnerNumber owner = 0;
    Instant deadline = never;
    bool one_try = false;               // do not wait, whatever the deadline
    std::optional<Milliseconds> lease;  // none: under the watchdog
    std::optional<Polling> polling;     // none: woken by messages
    std::stop_token stop;
    bool precedence = false;  // true for a writer that keeps new readers out while it waits
};

// The contents of one acquire command.
struct Claim {
    OwnerNumber owner = 0;
    std::uint64_t hold = 0;   // the number of the hold on the server: new for each first level
    std::uint32_t count = 1;  // the level
    Milliseconds lease{};
    std::int64_t until = 0;    // the time until which it is wanted, by the server's clock
    std::uint64_t writer = 0;  // for a reader: the number of its owner's hold as the writer
    bool announced = false;    // true if new readers must stay out while it waits
    bool first = true;         // true if it was not sent before and the lock is not known to be held
};

// The numbers of holds to be released, however many levels they have: of a hold, and of the one that it was to be
// handed off to.
struct Unwanted {
    std::uint64_t hold = 0;
    std::uint64_t heir = 0;  // 0 for none
};

// Returns the arguments of a script that takes any number of owners after two other arguments.
inline std::vector<std::string_view> with_owners(const std::array<std::string_view, 2>& first,
                                                 std::span<const std::string_view> owners) {
    std::vector<std::string_view> arguments(first.begin(), first.end());
    arguments.insert(arguments.end(), owners.begin(), owners.end());
    return arguments;
}

}  // namespace v0_1
}  // namespace redlatch
