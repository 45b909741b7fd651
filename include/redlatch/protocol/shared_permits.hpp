// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <cstdint>
#include <span>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The server's reply to an acquire of permits, or to a query for the end of a count.
struct Answer {
    Milliseconds hint;       // how long to wait before a retry may help
    std::int64_t there = 0;  // how many permits there are, as far as the reply shows
    bool is_set_up = true;   // False if there is no such semaphore
    bool is_queued = false;  // True if this process has a place in the queue (scripts/semaphore_queue.hpp)
};

// Sets `served` for those of `wants` that the `taken` permits serve, in the order of the script. Returns false if the
// number does not add up.
template <class Want>
bool share(std::int64_t taken, std::span<Want> wants) {
    std::int64_t left = taken;
    bool closed = false;
    for (Want& want : wants) {
        want.served = !closed && want.amount() <= left;
        if (want.served)
            left -= want.amount();
        else if (!want.lets_pass)
            closed = true;
    }
    return left == 0;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
