// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/quorum/member.hpp"
#include "redlatch/quorum/quorum_api.ipp"
#include "redlatch/red_lock.hpp"

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

inline QuorumRules majority_of(const QuorumMembers& members, RedLockOptions options) {
    if (members.empty()) throw Error(errc::invalid_argument, {}, "a RedLock needs at least one member");
    const std::string& name = members.front()->name();
    if (options.longest_lease == Milliseconds(0)) options.longest_lease = members.front()->settings().watchdog_timeout;
    for (std::size_t i = 0; i < members.size(); ++i) {
        if (members[i]->settings().watchdog_timeout > options.longest_lease)
            throw Error(errc::invalid_argument, name,
                        "RedLockOptions::longest_lease must be at least the watchdog_timeout of every member");
        for (std::size_t j = i + 1; j < members.size(); ++j)
            if (members[i]->client() == members[j]->client())
                throw Error(errc::invalid_argument, name,
                            "two members use the same client; each member needs a client for a server of its own");
    }
    if (options.node_timeout < Milliseconds(1) || options.node_timeout > std::chrono::hours(1) ||
        options.longest_lease < Milliseconds(1))
        throw Error(errc::invalid_argument, name,
                    "RedLockOptions: node_timeout must be from 1 ms to 1 h, and longest_lease must be positive");
    return {.needed = members.size() / 2 + 1,
            .node_timeout = options.node_timeout,
            .independent = true,
            .longest_lease = Lease(options.longest_lease).length()};
}

}  // namespace detail

REDLATCH_INLINE RedLock::RedLock(Whole, const std::vector<detail::NamedLock*>& locks, RedLockOptions options)
    : QuorumApi(members_of(locks), detail::majority_of(members_of(locks), options)) {}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
