// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/quorum/quorum_api.hpp"

#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

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
// Reentrant if its members are. Members must outlive this object. A hold belongs to the object that took it. The destructor
// of this object releases the holds that Hold objects and Owners have of it. Neither copyable nor movable. Any number of
// threads may use one object.
class MultiLock : public detail::QuorumApi {
public:
    // Makes a lock of these members. A ReadWriteLock stands for its write side. Throws Error(errc::invalid_argument) if a
    // lock is named twice. Sends nothing.
    template <class... Locks>
    requires(sizeof...(Locks) >= 1 && !(... || detail::LockRange<Locks>)) explicit MultiLock(Locks&... locks)
        : MultiLock(Whole{}, {detail::member_lock(locks)...}) {}

    // Does the same for a range of locks or of pointers to locks.
    template <detail::LockRange Range>
    explicit MultiLock(Range&& range) : MultiLock(Whole{}, detail::member_locks_in(range)) {}

private:
    struct Whole {};

    MultiLock(Whole, const std::vector<detail::NamedLock*>& locks);
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/multi_lock.ipp"
#endif
