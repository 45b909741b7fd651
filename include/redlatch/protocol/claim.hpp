// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"

#include <cstdint>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The contents of one acquire command.
struct Claim {
    OwnerNumber owner = 0;
    std::uint64_t hold = 0;   // the number of the hold on the server: new for each first level
    std::uint32_t count = 1;  // the level
    Milliseconds lease{};
    std::int64_t until = 0;      // the time until which it is wanted, by the server's clock
    std::int64_t lease_end = 0;  // the end of a lease that begins when it is sent, by the same clock; never late
    std::uint64_t writer = 0;    // for a reader: the number of its owner's hold as the writer
    bool queues = false;         // true to join the server's queue if it is blocked
    bool listens = false;        // true if it queues, and hears of a grant
    bool polls = false;          // true if it will be asked for again, and never has a place in the queue
    bool announced = false;      // true if new readers must stay out while it waits
    bool first = true;           // true if it was not sent before and the lock is not known to be held
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
