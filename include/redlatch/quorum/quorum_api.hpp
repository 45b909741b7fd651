// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/inspection.hpp"
#include "redlatch/lock/lock_api.hpp"
#include "redlatch/lock/named_lock.hpp"
#include "redlatch/quorum/quorum_rules.hpp"
#include "redlatch/session/call_options.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <atomic>
#include <concepts>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

class QuorumMember;
class QuorumState;

using QuorumMembers = std::vector<std::shared_ptr<QuorumMember>>;

// Implements the common part of MultiLock and RedLock: the public members of a lock, on top of those of its members.
class QuorumApi : public LockApi {
public:
    REDLATCH_INLINE ~QuorumApi() override;

    // The names of its members in their order, each once.
    const std::string& name() const noexcept { return name_; }

    // Returns the state of each member, in the order of name(): see Inspection. All are asked at the same time, one
    // round trip. A member whose server fails or takes longer than the slowest that counts may take has an error in
    // place of a state. Throws Error, or stores its code, only if no member replied.
    std::vector<MemberInspection> inspect();
    std::vector<MemberInspection> inspect(std::error_code& ec) {
        return detail::answer([&] { return inspect(); }, std::vector<MemberInspection>(), ec);
    }

    // Returns true if this hold, by the Hold::owner() that this object gave it, is held according to the servers: by
    // enough of the members. One round trip. Each member knows it by another number: see inspect(). For the hold of an
    // Owner, whose Hold::owner() is 0 here, name that.
    using LockApi::is_held_by;
    bool is_held_by(std::uint64_t owner);
    bool is_held_by(std::uint64_t owner, std::error_code& ec) {
        return detail::answer([&] { return is_held_by(owner); }, false, ec);
    }

protected:
    QuorumApi(QuorumMembers members, const QuorumRules& rules);

    // Makes the members from locks, in their order.
    static QuorumMembers members_of(const std::vector<NamedLock*>& locks);

private:
    using State = std::shared_ptr<QuorumState>;

    // --- on behalf of an owner --------------------------------------------------------------------------------

    REDLATCH_INLINE HoldKeeper& keeper() override;
    REDLATCH_INLINE HeldLevel keeper_of_holds() override;
    REDLATCH_INLINE bool force_release(Instant limit) override;
    REDLATCH_INLINE bool ask_locked(Instant limit) override;
    REDLATCH_INLINE int ask_hold_count(OwnerNumber owner, Instant limit) override;
    REDLATCH_INLINE std::optional<Milliseconds> ask_remaining_lease(Instant limit) override;

    State* new_state(bool is_fork_child) const;
    State& state();

    const QuorumMembers members_;
    const QuorumRules rules_;
    const std::string name_;
    std::atomic<State*> state_;
};

// --- members, given by reference, or as a range of locks or of pointers to locks -----------------------------------

// A lock with a writer's side that can be a member.
template <class Lock>
concept WriteSided = requires(Lock& lock) {
    {lock.write_lock()};
};

template <class Lock>
NamedLock* member_lock(Lock& lock) {
    if constexpr (WriteSided<Lock>) {
        return member_lock(lock.write_lock());
    } else if constexpr (requires { *lock; }) {
        return member_lock(*lock);
    } else {
        static_assert(std::derived_from<Lock, NamedLock>,
                      "a member must be a lock of one server: RLock, FairLock, FencedLock, SpinLock, "
                      "Mutex or a side of a ReadWriteLock");
        return &lock;
    }
}

template <class Range>
std::vector<NamedLock*> member_locks_in(Range& range) {
    std::vector<NamedLock*> locks;
    for (auto& lock : range) locks.push_back(member_lock(lock));
    return locks;
}

// A range of locks, as opposed to a lock.
template <class Range>
concept LockRange = requires(Range& range) {
    std::begin(range);
    std::end(range);
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/quorum/quorum_api.ipp"
#endif
