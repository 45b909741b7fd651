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

// How a lock without messages is waited for: by asking again after pauses that double, with jitter.
struct Polling {
    Milliseconds first;
    Milliseconds longest;
};

// What is wanted of a lock, and for whom.
struct LockRequest {
    OwnerNumber owner = 0;
    Instant deadline = never;
    bool one_try = false;               // do not wait, whatever the deadline
    std::optional<Milliseconds> lease;  // none: under the watchdog
    std::optional<Polling> polling;     // none: woken by messages
    std::stop_token stop;
    bool precedence = false;  // a writer that keeps new readers out while it waits
};

// What one acquire command asks of the server.
struct Claim {
    OwnerNumber owner = 0;
    std::uint64_t hold = 0;   // the number of the hold on the wire: new for each first hold
    std::uint32_t count = 1;  // the level
    Milliseconds lease{};
    std::int64_t until = 0;    // when the server has no use for it any more, by its clock
    std::uint64_t writer = 0;  // a reader's: the number of its owner's hold as the writer
    bool announced = false;    // new readers are to stay out while it waits
    bool first = true;         // neither was it sent before, nor is the lock known to be taken
};

// Numbers that are to be released, whatever they have: of a hold, and of the one that it was to be handed over to.
struct Unwanted {
    std::uint64_t hold = 0;
    std::uint64_t heir = 0;  // 0 for none
};

// The arguments of a script that takes any number of owners, behind two others.
inline std::vector<std::string_view> with_owners(const std::array<std::string_view, 2>& first,
                                                 std::span<const std::string_view> owners) {
    std::vector<std::string_view> arguments(first.begin(), first.end());
    arguments.insert(arguments.end(), owners.begin(), owners.end());
    return arguments;
}

}  // namespace v0_1
}  // namespace redlatch
