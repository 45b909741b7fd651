// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"

#include <cstdint>
#include <span>

namespace redlatch {
inline namespace v0_1 {

// What the server answered to a question for permits, or for the end of a count.
struct Answer {
    Milliseconds hint;       // after which time asking again may help
    std::int64_t there = 0;  // so many permits there are, as far as the answer tells
};

// Who is served by the permits that were taken for `wants`, in their order; as the script did it. False when they do not
// go round so.
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

}  // namespace v0_1
}  // namespace redlatch
