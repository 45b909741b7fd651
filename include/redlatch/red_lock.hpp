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
    // How long a server may take to answer before the others decide without it.
    Milliseconds node_timeout{500};
    // The longest lease that anybody takes this lock with; zero is the watchdog_timeout of its first client. A server
    // that has been running for less gives no vote, because it may have lost, in its restart, a lock that is still
    // valid. The same in all processes that use this lock.
    Milliseconds longest_lease{0};
};

// A lock on a majority of independent servers, which survives the loss of the others: of their process, their memory or
// their connection. Members are locks of one name, each on a server of its own (no replicas of each other), RLock or
// any other lock.
//
//   redlatch::RLock a{redis1, "orders"}, b{redis2, "orders"}, c{redis3, "orders"};
//   redlatch::RedLock orders{a, b, c};
//
// After the Redlock algorithm of the Redis documentation: all are asked at the same time; the hold is valid from when
// they were asked until the leases of a majority end, less what their clocks may drift apart. Two commands a server for
// taking and giving back, one more after each connection (INFO, for the server's age). A minority that is dead, frozen
// or unreachable costs no error, and one node_timeout at most. Members that could not be had are asked again whenever
// the watchdog renews, and lost() is requested when the majority is gone. What no majority of leases can promise, a
// process that is stopped for longer than its lease, needs fencing.
//
// How old a server is it tells by its wall clock, which nobody else can check: one that restarts empty, and whose clock
// is set forward within longest_lease after that, votes too early. Nor is a server known to have lost its data when it
// went on running (FLUSHALL). Either is one of the faults of which a minority may have one.
//
// Right after all servers were started, nobody gets the lock for longest_lease. Reentrant where its members are.
// Members must outlive this object; a hold belongs to the object that took it. Neither copied nor moved; any number of
// threads may use one object.
class RedLock : public QuorumApi<RedLock> {
public:
    // Throws Error(errc::invalid_argument) for two members of one client, which are on one server, and for options that
    // cannot work. Sends nothing.
    template <class... Locks>
    requires(sizeof...(Locks) >= 1 && !(... || LockRange<Locks>)) explicit RedLock(Locks&... locks)
        : RedLock(RedLockOptions{}, locks...) {}

    template <class... Locks>
    requires(sizeof...(Locks) >= 1 && !(... || LockRange<Locks>)) explicit RedLock(RedLockOptions options,
                                                                                   Locks&... locks)
        : RedLock(Whole{}, members_of(locks...), options) {}

    template <LockRange Range>
    explicit RedLock(Range&& range, RedLockOptions options = {}) : RedLock(Whole{}, members_of_range(range), options) {}

private:
    using Members = std::vector<std::shared_ptr<QuorumMember>>;
    struct Whole {};

    RedLock(Whole, const Members& members, RedLockOptions options) : QuorumApi(members, rules_of(members, options)) {}

    static QuorumRules rules_of(const Members& members, RedLockOptions options) {
        if (members.empty()) throw Error(errc::invalid_argument, {}, "a RedLock needs a member");
        const std::string& name = members.front()->name();
        if (options.longest_lease == Milliseconds(0))
            options.longest_lease = members.front()->options().watchdog_timeout;
        for (std::size_t i = 0; i < members.size(); ++i) {
            if (members[i]->options().watchdog_timeout > options.longest_lease)
                throw Error(
                    errc::invalid_argument, name,
                    "RedLockOptions::longest_lease must not be below the watchdog_timeout of a member's client");
            for (std::size_t j = i + 1; j < members.size(); ++j)
                if (members[i]->client() == members[j]->client())
                    throw Error(errc::invalid_argument, name,
                                "two members of a RedLock on one client; each must be on a server of its own");
        }
        if (options.node_timeout < Milliseconds(1) || options.node_timeout > std::chrono::hours(1) ||
            options.longest_lease < Milliseconds(1))
            throw Error(errc::invalid_argument, name,
                        "RedLockOptions: node_timeout must be from 1 ms to 1 h, longest_lease positive");
        return {.needed = members.size() / 2 + 1,
                .node_timeout = options.node_timeout,
                .independent = true,
                .longest_lease = Lease(options.longest_lease).length()};
    }
};

}  // namespace v0_1
}  // namespace redlatch
