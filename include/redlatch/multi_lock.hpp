// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/error.hpp"
#include "redlatch/quorum/quorum_api.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// Combines several locks into one: a hold has all of them or none. Members may differ in kind, name and server. They
// stay ordinary locks for code that takes them one by one. The counterpart of Redisson's MultiLock.
//
//   redlatch::MultiLock both{from, to};           // or a range: MultiLock(std::vector<RLock*>)
//   std::lock_guard guard{both};
//
// The client queries all members at the same time. Acquiring takes one round trip and one command per member; releasing
// takes as many. A waiting call holds none of the members, so threads may name them in any order. A hold is valid as
// long as all of its parts are. is_locked(), hold_count() and remaining_lease() report what is true of all members.
//
// Reentrant if its members are. Members must outlive this object. A hold belongs to the object that took it. Neither
// copyable nor movable. Any number of threads may use one object.
class MultiLock : public detail::QuorumApi<MultiLock> {
public:
    // Throws Error(errc::invalid_argument) if a lock is named twice. Sends nothing.
    template <class... Locks>
    requires(sizeof...(Locks) >= 1 && !(... || detail::LockRange<Locks>)) explicit MultiLock(Locks&... locks)
        : MultiLock(Whole{}, detail::members_of(locks...)) {}

    template <detail::LockRange Range>
    explicit MultiLock(Range&& range) : MultiLock(Whole{}, detail::members_of_range(range)) {}

private:
    using Members = std::vector<std::shared_ptr<detail::QuorumMember>>;
    struct Whole {};

    MultiLock(Whole, const Members& members)
        : QuorumApi(sorted(members), detail::QuorumRules{.needed = members.size(), .node_timeout = patience(members)}) {
    }

    // Sorts by name, so that all waiters meet at the same member.
    static Members sorted(Members members) {
        if (members.empty()) throw Error(errc::invalid_argument, {}, "a MultiLock needs at least one member");
        for (std::size_t i = 0; i < members.size(); ++i)
            for (std::size_t j = i + 1; j < members.size(); ++j)
                if (members[i]->lock() == members[j]->lock())
                    throw Error(errc::invalid_argument, members[i]->name(),
                                "a MultiLock must not contain the same lock twice");
        std::stable_sort(members.begin(), members.end(),
                         [](const auto& a, const auto& b) { return a->name() < b->name(); });
        return members;
    }

    static Milliseconds patience(const Members& members) {
        Milliseconds longest{0};
        for (const auto& member : members) longest = std::max(longest, member->options().command_timeout);
        return longest;
    }
};

}  // namespace v0_1
}  // namespace redlatch
