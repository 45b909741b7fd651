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

// Several locks as one: all of them, or none. They may be of different kinds, names and servers, and are the same locks
// to everybody who takes them one by one; what Redisson's MultiLock is in Java.
//
//   redlatch::MultiLock both{from, to};           // or a range: MultiLock(std::vector<RLock<>*>)
//   std::lock_guard guard{both};
//
// Members are asked at the same time: one round trip, one command each, and as many to give them back. Who waits holds
// none of them, so it does not matter in which order different threads name them. A hold is valid for as long as all
// parts of it are; is_locked(), hold_count() and remaining_lease() say what is true of all members.
//
// Reentrant where its members are. Members must outlive this object; a hold belongs to the object that took it. Neither
// copied nor moved; any number of threads may use one object.
class MultiLock : public QuorumApi<MultiLock> {
public:
    // Throws Error(errc::invalid_argument) for a lock that is named twice. Sends nothing.
    template <class... Locks>
    requires(sizeof...(Locks) >= 1 && !(... || LockRange<Locks>)) explicit MultiLock(Locks&... locks)
        : MultiLock(Whole{}, members_of(locks...)) {}

    template <LockRange Range>
    explicit MultiLock(Range&& range) : MultiLock(Whole{}, members_of_range(range)) {}

private:
    using Members = std::vector<std::shared_ptr<QuorumMember>>;
    struct Whole {};

    MultiLock(Whole, const Members& members)
        : QuorumApi(sorted(members), QuorumRules{.needed = members.size(), .node_timeout = patience(members)}) {}

    // By name, so that those who wait meet at the same one.
    static Members sorted(Members members) {
        if (members.empty()) throw Error(errc::invalid_argument, {}, "a MultiLock needs a member");
        for (std::size_t i = 0; i < members.size(); ++i)
            for (std::size_t j = i + 1; j < members.size(); ++j)
                if (members[i]->lock() == members[j]->lock())
                    throw Error(errc::invalid_argument, members[i]->name(), "one lock twice in a MultiLock");
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
