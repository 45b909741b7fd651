// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/options.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
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

// A Histogram that any thread may add to. A duration costs one addition.
class DurationCounter {
public:
    void add(Clock::duration duration) noexcept {
        const auto us = std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
        const auto range = std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(us, 0)));
        counts_[std::min(static_cast<std::size_t>(range), counts_.size() - 1)].add();
    }

    Histogram value() const noexcept {
        Histogram histogram;
        for (std::size_t i = 0; i < counts_.size(); ++i) histogram.counts[i] = counts_[i].value();
        return histogram;
    }

private:
    std::array<Counter, Histogram::size> counts_;
};

// What a session counts. Stats describes each of the members.
struct Counters {
    Counter commands, acquisitions, waits, handoffs, renewals, lost_holds, resends;
    Counter holds;  // of locks, that began
    DurationCounter wait_times, hold_times;

    Stats stats(std::uint64_t reconnects) const noexcept {
        Stats now{commands.value(), acquisitions.value(), waits.value(),   handoffs.value(),
                  renewals.value(), lost_holds.value(),   resends.value(), reconnects};
        // What has begun and not ended. Read in this order, because other threads go on counting.
        now.wait_times = wait_times.value();
        now.hold_times = hold_times.value();
        now.waiting = begun_but(waits, now.wait_times);
        now.held = begun_but(holds, now.hold_times);
        return now;
    }

private:
    static std::uint64_t begun_but(const Counter& begun, const Histogram& ended) noexcept {
        return std::max(begun.value(), ended.total()) - ended.total();
    }
};

// Counts a wait from its construction to its destruction.
class CountedWait {
public:
    explicit CountedWait(Counters& counters) noexcept : counters_(counters) { counters_.waits.add(); }
    CountedWait(const CountedWait&) = delete;
    CountedWait& operator=(const CountedWait&) = delete;
    ~CountedWait() { counters_.wait_times.add(Clock::now() - begun_); }

private:
    Counters& counters_;
    const Instant begun_ = Clock::now();
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
