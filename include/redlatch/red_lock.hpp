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

struct RedLockOptions {
    // The time a server may take to reply before the others decide without it.
    Milliseconds node_timeout{500};
    // The longest lease that any process takes this lock with; zero means the watchdog_timeout of its first client. A
    // server that has been running for less does not vote, because a restart may have lost a lock that is still valid.
    // Use the same value in all processes that use this lock.
    Milliseconds longest_lease{0};
};

// Provides a lock on a majority of independent servers. It survives the loss of a minority: of their process, memory or
// connection. Members are locks with one name, each on a server of its own (none a replica of another), of type RLock
// or any other lock type.
//
//   redlatch::RLock a{redis1, "orders"}, b{redis2, "orders"}, c{redis3, "orders"};
//   redlatch::RedLock orders{a, b, c};
//
// It follows the Redlock algorithm of the Redis documentation. All members are queried at the same time. The hold is
// valid from the time of the query until the leases of a majority expire, less the possible drift of their clocks. An
// acquire and its release cost two commands per server, plus one after each new connection (INFO, for the server's
// age). A minority that is dead, frozen or unreachable causes no error and costs at most one node_timeout. Each renewal
// by the watchdog retries the members that are not held. A stop is requested on lost() when the majority is lost. No
// majority of leases protects against a process that pauses for longer than its lease; that requires fencing tokens.
//
// A server computes its age from its wall clock, which nothing else can verify. A server that restarts empty, and whose
// clock is set forward within longest_lease after that, votes too early. Data loss without a restart (FLUSHALL) is not
// detected either. Both count among the faults that only a minority of the servers may have.
//
// For longest_lease after all servers were started, no process can acquire the lock. Reentrant if its members are.
// Members must outlive this object. A hold belongs to the object that took it. Neither copyable nor movable. Any number
// of threads may use one object.
class RedLock : public detail::QuorumApi<RedLock> {
public:
    // Throws Error(errc::invalid_argument) if two members use one client, and so one server, and for options that
    // cannot work. Sends nothing.
    template <class... Locks>
    requires(sizeof...(Locks) >= 1 && !(... || detail::LockRange<Locks>)) explicit RedLock(Locks&... locks)
        : RedLock(RedLockOptions{}, locks...) {}

    template <class... Locks>
    requires(sizeof...(Locks) >= 1 && !(... || detail::LockRange<Locks>)) explicit RedLock(RedLockOptions options,
                                                                                           Locks&... locks)
        : RedLock(Whole{}, detail::members_of(locks...), options) {}

    template <detail::LockRange Range>
    explicit RedLock(Range&& range, RedLockOptions options = {})
        : RedLock(Whole{}, detail::members_of_range(range), options) {}

private:
    using Members = std::vector<std::shared_ptr<detail::QuorumMember>>;
    struct Whole {};

    RedLock(Whole, const Members& members, RedLockOptions options) : QuorumApi(members, rules_of(members, options)) {}

    static detail::QuorumRules rules_of(const Members& members, RedLockOptions options) {
        if (members.empty()) throw Error(errc::invalid_argument, {}, "a RedLock needs at least one member");
        const std::string& name = members.front()->name();
        if (options.longest_lease == Milliseconds(0))
            options.longest_lease = members.front()->options().watchdog_timeout;
        for (std::size_t i = 0; i < members.size(); ++i) {
            if (members[i]->options().watchdog_timeout > options.longest_lease)
                throw Error(
                    errc::invalid_argument, name,
                    "RedLockOptions::longest_lease must be at least the watchdog_timeout of every member's client");
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
};

}  // namespace v0_1
}  // namespace redlatch
