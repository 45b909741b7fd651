// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"

#include <optional>
#include <stop_token>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

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

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
