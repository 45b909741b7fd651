// SPDX-License-Identifier: MIT
// Barriers and condition variables.
#include "simulation/calls.hpp"
#include "simulation/simulation.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace sim {

namespace {

// Ends the waits of all processes. A process ends its own by a thread of its own, because the library's stop callbacks
// lock its mutexes.
class GiveUp {
public:
    std::stop_token token_of(const Simulation::Process& process) {
        sources_.emplace_back(process.id, std::stop_source());
        return sources_.back().second.get_token();
    }
    void all() {
        if (std::exchange(is_over_, true)) return;
        for (auto& [process, source] : sources_)
            if (!scheduler().has_crashed(process))
                scheduler().spawn(process, [source = source]() mutable { source.request_stop(); });
    }
    bool is_over() const { return is_over_; }

private:
    std::vector<std::pair<int, std::stop_source>> sources_;
    bool is_over_ = false;
};

// --- Barrier ---------------------------------------------------------------------------------------------------------

struct Phase {
    std::int64_t arrived = 0;  // those that have begun to arrive, and were not taken back
    Nanos ended = 0;           // when the first of them went on
};

struct Meeting {
    std::int64_t parties = 0;
    std::vector<Phase> phases{};
    GiveUp give_up{};
};

// Returns whether the phase has ended.
bool meet(Simulation& simulation, Meeting& meeting, Phase& phase, redlatch::Barrier& barrier,
          const std::stop_token& stop) {
    Random& r = simulation.random();
    // A party of a process that has crashed never comes.
    for (int tries = 0; !meeting.give_up.is_over() && !(simulation.faults().crashes && tries == 3); ++tries) {
        simulation.pause();
        ++phase.arrived;
        bool ended = false;
        const bool is_sure = attempt(simulation, [&] {
            const bool has_limit = simulation.faults().crashes || r.below(3) == 0;
            ended = has_limit ? barrier.arrive_and_wait_for(some_ms(simulation, 1, 2000), stop)
                              : barrier.arrive_and_wait(stop);
            return true;
        });
        if (ended || !is_sure) return ended;
        --phase.arrived;
    }
    return false;
}

void go_through_phases(Simulation& simulation, Meeting& meeting, redlatch::Barrier& barrier,
                       const std::stop_token& stop) {
    for (Phase& phase : meeting.phases) {
        if (!meet(simulation, meeting, phase, barrier, stop)) return meeting.give_up.all();
        const Nanos now = scheduler().now();
        if (phase.arrived < meeting.parties && !simulation.lost_data())
            scheduler().fail("the phase ended with " + std::to_string(phase.arrived) + " of " +
                             std::to_string(meeting.parties) + " parties");
        if (phase.ended == 0) phase.ended = now;
        if (now - phase.ended > simulation.wake_up_bound(0) && !meeting.give_up.is_over())
            scheduler().fail("lost wake-up: a party waited on for " + std::to_string((now - phase.ended) / ms) + " ms");
    }
}

void run_barrier() {
    Simulation simulation(1);
    Random& r = simulation.random();
    Meeting meeting;
    std::vector<std::size_t> plan(1 + r.below(3) + simulation.faults().crashes);
    for (std::size_t& threads : plan) meeting.parties += static_cast<std::int64_t>(threads = 1 + r.below(3));
    meeting.phases.resize(1 + r.below(3));
    for (const std::size_t threads : plan) {
        Simulation::Process& process = simulation.start_process();
        const auto barrier = simulation.keep(
            process, std::make_shared<redlatch::Barrier>(*process.clients[0], "barrier", meeting.parties));
        for (std::size_t t = 0; t < threads; ++t)
            simulation.start_thread(process, [&, barrier, stop = meeting.give_up.token_of(process)] {
                go_through_phases(simulation, meeting, *barrier, stop);
            });
    }
    // Arrivals of processes that have crashed stay until the next one.
    simulation.finish({"barrier"}, {"{barrier}"});
}

// --- ConditionVariable -----------------------------------------------------------------------------------------------

// A stock that a lock guards. The condition variable tells that something was put in.
struct Stock {
    std::int64_t items = 0;
    Nanos available_since = 0;  // since when there has been something for those who wait
    bool is_broken = false;     // a call failed, so an item or a notification may be missing
    GiveUp give_up{};
};

struct StockRoom {
    redlatch::RLock lock;
    redlatch::ConditionVariable filled;
};

void put_in(Simulation& simulation, Stock& stock, StockRoom& room, bool tells_under_the_lock) {
    const auto tell = [&] {
        return simulation.random().below(4) == 0 ? room.filled.notify_all() > 0 : room.filled.notify_one();
    };
    const bool is_sure = attempt(simulation, [&] {
        std::unique_lock guard(room.lock);
        scheduler().sleep(simulation.random().between(0, 5 * ms));
        if (stock.items++ == 0) stock.available_since = scheduler().now();
        if (tells_under_the_lock) tell();
        guard.unlock();
        if (!tells_under_the_lock) tell();
        return true;
    });
    if (!is_sure) {
        stock.is_broken = true;
        stock.give_up.all();
    }
}

// Returns whether it has taken something.
bool take_out(Simulation& simulation, Stock& stock, StockRoom& room, const std::stop_token& stop) {
    Random& r = simulation.random();
    bool taken = false;
    const bool has_limit = simulation.faults().crashes || r.below(3) == 0;
    const bool is_sure = attempt(simulation, [&] {
        std::unique_lock guard(room.lock);
        const Nanos since = scheduler().now();
        const auto is_filled = [&] { return stock.items > 0; };
        taken = has_limit ? room.filled.wait_for(guard, some_ms(simulation, 1, 3000), is_filled, stop)
                          : room.filled.wait(guard, is_filled, stop);
        const Nanos now = scheduler().now();
        if (!taken) return true;
        const Nanos late = now - std::max(since, stock.available_since);
        // Several may take one after another, each with the lock.
        if (!stock.give_up.is_over() && late > simulation.wake_up_bound(2 * second))
            scheduler().fail("lost notification: a thread waited on for " + std::to_string(late / ms) + " ms");
        --stock.items;
        stock.available_since = now;
        scheduler().sleep(r.between(0, 5 * ms));
        return true;
    });
    if (is_sure) return taken;
    stock.is_broken = true;
    stock.give_up.all();
    return false;
}

void take_some(Simulation& simulation, Stock& stock, StockRoom& room, std::int64_t wanted,
               const std::stop_token& stop) {
    std::int64_t taken = 0;
    // After a crash there may be too little.
    for (int tries = 0; taken < wanted && !stock.give_up.is_over() && !(simulation.faults().crashes && tries == 5);
         ++tries) {
        simulation.pause();
        taken += take_out(simulation, stock, room, stop);
    }
}

void run_condition() {
    Simulation simulation(1);
    Random& r = simulation.random();
    Stock stock;
    std::int64_t wanted = 0;
    const std::size_t processes = 1 + r.below(3) + simulation.faults().crashes;
    for (std::size_t p = 0; p < processes; ++p) {
        Simulation::Process& process = simulation.start_process();
        const auto room = simulation.keep(
            process,
            std::shared_ptr<StockRoom>(new StockRoom{{*process.clients[0], "stock"}, {*process.clients[0], "filled"}}));
        for (std::size_t t = r.below(3); t > 0; --t) {
            const std::int64_t takes = r.between(1, 3);
            wanted += takes;
            simulation.start_thread(process, [&, room, takes, stop = stock.give_up.token_of(process)] {
                take_some(simulation, stock, *room, takes, stop);
            });
        }
        if (p + 1 < processes) continue;
        // The last process does not crash: see Simulation::inject_faults().
        simulation.start_thread(process, [&, room] {
            for (std::int64_t i = 0; i < wanted && !stock.give_up.is_over(); ++i) {
                scheduler().sleep(simulation.random().between(0, 100 * ms));
                put_in(simulation, stock, *room, simulation.random().below(2) == 0);
            }
        });
    }
    // Waiters of processes that have crashed stay until the next notification.
    simulation.finish({}, {"filled", "{filled}"});
    if (!stock.is_broken && !simulation.faults().crashes && stock.items != 0)
        scheduler().fail(std::to_string(stock.items) + " items are left");
}

}  // namespace

const std::vector<Kind>& meeting_kinds() {
    static const std::vector<Kind> kinds{{"barrier", run_barrier}, {"condition", run_condition}};
    return kinds;
}

}  // namespace sim
