// SPDX-License-Identifier: MIT
// expect: nodiscard
// Each of these calls continues without a lock, a permit or a warning that it should have. Each line with the comment
// `refused` must be refused; with `refused for each lock`, for each kind of lock.
#include <redlatch/redlatch.hpp>

#include <chrono>
#include <optional>
#include <stop_token>
#include <string>
#include <system_error>
#include <vector>

#pragma GCC diagnostic error "-Wunused-result"
#pragma GCC diagnostic error "-Wunused-value"

using namespace redlatch;

namespace {

constexpr std::chrono::seconds second{1};
const Lease lease{second};
constexpr Owner owner{7};
std::chrono::steady_clock::time_point noon;
std::stop_token stop;
std::error_code ec;

template <class Lock>
void of_lock(Lock& lock) {
    lock.lock();
    lock.lock(owner);
    lock.lock(lease);
    lock.lock(ec);
    lock.lock(stop);                                // refused for each lock
    lock.lock(owner, lease, stop, ec);              // refused for each lock
    lock.lock(lease, stop, ec);                     // refused for each lock
    lock.try_lock();                                // refused for each lock
    lock.try_lock(owner);                           // refused for each lock
    lock.try_lock(lease);                           // refused for each lock
    lock.try_lock(ec);                              // refused for each lock
    lock.try_lock(lease, ec);                       // refused for each lock
    lock.try_lock_for(second);                      // refused for each lock
    lock.try_lock_for(second, lease);               // refused for each lock
    lock.try_lock_for(second, stop);                // refused for each lock
    lock.try_lock_for(second, ec);                  // refused for each lock
    lock.try_lock_for(second, lease, stop, ec);     // refused for each lock
    lock.try_lock_until(noon);                      // refused for each lock
    lock.try_lock_until(noon, lease, stop, ec);     // refused for each lock
    lock.valid_until();                             // refused for each lock
    lock.valid_until(owner);                        // refused for each lock
    lock.lost();                                    // refused for each lock
    lock.async_lock();                              // refused for each lock
    lock.async_try_lock_for(second, lease);         // refused for each lock
    lock.async_run([](const std::stop_token&) {});  // refused for each lock
    lock.lost(owner);                               // refused for each lock
    lock.hold();                                    // refused for each lock
    lock.hold(lease, stop, ec);                     // refused for each lock
    lock.try_hold();                                // refused for each lock
    lock.try_hold(lease, ec);                       // refused for each lock
    lock.try_hold_for(second);                      // refused for each lock
    lock.try_hold_for(second, lease, stop, ec);     // refused for each lock
    lock.try_hold_until(noon);                      // refused for each lock
    lock.try_hold_until(noon, lease, stop, ec);     // refused for each lock
    lock.unlock();
    lock.force_unlock();
}

template void of_lock(RLock&);
template void of_lock(FairLock&);
template void of_lock(FencedLock&);
template void of_lock(SpinLock&);
template void of_lock(Mutex&);
template void of_lock(NonReentrantLock&);
template void of_lock(NonReentrantFairLock&);
template void of_lock(ReadWriteLock&);
template void of_lock(ReadWriteLock::ReadLock&);
template void of_lock(ReadWriteLock::WriteLock&);
template void of_lock(MultiLock&);
template void of_lock(RedLock&);

// Those that are not made of several.
template <class Lock>
void of_named(Lock& lock) {
    lock.wait_release();
    lock.wait_release(ec);
    lock.wait_release(stop);                    // refused for each named
    lock.wait_release(stop, ec);                // refused for each named
    lock.wait_release_for(second);              // refused for each named
    lock.wait_release_for(second, stop, ec);    // refused for each named
    lock.wait_release_until(noon);              // refused for each named
    lock.wait_release_until(noon, stop, ec);    // refused for each named
    lock.async_wait_release();                  // refused for each named
    lock.async_wait_release_for(second, stop);  // refused for each named
}

template void of_named(RLock&);
template void of_named(FairLock&);
template void of_named(ReadWriteLock::ReadLock&);

Hold new_hold(RLock& lock) { return lock.hold(); }

[[maybe_unused]] void of_hold(Hold& hold, RLock& lock) {
    new_hold(lock);                  // refused
    std::move(hold).async_unlock();  // refused
    hold.again();                    // refused
    hold.again(lease);               // refused
    hold.again(ec);                  // refused
    hold.token();                    // refused
    hold.valid_until();              // refused
    hold.lost();                     // refused
    hold.unlock();
}

Permits new_permits(Semaphore& seats) { return seats.hold(); }

[[maybe_unused]] void of_permits(Permits& permits, Semaphore& seats) {
    new_permits(seats);     // refused
    permits.split(1);       // refused
    permits.valid_until();  // refused
    permits.lost();         // refused
    permits.release();
}

[[maybe_unused]] void of_read_write_lock(ReadWriteLock& lock) {
    lock.lock_shared();
    lock.lock_shared(lease);
    lock.lock_shared(ec);
    lock.lock_shared(stop);                             // refused
    lock.lock_shared(lease, stop, ec);                  // refused
    lock.try_lock_shared();                             // refused
    lock.try_lock_shared(lease, ec);                    // refused
    lock.try_lock_shared_for(second);                   // refused
    lock.try_lock_shared_for(second, lease, stop, ec);  // refused
    lock.try_lock_shared_until(noon);                   // refused
    lock.try_lock_shared_until(noon, lease, stop, ec);  // refused
    lock.hold_shared();                                 // refused
    lock.hold_shared(lease, stop, ec);                  // refused
    lock.try_hold_shared();                             // refused
    lock.try_hold_shared(lease, ec);                    // refused
    lock.try_hold_shared_for(second);                   // refused
    lock.try_hold_shared_for(second, lease, stop, ec);  // refused
    lock.try_hold_shared_until(noon);                   // refused
    lock.try_hold_shared_until(noon, lease, stop, ec);  // refused
    lock.unlock_shared();
}

[[maybe_unused]] void of_fenced_lock(FencedLock& lock) {
    lock.token();                                              // refused
    lock.token(owner);                                         // refused
    lock.token(ec);                                            // refused
    lock.token(owner, ec);                                     // refused
    lock.latest_token();                                       // refused
    lock.latest_token(ec);                                     // refused
    lock.lock_and_get_token();                                 // refused
    lock.lock_and_get_token(lease);                            // refused
    lock.lock_and_get_token(stop);                             // refused
    lock.lock_and_get_token(ec);                               // refused
    lock.try_lock_and_get_token();                             // refused
    lock.try_lock_and_get_token(lease, ec);                    // refused
    lock.try_lock_and_get_token_for(second);                   // refused
    lock.try_lock_and_get_token_for(second, lease, stop, ec);  // refused
    lock.try_lock_and_get_token_until(noon);                   // refused
    lock.try_lock_and_get_token_until(noon, lease, stop, ec);  // refused
}

[[maybe_unused]] void of_semaphore(Semaphore& seats) {
    seats.acquire();
    seats.acquire(2);
    seats.acquire(2, ec);
    seats.acquire(stop);                         // refused
    seats.acquire(stop, ec);                     // refused
    seats.acquire(2, stop);                      // refused
    seats.acquire(2, stop, ec);                  // refused
    seats.try_acquire();                         // refused
    seats.try_acquire(ec);                       // refused
    seats.try_acquire(2);                        // refused
    seats.try_acquire(2, ec);                    // refused
    seats.try_acquire_for(second);               // refused
    seats.try_acquire_for(second, stop, ec);     // refused
    seats.try_acquire_for(second, 2);            // refused
    seats.try_acquire_for(second, 2, stop, ec);  // refused
    seats.try_acquire_until(noon);               // refused
    seats.try_acquire_until(noon, stop, ec);     // refused
    seats.try_acquire_until(noon, 2);            // refused
    seats.try_acquire_until(noon, 2, stop, ec);  // refused
    seats.drain_permits();                       // refused
    seats.drain_permits(ec);                     // refused
    seats.release();
}

Permit new_permit(PermitExpirableSemaphore& slots) { return Permit{slots}; }

[[maybe_unused]] void of_permits(PermitExpirableSemaphore& slots, const PermitId& id,
                                 const std::vector<PermitId>& ids) {
    slots.acquire();                                    // refused
    slots.acquire(lease);                               // refused
    slots.acquire(Lease::forever());                    // refused
    slots.acquire(stop);                                // refused
    slots.acquire(ec);                                  // refused
    slots.acquire(2);                                   // refused
    slots.acquire(2, lease, stop, ec);                  // refused
    slots.try_acquire();                                // refused
    slots.try_acquire(lease, ec);                       // refused
    slots.try_acquire(2);                               // refused
    slots.try_acquire(2, lease, ec);                    // refused
    slots.try_acquire_for(second);                      // refused
    slots.try_acquire_for(second, lease, stop, ec);     // refused
    slots.try_acquire_for(second, 2);                   // refused
    slots.try_acquire_for(second, 2, lease, stop, ec);  // refused
    slots.try_acquire_until(noon);                      // refused
    slots.try_acquire_until(noon, lease, stop, ec);     // refused
    slots.try_acquire_until(noon, 2);                   // refused
    slots.try_acquire_until(noon, 2, lease, stop, ec);  // refused
    slots.try_release(id);                              // refused
    slots.try_release(id, ec);                          // refused
    slots.try_release(ids);                             // refused
    slots.try_release(ids, ec);                         // refused
    slots.release(id);
    Permit{slots};         // refused
    Permit{slots, lease};  // refused
    Permit{slots, id};     // refused
    new_permit(slots);     // refused
    Permit permit{slots};
    permit.detach();  // refused
}

[[maybe_unused]] void of_latch(CountDownLatch& gate) {
    gate.wait();
    gate.wait(ec);
    gate.wait(stop);                  // refused
    gate.wait(stop, ec);              // refused
    gate.try_wait();                  // refused
    gate.try_wait(ec);                // refused
    gate.wait_for(second);            // refused
    gate.wait_for(second, stop, ec);  // refused
    gate.wait_until(noon);            // refused
    gate.wait_until(noon, stop, ec);  // refused
    gate.arrive_and_wait();
    gate.arrive_and_wait(2, ec);
    gate.arrive_and_wait(stop);         // refused
    gate.arrive_and_wait(stop, ec);     // refused
    gate.arrive_and_wait(2, stop);      // refused
    gate.arrive_and_wait(2, stop, ec);  // refused
    gate.count_down();
}

Term new_term(LeaderElection& election) { return election.campaign(); }

[[maybe_unused]] void of_election(LeaderElection& election, Term& term, std::optional<Leader>& seen) {
    new_term(election);                       // refused
    term.is_leader();                         // refused
    election.campaign();                      // refused
    election.campaign(stop, ec);              // refused
    election.try_campaign();                  // refused
    election.try_campaign(ec);                // refused
    election.campaign_for(second, stop, ec);  // refused
    election.campaign_until(noon);            // refused
    election.leader();                        // refused
    election.leader(ec);                      // refused
    election.wait_change(seen, stop);         // refused
    election.wait_change_for(second, seen);   // refused
}

[[maybe_unused]] void of_once(OnceFlag& migration) {
    migration.call([] {});
    migration.call_for(second, [] {});  // refused
    migration.is_done();                // refused
    migration.is_done(ec);              // refused
}

[[maybe_unused]] void of_flight(SingleFlight& report) {
    const auto render = [] { return std::string(); };
    report.get(render);              // refused
    report.get(render, stop);        // refused
    report.get_for(second, render);  // refused
    report.peek();                   // refused
    report.peek(ec);                 // refused
}

[[maybe_unused]] void of_stripes(StripedLock& accounts, const std::vector<std::string>& names) {
    accounts.locks_for({"alice", "bob"});  // refused
    accounts.locks_for(names);             // refused
}

[[maybe_unused]] void of_segments(SegmentedSemaphore& stock, const SegmentPermit& permit) {
    stock.acquire();                                 // refused
    stock.acquire(lease, stop, ec);                  // refused
    stock.try_acquire();                             // refused
    stock.try_acquire(lease, ec);                    // refused
    stock.try_acquire_for(second);                   // refused
    stock.try_acquire_for(second, lease, stop, ec);  // refused
    stock.try_acquire_until(noon, lease, stop, ec);  // refused
    stock.hold();                                    // refused
    stock.try_hold();                                // refused
    stock.try_hold_for(second, lease, stop, ec);     // refused
    stock.try_release(permit);                       // refused
    stock.try_release(permit, ec);                   // refused
}

[[maybe_unused]] void of_barrier(Barrier& gate, Barrier::Arrival& arrival) {
    gate.arrive();    // refused
    gate.arrive(ec);  // refused
    gate.wait(arrival);
    gate.wait(arrival, ec);
    gate.wait(arrival, stop);                  // refused
    gate.wait_for(arrival, second);            // refused
    gate.wait_until(arrival, noon, stop, ec);  // refused
    gate.arrive_and_wait();
    gate.arrive_and_wait(ec);
    gate.arrive_and_wait(stop);                  // refused
    gate.arrive_and_wait_for(second);            // refused
    gate.arrive_and_wait_until(noon, stop, ec);  // refused
}

[[maybe_unused]] void of_condition(ConditionVariable& changed, RLock& lock) {
    const auto pred = [] { return true; };
    changed.wait(lock);
    changed.wait(lock, pred, ec);
    changed.wait(lock, stop);                        // refused
    changed.wait(lock, pred, stop);                  // refused
    changed.wait_for(lock, second);                  // refused
    changed.wait_for(lock, second, pred, stop, ec);  // refused
    changed.wait_until(lock, noon);                  // refused
    changed.wait_until(lock, noon, pred, stop, ec);  // refused
    changed.notify_one();
    changed.notify_all();
}

}  // namespace
