// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/error.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <chrono>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace v0_1 {

// How a SpinLock or a Mutex waits: pauses that begin with initial_delay and double up to max_delay, each shortened at
// random by up to a half, so that waiters do not come together.
struct SpinOptions {
    std::chrono::milliseconds initial_delay{1};
    std::chrono::milliseconds max_delay{128};
};

// Throws Error(errc::invalid_argument) for delays that are not positive or of which the first is longer than the
// longest.
inline Polling polling_of(const SpinOptions& options, std::string_view name) {
    if (options.initial_delay < Milliseconds(1) || options.max_delay < options.initial_delay ||
        options.max_delay > std::chrono::hours(1))
        throw Error(errc::invalid_argument, name,
                    "the delays of a lock that polls must be from 1 ms to 1 h, initial_delay not above max_delay");
    return {options.initial_delay, options.max_delay};
}

}  // namespace v0_1
}  // namespace redlatch
