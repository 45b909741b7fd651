// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/error.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <chrono>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {

// How a SpinLock or a Mutex polls while the server does not report changes of its key: before Redis 6, without the access
// rights to CLIENT ID, CLIENT TRACKING and CLIENT CACHING, behind some proxies, with a transport without track(), and until
// the server has confirmed that it will report them. Pauses start at initial_delay and double up to max_delay. Jitter shortens
// each by up to a half, so that waiters do not retry at the same time. Where the server reports changes, the lock retries when
// the key has changed, when the lease that it saw is over, and every 10 to 20 s in case a report was lost.
struct SpinOptions {
    std::chrono::milliseconds initial_delay{1};  // at least 1 ms
    std::chrono::milliseconds max_delay{128};    // at most 1 h, and not below initial_delay
};

namespace detail {

// Throws Error(errc::invalid_argument) if initial_delay is below 1 ms or above max_delay, or max_delay is above 1 h.
inline Polling polling_of(const SpinOptions& options, std::string_view name) {
    if (options.initial_delay < Milliseconds(1) || options.max_delay < options.initial_delay ||
        options.max_delay > std::chrono::hours(1))
        throw Error(errc::invalid_argument, name,
                    "SpinOptions: the delays must be from 1 ms to 1 h, and initial_delay must not exceed max_delay");
    return {shortened(options.initial_delay), shortened(options.max_delay)};
}

}  // namespace detail

}  // namespace REDLATCH_ABI
}  // namespace redlatch
