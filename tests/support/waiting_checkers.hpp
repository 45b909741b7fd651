// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "windows.hpp"

/// Checks of waiting: no waiter missed its wake-up, waited too long, or was overtaken. The checks of simultaneous holds
/// are in checkers.hpp.
namespace redlatch::test {

/// One call for a lock, and its result.
struct Turn {
    std::uint64_t lock = 0;
    std::uint64_t owner = 0;
    std::int64_t called = 0;
    std::int64_t held = 0;      // when it got the lock; 0: never
    std::int64_t released = 0;  // when it called unlock() successfully; 0: otherwise
    std::int64_t lapsed = 0;    // of a hold that was not released: when it had ended at the server at the latest
    std::int64_t gave_up = 0;   // when it returned without the lock; 0: it got the lock, or died

    bool operator==(const Turn&) const = default;
};

/// The time from a release that freed the lock during a wait until a waiter got it; or until the last of those waiters
/// gave up, while the lock was free.
struct WakeUp {
    Turn before;
    Turn after;
    std::int64_t from = 0;
    std::int64_t until = 0;
};

namespace detail {

// Takes the turns of one lock, in the order of their calls.
inline void add_wake_ups(const std::vector<Turn>& turns, std::vector<WakeUp>& wake_ups) {
    std::vector<std::int64_t> begins;
    std::vector<std::int64_t> ends;
    std::int64_t longest_wait = 0;
    for (const Turn& turn : turns) {
        longest_wait = std::max(longest_wait, std::max(turn.held, turn.gave_up) - turn.called);
        if (turn.held == 0) continue;
        begins.push_back(turn.held);
        ends.push_back(std::max({turn.held, turn.released, turn.lapsed}));
    }
    std::sort(begins.begin(), begins.end());
    std::sort(ends.begin(), ends.end());
    for (const Turn& release : turns) {
        if (release.held == 0 || release.released == 0) continue;
        const std::int64_t now = release.released;
        const auto next = std::upper_bound(begins.begin(), begins.end(), now);
        const bool free = next - begins.begin() == std::upper_bound(ends.begin(), ends.end(), now) - ends.begin();
        if (!free) continue;
        const std::int64_t end = next == begins.end() ? INT64_MAX : *next;
        // Of the calls that waited at the release, find the one that got the lock or stayed longest.
        std::optional<WakeUp> found;
        auto waiter = std::lower_bound(turns.begin(), turns.end(), now,
                                       [](const Turn& turn, std::int64_t at) { return turn.called < at; });
        while (waiter != turns.begin() && (--waiter)->called >= now - longest_wait) {
            const std::int64_t until = waiter->held != 0 ? waiter->held : waiter->gave_up;
            if (until <= now) continue;
            const std::int64_t seen = std::min(until, end);
            if (!found || seen > found->until || (seen == found->until && until == end))
                found = WakeUp{release, *waiter, now, seen};
        }
        if (found) wake_ups.push_back(*found);
    }
}

}  // namespace detail

inline std::vector<WakeUp> find_wake_ups(std::vector<Turn> turns) {
    std::sort(turns.begin(), turns.end(),
              [](const Turn& a, const Turn& b) { return std::tie(a.lock, a.called) < std::tie(b.lock, b.called); });
    std::vector<WakeUp> wake_ups;
    for (auto first = turns.begin(); first != turns.end();) {
        const auto last = std::find_if(first, turns.end(), [&](const Turn& turn) { return turn.lock != first->lock; });
        detail::add_wake_ups({first, last}, wake_ups);
        first = last;
    }
    return wake_ups;
}

/// Two waiters in the queue of a lock, one seen in front of the other.
struct QueueSight {
    std::uint64_t lock = 0;
    std::int64_t asked = 0;    // the queue was read at some moment between this
    std::int64_t at = 0;       // ... and this
    std::uint64_t first = 0;   // owners
    std::uint64_t second = 0;  // somewhere behind it
};

/// A sight whose second waiter got the lock while the first was still waiting.
struct Overtaking {
    QueueSight sight;
    Turn first;
    Turn second;
};

inline std::vector<Overtaking> find_overtaking(const std::vector<QueueSight>& sights, const std::vector<Turn>& turns) {
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<Turn>> by_owner;
    for (const Turn& turn : turns) by_owner[{turn.lock, turn.owner}].push_back(turn);
    for (auto& [owner, all] : by_owner)
        std::sort(all.begin(), all.end(), [](const Turn& a, const Turn& b) { return a.called < b.called; });
    // Returns the owner's call that was in the queue then. Ignores a call after a wait that was given up: it may have
    // been seen in its former place, which it was about to leave.
    const auto waiting = [&](const QueueSight& sight, std::uint64_t owner) -> const Turn* {
        const std::vector<Turn>& all = by_owner[{sight.lock, owner}];
        auto turn = std::upper_bound(all.begin(), all.end(), sight.asked,
                                     [](std::int64_t when, const Turn& t) { return when < t.called; });
        if (turn == all.begin()) return nullptr;
        --turn;
        if (turn != all.begin() && std::prev(turn)->held == 0) return nullptr;
        const std::int64_t end = turn->held != 0 ? turn->held : turn->gave_up;
        return end > sight.at ? &*turn : nullptr;  // a call of a process that died has end 0
    };
    std::vector<Overtaking> found;
    for (const QueueSight& sight : sights) {
        const Turn* first = waiting(sight, sight.first);
        const Turn* second = waiting(sight, sight.second);
        if (first == nullptr || second == nullptr || second->held == 0) continue;
        const std::int64_t first_end = first->held != 0 ? first->held : first->gave_up;
        // The first waited during the whole turn of the second, not only while its own reply was on the way.
        const std::int64_t second_end = second->released != 0 ? second->released : second->held;
        if (first_end > second_end) found.push_back({sight, *first, *second});
    }
    return found;
}

/// One round of a latch: its count-downs, and the waits for its end.
struct LatchRound {
    struct CountDown {
        std::int64_t invoked = 0;
        std::int64_t acknowledged = 0;  // 0: its outcome is unknown
    };
    struct Wait {
        std::int64_t called = 0;
        std::int64_t returned = 0;
        bool ended = false;  // whether the wait reported the end of the count
    };
    std::uint64_t latch = 0;
    std::size_t count = 0;
    std::int64_t ended_otherwise = 0;  // when a reset, or a loss of the server's data, began; 0: never
    std::vector<CountDown> count_downs = {};
    std::vector<Wait> waits = {};
};

/// Returns waits that reported the end of the count before the last necessary count-down was invoked.
inline std::vector<LatchRound::Wait> find_early_returns(const LatchRound& round) {
    std::vector<std::int64_t> invoked;
    for (const auto& count_down : round.count_downs) invoked.push_back(count_down.invoked);
    std::sort(invoked.begin(), invoked.end());
    std::int64_t possible = round.count == 0 ? 0 : INT64_MAX;
    if (round.count > 0 && invoked.size() >= round.count) possible = invoked[round.count - 1];
    if (round.ended_otherwise != 0) possible = std::min(possible, round.ended_otherwise);
    std::vector<LatchRound::Wait> early;
    for (const auto& wait : round.waits)
        if (wait.ended && wait.returned < possible) early.push_back(wait);
    return early;
}

/// Returns the time from the acknowledgement that ended the count until the last of its waiters returned. Returns
/// nothing if count-downs did not end it, or no thread waited. A wait that gave up after the end counts, too.
inline std::optional<Window> last_return(const LatchRound& round) {
    std::vector<std::int64_t> acknowledged;
    for (const auto& count_down : round.count_downs)
        if (count_down.acknowledged != 0) acknowledged.push_back(count_down.acknowledged);
    if (round.ended_otherwise != 0 || round.count == 0 || acknowledged.size() < round.count) return std::nullopt;
    std::sort(acknowledged.begin(), acknowledged.end());
    const std::int64_t end = acknowledged[round.count - 1];
    std::optional<Window> last;
    for (const auto& wait : round.waits)
        if (wait.called < end && wait.returned > end && (!last || wait.returned > last->until))
            last = Window{end, wait.returned};
    return last;
}

/// Compares the result of count() with the number of count-downs that must have been applied by then, and may have
/// been.
inline bool is_counted_once(std::size_t count, std::size_t left, std::size_t acknowledged, std::size_t invoked) {
    const std::size_t least = count - std::min(count, invoked);
    const std::size_t most = count - std::min(count, acknowledged);
    return least <= left && left <= most;
}

/// A call with a deadline.
struct TimedCall {
    std::int64_t called = 0;
    std::int64_t deadline = 0;
    std::int64_t returned = 0;
};

/// Returns the calls that returned later than `grace` after their deadline, except when their process stood still.
inline std::vector<TimedCall> find_late_calls(const std::vector<TimedCall>& calls, std::int64_t grace,
                                              const Windows& excused = {}) {
    std::vector<TimedCall> late;
    for (const TimedCall& call : calls)
        if (call.returned > call.deadline + grace && !excused.meet(call.deadline, call.returned)) late.push_back(call);
    return late;
}

}  // namespace redlatch::test
