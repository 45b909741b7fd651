// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/multi_lock.hpp"
#include "redlatch/quorum/member.hpp"
#include "redlatch/quorum/quorum_api.ipp"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

// Sorts by name, so that all waiters meet at the same member.
inline QuorumMembers sorted_by_name(QuorumMembers members) {
    if (members.empty()) throw Error(errc::invalid_argument, {}, "a MultiLock needs at least one member");
    for (std::size_t i = 0; i < members.size(); ++i)
        for (std::size_t j = i + 1; j < members.size(); ++j)
            if (members[i]->lock() == members[j]->lock())
                throw Error(errc::invalid_argument, members[i]->name(),
                            "a MultiLock must not contain the same lock twice");
    QuorumMembers sorted;
    for (auto& member : members) {
        const auto later = std::upper_bound(sorted.begin(), sorted.end(), member,
                                            [](const auto& a, const auto& b) { return a->name() < b->name(); });
        sorted.insert(later, std::move(member));
    }
    return sorted;
}

inline QuorumRules all_of(const std::vector<NamedLock*>& locks) {
    Milliseconds longest{0};
    for (NamedLock* lock : locks) longest = std::max(longest, LockMember(*lock).settings().command_timeout);
    return {.needed = locks.size(), .node_timeout = longest};
}

}  // namespace detail

REDLATCH_INLINE MultiLock::MultiLock(Whole, const std::vector<detail::NamedLock*>& locks)
    : QuorumApi(detail::sorted_by_name(members_of(locks)), detail::all_of(locks)) {}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
