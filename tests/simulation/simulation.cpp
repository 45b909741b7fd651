// SPDX-License-Identifier: MIT
#include "simulation/simulation.hpp"

#include <algorithm>
#include <utility>

namespace sim {

namespace {

Faults draw_faults(Random& random) {
    Faults faults;
    faults.most_delay = random.between(100 * us, 2 * ms);
    // Some seeds have no faults: there every bound is narrow.
    switch (random.below(7)) {
        case 0: break;
        case 1:
            faults.slow = 50;
            faults.slow_delay = 80 * ms;
            break;
        case 2:
            faults.cuts = 30;
            faults.silences = static_cast<unsigned>(random.below(2) * 300);
            break;
        case 3:
            faults.cuts = static_cast<unsigned>(random.below(60));
            faults.latest_copy = 40 * second;
            faults.silences = 200;
            faults.restarts = random.below(2) == 0;
            faults.loses_data = random.below(2) == 0;
            break;
        case 4:
            faults.crashes = true;
            faults.restarts = random.below(3) == 0;
            faults.cuts = static_cast<unsigned>(random.below(20));
            break;
        default:
            faults.lates = true;
            faults.latest_copy = Simulation::latest_copy;
            faults.cuts = static_cast<unsigned>(random.below(20));
    }
    return faults;
}

}  // namespace

Simulation::Simulation(std::size_t servers) {
    Random& r = random();
    faults_ = draw_faults(r);
    watchdog_timeout_ = redlatch::Milliseconds(late() ? r.between(20'000, 60'000) : r.between(300, 2000));
    command_timeout_ = redlatch::Milliseconds(r.between(200, 1000));
    Interleaving& how = scheduler().interleaving();
    how.switches = static_cast<unsigned>(r.below(3) * 200);
    how.stalls = r.below(2) == 0 ? 20 : 0;
    how.longest_stall = 10 * ms;
    for (std::size_t i = 0; i < servers; ++i)
        servers_.push_back(std::make_unique<Server>("server" + std::to_string(i), faults_,
                                                    1'700'000'000 * second + r.between(0, 3600 * second)));
}

Simulation::~Simulation() {
    const auto outlived = [](int id) { return scheduler().has_crashed(id); };
    for (auto& [id, object] : kept_)
        if (outlived(id)) new std::shared_ptr<void>(std::move(object));
    kept_.clear();
    for (auto& process : processes_) {
        if (outlived(process->id))
            process.release();
        else
            process->clients.clear();
    }
}

Simulation::Process& Simulation::start_process() {
    processes_.push_back(std::make_unique<Process>());
    Process& process = *processes_.back();
    process.id = static_cast<int>(processes_.size());
    for (const auto& server : servers_)
        process.clients.push_back(std::make_unique<Client>(
            Transport(*server, process.id, command_timeout_, random().below(2) == 0),
            redlatch::ClientOptions{.watchdog_timeout = watchdog_timeout_,
                                    .command_timeout = command_timeout_,
                                    .unreachable_timeout = std::chrono::seconds(10),
                                    .local_handoff_limit = static_cast<unsigned>(random().below(4)),
                                    .grants = random().below(3) > 0,
                                    .on_event = [](const redlatch::Event& event) {
                                        if (scheduler().tracing())
                                            scheduler().trace("event of " + event.name + ": " + event.detail);
                                    }}));
    return process;
}

InvariantChecker& Simulation::guard(const std::string& key, std::size_t server,
                                    const InvariantChecker::Bounds& bounds) {
    checkers_.emplace_back(server, std::make_unique<InvariantChecker>(key, bounds));
    servers_[server]->keyspace().on_change = [this, server](const std::string& changed, bool exists,
                                                            std::chrono::nanoseconds when) {
        for (const auto& [at, checker] : checkers_)
            if (at == server && checker->key() == changed)
                checker->changed(exists, servers_[server]->instant_of(when.count()));
    };
    return *checkers_.back().second;
}

void Simulation::start_thread(Process& process, std::function<void()> body) {
    threads_.push_back(scheduler().spawn(process.id, std::move(body)));
}

Nanos Simulation::slack() const {
    return 100 * ms + faults_.slow_delay * 12 + scheduler().interleaving().longest_stall * 20;
}

Nanos Simulation::local_slack() const {
    const Interleaving& how = scheduler().interleaving();
    return 30 * ms + (how.stalls > 0 ? how.longest_stall * 10 : 0);
}

// Causes a fault now and then, until the threads have ended.
void Simulation::inject_faults() {
    Scheduler& s = scheduler();
    Random& r = s.random();
    while (!over_) {
        s.sleep(r.between(1 * ms, 600 * ms));
        if (over_) return;
        if (faults_.restarts && r.below(3) == 0) {
            const auto i = static_cast<std::size_t>(r.below(servers_.size()));
            const bool keeps = !faults_.loses_data || i >= forgetful || r.below(2) == 0;
            if (!servers_[i]->is_up()) continue;
            disturbed();
            if (!keeps) {
                lost_data_ = true;
                for (const auto& [_, checker] : checkers_)
                    if (!wards_outlive_data) checker->nobody_knows();
            }
            servers_[i]->restart(keeps, r.between(0, second));
            if (!keeps && set_anew) set_anew();
        }
        if (faults_.crashes && crashes_ + 1 < static_cast<int>(processes_.size()) && r.below(2) == 0) {
            ++crashes_;
            disturbed();
            const int id = crashes_;
            s.trace("process " + std::to_string(id) + " crashes");
            s.crash(id);
            for (const auto& server : servers_) server->cut_connections(id);
            for (const auto& [_, checker] : checkers_) checker->crashed(id);
            for (Fiber* thread : threads_)
                if (thread->process == id) s.wake_all(thread);
        }
    }
}

void Simulation::disturbed() {
    for (const auto& [_, checker] : checkers_) checker->disturbed(scheduler().now());
}

void Simulation::finish(std::vector<std::string> kept, const std::vector<std::string>& kept_after_faults) {
    Scheduler& s = scheduler();
    Fiber* const trouble = s.spawn(0, [this] { inject_faults(); });
    for (Fiber* thread : threads_)
        while (!thread->ended && !s.has_crashed(thread->process)) s.wait(thread, forever, "the threads");
    over_ = true;
    s.join(*trouble);
    for (const auto& server : servers_) server->calm();
    if (faults_.any()) kept.insert(kept.end(), kept_after_faults.begin(), kept_after_faults.end());
    check_end(kept);
}

void Simulation::check_end(const std::vector<std::string>& kept) {
    Scheduler& s = scheduler();
    if (!excuses_errors()) {
        s.sleep(second);
        for (const auto& [server, checker] : checkers_)
            if (servers_[server]->keyspace().exists(checker->key()))
                s.fail("nobody holds " + checker->key() + ", but: " + servers_[server]->keyspace().dump());
    }
    // Longer than the life of any lease, mark, subscription or copy of a command.
    s.sleep(120 * second + faults_.latest_copy);
    std::uint64_t commands = 0;
    for (const auto& server : servers_) commands += server->commands();
    s.sleep(60 * second);
    for (const auto& server : servers_) {
        commands -= server->commands();
        if (server->subscriptions() > 0) s.fail("a subscription is left on " + server->name());
        for (const std::string& key : server->keyspace().keys())
            if (std::none_of(kept.begin(), kept.end(), [&](const auto& prefix) { return key.starts_with(prefix); }))
                s.fail("keys are left on " + server->name() + ":" + server->keyspace().dump());
    }
    if (commands != 0) s.fail("somebody still sends commands");
    for (const auto& [_, checker] : checkers_)
        if (checker->guarded != checker->entries && !lost_data_)
            s.fail("the counter that " + checker->key() + " guards says " + std::to_string(checker->guarded) +
                   ", not " + std::to_string(checker->entries));
}

}  // namespace sim
