// SPDX-License-Identifier: MIT
// What a lock offers to its users: no member that takes any owner but an Owner, and no access to the inside.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

using namespace redlatch;
using namespace redlatch::detail;

namespace {

template <class Lock>
concept ShowsItsInside = requires(Lock& lock) {
    lock.state();
};

template <class Lock>
concept TakesAnOwner = requires(Lock& lock, const LockRequest& request) {
    lock.acquire(request);
}
|| requires(Lock& lock, OwnerNumber owner) { lock.release(owner); }
|| requires(Lock& lock, OwnerNumber owner) { lock.valid_until_of(owner); }
|| requires(Lock& lock, OwnerNumber owner) { lock.lost_of(owner); }
|| requires(Lock& lock, OwnerNumber owner) { lock.ask_hold_count(owner); };

template <class... Locks>
constexpr bool are_closed = (... && (!ShowsItsInside<Locks> && !TakesAnOwner<Locks>));

}  // namespace

TEST_CASE("no lock has a public member that takes the owner of another thread or object, or shows its inside") {
    static_assert(are_closed<RLock, FairLock, FencedLock, SpinLock, Mutex, NonReentrantLock, NonReentrantFairLock,
                             ReadWriteLock, ReadWriteLock::ReadLock, ReadWriteLock::WriteLock, MultiLock, RedLock>);
    static_assert(!ShowsItsInside<Semaphore> && !ShowsItsInside<PermitExpirableSemaphore> &&
                  !ShowsItsInside<CountDownLatch>);
}
