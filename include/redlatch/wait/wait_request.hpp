// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/session/continuations.hpp"
#include "redlatch/session/settings.hpp"

#include <concepts>
#include <stop_token>
#include <type_traits>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Limits how long a caller waits.
struct WaitRequest {
    Instant deadline = never;
    bool one_try = false;  // do not wait, whatever the deadline; one to come limits the try
    std::stop_token stop{};
    WaitBy by = by_thread;
    Settings settings{};  // of the object that it is made through
};

// Returns a request with the deadline and the stop token among the arguments, if there is one.
template <class... Tail>
WaitRequest wait_until(Instant deadline, const Tail&... tail) {
    WaitRequest request{.deadline = deadline, .one_try = deadline != never && deadline <= Clock::now()};
    [[maybe_unused]] const auto take = [&](const auto& argument) {
        if constexpr (std::same_as<std::remove_cvref_t<decltype(argument)>, std::stop_token>) request.stop = argument;
    };
    (take(tail), ...);
    return request;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
