// SPDX-License-Identifier: MIT
// The locks that consist of others: all of some locks, and the majority of servers.
#include "simulation/simulation.hpp"
#include "simulation/use_lock.hpp"

#include <array>

namespace sim {

namespace {

using RLock = redlatch::RLock;

// The locks of a process. The parts must outlive the whole.
template <class Whole>
struct Composed {
    template <class... Options>
    explicit Composed(Simulation::Process& process, const std::vector<std::pair<std::size_t, std::string>>& members,
                      Options... options) {
        for (const auto& [server, name] : members)
            parts.push_back(std::make_unique<RLock>(*process.clients[server], name));
        std::vector<RLock*> all;
        for (const auto& part : parts) all.push_back(part.get());
        whole = std::make_unique<Whole>(all, options...);
    }
    std::vector<std::unique_ptr<RLock>> parts;
    std::unique_ptr<Whole> whole;
};

void run_multi_lock() {
    Simulation simulation(2);
    Random& r = simulation.random();
    const std::array<InvariantChecker*, 3> checkers{&simulation.guard("a", 0, {forever}),
                                                    &simulation.guard("b", 1, {forever}),
                                                    &simulation.guard("c", 0, {forever})};
    const Habits habits{};
    for (std::size_t p = 1 + r.below(3) + simulation.faults().crashes; p > 0; --p) {
        Simulation::Process& process = simulation.start_process();
        using Two = Composed<redlatch::MultiLock>;
        // Each uses two of three locks, in any order. Two pairs exclude each other by the lock that they share.
        const std::vector<std::pair<std::size_t, std::string>> names{{0, "a"}, {1, "b"}, {0, "c"}};
        std::vector<std::shared_ptr<Two>> pairs;
        for (std::size_t i = 0; i < names.size(); ++i)
            pairs.push_back(
                simulation.keep(process, std::make_shared<Two>(process, std::vector{names[i], names[(i + 1) % 3]})));
        for (std::size_t t = 1 + r.below(2); t > 0; --t)
            simulation.start_thread(process, [&simulation, pairs, checkers, habits] {
                for (std::uint64_t round = 1 + simulation.random().below(3); round > 0; --round) {
                    const std::size_t i = simulation.random().below(pairs.size());
                    if (simulation.random().below(3) == 0)
                        LockUser(simulation, *checkers[i], *pairs[i]->parts[0], habits).use();
                    else
                        LockUser(simulation, *checkers[i], *pairs[i]->whole, habits).with(*checkers[(i + 1) % 3]).use();
                }
            });
    }
    simulation.finish({});
}

void run_red_lock() {
    Simulation simulation(3);
    // The lock must survive the loss of all data of one server.
    simulation.wards_outlive_data = true;
    Random& r = simulation.random();
    InvariantChecker& checker = simulation.guard("red", 0, {forever});
    for (std::size_t p = 1 + r.below(3) + simulation.faults().crashes; p > 0; --p) {
        Simulation::Process& process = simulation.start_process();
        using Majority = Composed<redlatch::RedLock>;
        const std::vector<std::pair<std::size_t, std::string>> names{{0, "red"}, {1, "red"}, {2, "red"}};
        const redlatch::RedLockOptions options{
            .node_timeout = redlatch::Milliseconds(r.between(100, 500)),
            .longest_lease = redlatch::Milliseconds(simulation.late() ? Simulation::longest_lease / ms : 2000)};
        const auto lock = simulation.keep(process, std::make_shared<Majority>(process, names, options));
        for (std::size_t t = 1 + r.below(2); t > 0; --t)
            simulation.start_thread(process, [&simulation, &checker, lock] {
                for (std::uint64_t round = 1 + simulation.random().below(3); round > 0; --round)
                    LockUser(simulation, checker, *lock->whole, {}).use();
            });
    }
    simulation.finish({});
}

}  // namespace

const std::vector<Kind>& quorum_kinds() {
    static const std::vector<Kind> kinds{{"multi_lock", run_multi_lock}, {"red_lock", run_red_lock}};
    return kinds;
}

}  // namespace sim
