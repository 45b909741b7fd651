// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/quorum/quorum_api.hpp"

#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

// Options of a RedLock.
struct RedLockOptions {
    // The time a server may take to reply before the others decide without it.
    Milliseconds node_timeout{500};
    // The longest lease that any process takes this lock with; zero means the watchdog_timeout of its first member. A
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
class RedLock : public detail::QuorumApi {
public:
    // Makes a lock of these members, with options or without. A ReadWriteLock stands for its write side. Throws
    // Error(errc::invalid_argument) if two members use one client, and so one server, and for options that cannot work.
    // Sends nothing.
    template <class... Locks>
    requires(sizeof...(Locks) >= 1 && !(... || detail::LockRange<Locks>)) explicit RedLock(Locks&... locks)
        : RedLock(RedLockOptions{}, locks...) {}

    // Does the same with options.
    template <class... Locks>
    requires(sizeof...(Locks) >= 1 && !(... || detail::LockRange<Locks>)) explicit RedLock(RedLockOptions options,
                                                                                           Locks&... locks)
        : RedLock(Whole{}, {detail::member_lock(locks)...}, options) {}

    // Does the same for a range of locks or of pointers to locks.
    template <detail::LockRange Range>
    explicit RedLock(Range&& range, RedLockOptions options = {})
        : RedLock(Whole{}, detail::member_locks_in(range), options) {}

private:
    struct Whole {};

    RedLock(Whole, const std::vector<detail::NamedLock*>& locks, RedLockOptions options);
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/red_lock.ipp"
#endif
