// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace redlatch::test {

/// A time span in nanoseconds of CLOCK_MONOTONIC.
struct Window {
    std::int64_t from = 0;
    std::int64_t until = 0;

    bool meets(std::int64_t begin, std::int64_t end) const { return from <= end && begin <= until; }
    bool operator==(const Window&) const = default;
};

/// A set of time spans: times of a fault, or of a process that stood still.
class Windows {
public:
    void add(Window window) {
        const auto at = std::upper_bound(windows_.begin(), windows_.end(), window,
                                         [](const Window& a, const Window& b) { return a.from < b.from; });
        windows_.insert(at, window);
        longest_ = std::max(longest_, window.until - window.from);
    }

    /// Returns whether one of them has an instant in common with [from, until].
    bool meet(std::int64_t from, std::int64_t until) const {
        auto window = std::lower_bound(windows_.begin(), windows_.end(), from - longest_,
                                       [](const Window& w, std::int64_t at) { return w.from < at; });
        for (; window != windows_.end() && window->from <= until; ++window)
            if (window->meets(from, until)) return true;
        return false;
    }

    const std::vector<Window>& all() const { return windows_; }

private:
    std::vector<Window> windows_;  // by begin
    std::int64_t longest_ = 0;
};

}  // namespace redlatch::test
