// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "history.hpp"
#include "windows.hpp"

/// Checks of a history: did a lock, a token or a permit keep its guarantee? Each function returns the violations that
/// it finds, and nothing if there are none. `excused` are times without the guarantee, for example because the server
/// had lost its data. The checks of waiting are in waiting_checkers.hpp.
namespace redlatch::test {

using IntervalPair = std::pair<Interval, Interval>;

/// Returns all intervals of one lock that overlap though not both are shared, each with the longest-lasting interval
/// before it. Leaves out an overlap that lies in an excused time.
inline std::vector<IntervalPair> find_overlaps(std::vector<Interval> intervals, const Windows& excused = {}) {
    intervals = detail::in_order(std::move(intervals));
    std::vector<IntervalPair> found;
    std::array<const Interval*, 2> latest{};  // [0] exclusive, [1] shared
    for (const Interval& next : intervals) {
        for (std::size_t shared = 0; shared < 2; ++shared) {
            const Interval*& before = latest[shared];
            if (before != nullptr && before->lock != next.lock) before = nullptr;
            if (before == nullptr || next.from >= before->until || (shared == 1 && next.shared == 1)) continue;
            if (!excused.meet(next.from, std::min(next.until, before->until))) found.emplace_back(*before, next);
        }
        const Interval*& kind = latest[next.shared == 0 ? 0 : 1];
        if (kind == nullptr || next.until > kind->until) kind = &next;
    }
    return found;
}

/// A critical section that read a plain number and wrote one more. `from` is before the read, `until` after the write.
/// `unsure`: it ended after its validity, or its end is unknown (then `until` is the death of its process). It may then
/// write at any moment in between.
struct Section {
    std::uint64_t lock = 0;
    std::uint64_t owner = 0;
    std::int64_t from = 0;
    std::int64_t until = 0;
    std::uint64_t read = 0;
    bool unsure = false;
};

/// Returns sections that did not read the number that the section before had written: an addition was lost, or made
/// twice.
inline std::vector<std::pair<Section, Section>> find_lost_updates(std::vector<Section> sections,
                                                                  const Windows& excused = {}) {
    std::sort(sections.begin(), sections.end(),
              [](const Section& a, const Section& b) { return std::tie(a.lock, a.from) < std::tie(b.lock, b.from); });
    std::map<std::uint64_t, Windows> unsure;
    for (const Section& section : sections)
        if (section.unsure) unsure[section.lock].add({section.from, section.until});
    std::vector<std::pair<Section, Section>> lost;
    for (std::size_t i = 1; i < sections.size(); ++i) {
        const Section& before = sections[i - 1];
        const Section& section = sections[i];
        if (before.lock != section.lock || section.read == before.read + 1) continue;
        if (unsure[section.lock].meet(before.from, section.until) || excused.meet(before.from, section.until)) continue;
        lost.emplace_back(before, section);
    }
    return lost;
}

/// Returns holds whose token is not greater than that of a hold granted before they were requested.
inline std::vector<IntervalPair> find_stale_tokens(const std::vector<Interval>& intervals) {
    std::vector<Interval> by_call = intervals;
    std::vector<Interval> by_grant = intervals;
    std::sort(by_call.begin(), by_call.end(), [](const Interval& a, const Interval& b) {
        return std::tie(a.lock, a.called) < std::tie(b.lock, b.called);
    });
    std::sort(by_grant.begin(), by_grant.end(),
              [](const Interval& a, const Interval& b) { return std::tie(a.lock, a.from) < std::tie(b.lock, b.from); });
    std::vector<IntervalPair> stale;
    const Interval* newest = nullptr;  // of those granted before the call
    std::size_t granted = 0;
    for (const Interval& asked : by_call) {
        while (granted < by_grant.size() &&
               std::tie(by_grant[granted].lock, by_grant[granted].from) < std::tie(asked.lock, asked.called)) {
            const Interval& grant = by_grant[granted++];
            if (newest == nullptr || newest->lock != grant.lock || grant.token > newest->token) newest = &grant;
        }
        if (newest != nullptr && newest->lock == asked.lock && asked.token <= newest->token)
            stale.emplace_back(*newest, asked);
    }
    return stale;
}

/// Returns the tokens, by lock, that two different holds have.
inline std::set<std::pair<std::uint64_t, std::uint64_t>> find_shared_tokens(const std::vector<Interval>& intervals) {
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> owners;
    std::set<std::pair<std::uint64_t, std::uint64_t>> twice;
    for (const Interval& interval : intervals) {
        const auto [owner, is_new] = owners.try_emplace({interval.lock, interval.token}, interval.owner);
        if (!is_new && owner->second != interval.owner) twice.insert({interval.lock, interval.token});
    }
    return twice;
}

/// A write to a fenced resource, as its writer recorded it.
struct FencedWrite {
    std::uint64_t resource = 0;
    std::uint64_t owner = 0;
    std::uint64_t token = 0;
    std::int64_t sent = 0;
    std::int64_t answered = 0;
    bool accepted = false;
};

/// Returns writes that were accepted although a write with a greater token, or with an equal one of another owner, had
/// been accepted before they were sent. The earlier of the two comes first.
inline std::vector<std::pair<FencedWrite, FencedWrite>> find_stale_writes(std::vector<FencedWrite> writes) {
    std::erase_if(writes, [](const FencedWrite& write) { return !write.accepted; });
    std::vector<FencedWrite> by_answer = writes;
    std::sort(writes.begin(), writes.end(), [](const FencedWrite& a, const FencedWrite& b) {
        return std::tie(a.resource, a.sent) < std::tie(b.resource, b.sent);
    });
    std::sort(by_answer.begin(), by_answer.end(), [](const FencedWrite& a, const FencedWrite& b) {
        return std::tie(a.resource, a.answered) < std::tie(b.resource, b.answered);
    });
    std::vector<std::pair<FencedWrite, FencedWrite>> stale;
    const FencedWrite* newest = nullptr;
    std::size_t answered = 0;
    for (const FencedWrite& write : writes) {
        while (answered < by_answer.size() && std::tie(by_answer[answered].resource, by_answer[answered].answered) <
                                                  std::tie(write.resource, write.sent)) {
            const FencedWrite& earlier = by_answer[answered++];
            if (newest == nullptr || newest->resource != earlier.resource || earlier.token > newest->token)
                newest = &earlier;
        }
        if (newest == nullptr || newest->resource != write.resource) continue;
        if (write.token < newest->token || (write.token == newest->token && write.owner != newest->owner))
            stale.emplace_back(*newest, write);
    }
    return stale;
}

/// Returns the intervals that exceeded the limit: when they began, `limit` permits of the semaphore were held already.
inline std::vector<Interval> find_crowds(const std::vector<Interval>& intervals, std::size_t limit,
                                         const Windows& excused = {}) {
    const std::vector<Interval> in_order = detail::in_order(intervals);
    std::multiset<std::int64_t> ends;
    std::vector<Interval> crowds;
    std::uint64_t lock = 0;
    for (const Interval& next : in_order) {
        if (next.lock != lock) ends.clear();
        lock = next.lock;
        ends.erase(ends.begin(), ends.upper_bound(next.from));
        if (ends.size() >= limit && !excused.meet(next.from, std::min(next.until, *ends.begin())))
            crowds.push_back(next);
        ends.insert(next.until);
    }
    return crowds;
}

/// Returns the ids that occur more than once: permits by their id, effects by their request.
template <class Id>
std::set<Id> find_repeated(const std::vector<Id>& ids) {
    std::set<Id> seen;
    std::set<Id> repeated;
    for (const Id& id : ids)
        if (!seen.insert(id).second) repeated.insert(id);
    return repeated;
}

/// Returns the greatest number of readers that entered while one writer waited.
inline std::size_t most_readers_before_a_writer(const std::vector<Interval>& intervals) {
    std::map<std::uint64_t, std::vector<std::int64_t>> readers;  // when they came in, by lock
    for (const Interval& interval : intervals)
        if (interval.shared == 1) readers[interval.lock].push_back(interval.from);
    for (auto& [lock, times] : readers) std::sort(times.begin(), times.end());
    std::size_t most = 0;
    for (const Interval& writer : intervals) {
        if (writer.shared == 1) continue;
        const auto& times = readers[writer.lock];
        const auto first = std::upper_bound(times.begin(), times.end(), writer.called);
        const auto last = std::lower_bound(times.begin(), times.end(), writer.from);
        if (last > first) most = std::max(most, static_cast<std::size_t>(last - first));
    }
    return most;
}

/// The result of a call, and the truth: it is dishonest to report "not held" while the key has our token.
struct Outcome {
    enum class Told { held, not_held, unknown };
    Told told = Told::unknown;
    bool ours_at_once = false;  // the key had our token when the call returned
    bool ours_later = false;    // ... and one lease later, with no call in between
};

inline bool is_honest(const Outcome& outcome) {
    switch (outcome.told) {
        case Outcome::Told::held: return outcome.ours_at_once;
        case Outcome::Told::not_held: return !outcome.ours_at_once && !outcome.ours_later;
        case Outcome::Told::unknown: return !outcome.ours_later;
    }
    return false;
}

}  // namespace redlatch::test
