// SPDX-License-Identifier: MIT
#pragma once

#include <time.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "record_file.hpp"

namespace redlatch::test {

/// Returns CLOCK_MONOTONIC in nanoseconds: the same clock in all processes of a machine.
inline std::int64_t monotonic_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

/// On Linux steady_clock is CLOCK_MONOTONIC, so a lock's valid_until() can be recorded.
inline std::int64_t monotonic_ns(std::chrono::steady_clock::time_point time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

/// The time from `from` until before `until` during which an owner believed that it held a lock. It begins after the
/// acquire has returned. It ends at the first of: the call of unlock, valid_until, the notification of the loss. Empty
/// or negative means that the owner never believed so.
struct Interval {
    std::uint64_t owner = 0;
    std::int64_t from = 0;
    std::int64_t until = 0;
    std::uint64_t lock = 0;    // which lock, if there are several
    std::uint64_t token = 0;   // fencing token or permit number, if there is one
    std::uint64_t shared = 0;  // 1 for a reader, which may overlap with other readers
    std::int64_t called = 0;   // when the acquire was called
    std::int64_t told = 0;     // when the loss was reported to the owner; 0: never

    bool operator==(const Interval&) const = default;
};

/// Intervals in a file that any number of processes and threads append to.
///
/// A process that may be killed while it holds appends twice: at the acquire with `until` = valid_until, and again at
/// the end with the true end. `read` lets the later record of the same lock, owner and begin replace the earlier.
class HistoryFile {
public:
    /// Creates the file if it does not exist.
    explicit HistoryFile(const std::string& path) : records_(path) {}

    void append(const Interval& interval) const { records_.append(interval); }

    std::vector<Interval> read() const {
        std::map<std::tuple<std::uint64_t, std::uint64_t, std::int64_t>, Interval> last;
        for (const Interval& record : records_.read()) last[{record.lock, record.owner, record.from}] = record;
        std::vector<Interval> result;
        for (const auto& [key, interval] : last) result.push_back(interval);
        return result;
    }

private:
    RecordFile<Interval> records_;
};

namespace detail {

/// Sorts by lock, then by begin. Leaves out empty intervals.
inline std::vector<Interval> in_order(std::vector<Interval> intervals) {
    std::erase_if(intervals, [](const Interval& interval) { return interval.until <= interval.from; });
    std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
        return std::tie(a.lock, a.from, a.until) < std::tie(b.lock, b.from, b.until);
    });
    return intervals;
}

}  // namespace detail

/// Returns the first two intervals of one lock that overlap though not both are shared, in order of begin. Returns
/// nothing if there are none. Those of one owner may not overlap either: record only the outermost hold of a reentrant
/// lock.
inline std::optional<std::pair<Interval, Interval>> find_overlap(std::vector<Interval> intervals) {
    intervals = detail::in_order(std::move(intervals));
    std::array<const Interval*, 2> latest{};  // the seen interval that ends last: [0] exclusive, [1] shared
    for (const Interval& next : intervals) {
        if (latest[0] != nullptr && latest[0]->lock != next.lock) latest[0] = nullptr;
        if (latest[1] != nullptr && latest[1]->lock != next.lock) latest[1] = nullptr;
        if (latest[0] != nullptr && next.from < latest[0]->until) return std::pair{*latest[0], next};
        if (next.shared == 0 && latest[1] != nullptr && next.from < latest[1]->until)
            return std::pair{*latest[1], next};
        auto& kind = latest[next.shared == 0 ? 0 : 1];
        if (kind == nullptr || next.until > kind->until) kind = &next;
    }
    return std::nullopt;
}

/// Returns the greatest number of simultaneous intervals of one lock: compare it with the limit of permits.
inline std::size_t peak(const std::vector<Interval>& intervals) {
    std::vector<std::tuple<std::uint64_t, std::int64_t, int>> steps;  // at one instant the ends come first
    for (const Interval& interval : detail::in_order(intervals)) {
        steps.emplace_back(interval.lock, interval.from, +1);
        steps.emplace_back(interval.lock, interval.until, -1);
    }
    std::sort(steps.begin(), steps.end());
    int now = 0;
    int most = 0;
    for (const auto& [lock, at, step] : steps) most = std::max(most, now += step);
    return static_cast<std::size_t>(most);
}

/// Returns the first two successive intervals of one lock whose tokens do not increase. Returns nothing if all do.
inline std::optional<std::pair<Interval, Interval>> find_stale_token(std::vector<Interval> intervals) {
    intervals = detail::in_order(std::move(intervals));
    for (std::size_t i = 1; i < intervals.size(); ++i) {
        const Interval& before = intervals[i - 1];
        if (before.lock == intervals[i].lock && intervals[i].token <= before.token)
            return std::pair{before, intervals[i]};
    }
    return std::nullopt;
}

}  // namespace redlatch::test
