// SPDX-License-Identifier: MIT
// The locks on one server.
#include "simulation/simulation.hpp"
#include "simulation/use_lock.hpp"

namespace sim {

namespace {

// The longest minimum of a hold.
constexpr Nanos longest_rest = 300 * ms;

template <class Lock>
std::shared_ptr<Lock> make(Simulation& simulation, Simulation::Process& process, const std::string& name) {
    return simulation.keep(process, std::make_shared<Lock>(*process.clients[0], name));
}

// Runs some processes with some threads each, which use one lock or two.
template <class Lock>
void run_lock(Habits habits) {
    Simulation simulation(1);
    Random& r = simulation.random();
    const std::size_t names = 1 + r.below(2);
    // A FairLock is granted only under a watchdog that is no shorter than a grant.
    if (habits.long_watchdogs && !simulation.late() && r.below(2) == 0)
        simulation.set_watchdog_timeout(redlatch::Milliseconds(r.between(2000, 4000)));
    if (r.below(4) == 0) {
        simulation.server(0).model().commands.knows_pxat = false;
        // A late copy of the plain command of a Mutex holds for a whole lease then.
        if (habits.late_hold > 0) habits.late_hold += Simulation::latest_copy;
    }
    std::vector<InvariantChecker*> checkers;
    for (std::size_t n = 0; n < names; ++n)
        checkers.push_back(&simulation.guard(
            "lock" + std::to_string(n), 0,
            {.wake_up = simulation.wake_up_bound(habits.poll + habits.rest), .late_hold = habits.late_hold}));
    const std::size_t processes = 1 + r.below(3) + simulation.faults().crashes;
    for (std::size_t p = 0; p < processes; ++p) {
        Simulation::Process& process = simulation.start_process();
        std::vector<std::shared_ptr<Lock>> locks;
        for (std::size_t n = 0; n < names; ++n) locks.push_back(make<Lock>(simulation, process, checkers[n]->key()));
        for (std::size_t t = 1 + r.below(3); t > 0; --t)
            simulation.start_thread(process, [&simulation, locks, checkers, habits] {
                for (std::uint64_t round = 1 + simulation.random().below(4); round > 0; --round) {
                    const std::size_t n = simulation.random().below(locks.size());
                    LockUser(simulation, *checkers[n], *locks[n], habits).use();
                }
            });
    }
    // The place of a crashed process, or of a command that came late, stays in a queue until the next client asks, or
    // for an hour.
    simulation.finish({"redisson_lock_token"}, {"redisson_lock_queue", "redisson_lock_timeout", "redlatch_lock_slots"});
}

void run_rlock() { run_lock<redlatch::RLock>({.rest = longest_rest}); }
void run_fair_lock() {
    run_lock<redlatch::FairLock>({.poll = 6 * second, .rest = longest_rest, .long_watchdogs = true});
}
void run_fenced_lock() { run_lock<redlatch::FencedLock>({.rest = longest_rest}); }
void run_spin_lock() { run_lock<redlatch::SpinLock>({.poll = second, .rest = longest_rest}); }
void run_mutex() {
    run_lock<redlatch::Mutex>(
        {.poll = second, .late_hold = Simulation::longest_lease, .reentrant = false, .rest = longest_rest});
}

void run_read_write_lock() {
    Simulation simulation(1);
    Random& r = simulation.random();
    // A reader that releases leaves waiting writers the longer lease that they saw, up to a point.
    const Nanos longest = simulation.late() ? Simulation::longest_lease : 2 * second;
    InvariantChecker& checker =
        simulation.guard("rw", 0, {.wake_up = simulation.wake_up_bound(longest_rest), .after_lease = longest});
    for (std::size_t p = 1 + r.below(3) + simulation.faults().crashes; p > 0; --p) {
        Simulation::Process& process = simulation.start_process();
        const auto lock = make<redlatch::ReadWriteLock>(simulation, process, checker.key());
        for (std::size_t t = 1 + r.below(3); t > 0; --t)
            simulation.start_thread(process, [&simulation, &checker, lock] {
                for (std::uint64_t round = 1 + simulation.random().below(4); round > 0; --round) {
                    if (simulation.random().below(2) == 0)
                        LockUser(simulation, checker, lock->read_lock(), {.shared = true, .rest = longest_rest}).use();
                    else
                        LockUser(simulation, checker, lock->write_lock(), {.rest = longest_rest}).use();
                }
            });
    }
    simulation.finish({});
}

}  // namespace

const std::vector<Kind>& lock_kinds() {
    static const std::vector<Kind> kinds{{"rlock", run_rlock},
                                         {"fair_lock", run_fair_lock},
                                         {"fenced_lock", run_fenced_lock},
                                         {"spin_lock", run_spin_lock},
                                         {"read_write_lock", run_read_write_lock},
                                         {"mutex", run_mutex}};
    return kinds;
}

}  // namespace sim
