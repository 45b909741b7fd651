// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/options.hpp"

#include <atomic>
#include <cstdint>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A number that any thread may raise and read. It orders nothing else.
class Counter {
public:
    void add(std::uint64_t by = 1) noexcept { value_.fetch_add(by, std::memory_order_relaxed); }
    std::uint64_t value() const noexcept { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<std::uint64_t> value_{0};
};

// What a session counts. Stats describes each of the members.
struct Counters {
    Counter commands, acquisitions, waits, handoffs, renewals, lost_holds, resends;

    Stats stats(std::uint64_t reconnects) const noexcept {
        return {commands.value(), acquisitions.value(), waits.value(),   handoffs.value(),
                renewals.value(), lost_holds.value(),   resends.value(), reconnects};
    }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
