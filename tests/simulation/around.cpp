// SPDX-License-Identifier: MIT
// What stands on locks and permits: elections, work that is done once, values that one computes, segmented semaphores.
#include "simulation/calls.hpp"
#include "simulation/ledger.hpp"
#include "simulation/simulation.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <vector>

namespace sim {

namespace {

// --- LeaderElection --------------------------------------------------------------------------------------------------

redlatch::Term some_term(Simulation& simulation, redlatch::LeaderElection& election) {
    Random& r = simulation.random();
    switch (r.below(5)) {
        case 0: return election.campaign();
        case 1: return election.try_campaign();
        case 2: return election.campaign_for(some_ms(simulation, 1, 3000));
        case 3: return election.async_campaign_for(some_ms(simulation, 1, 3000)).future().get();
        default: return election.campaign(stop_at(scheduler().now() + r.between(0, 500 * ms)));
    }
}

void reign(Simulation& simulation, InvariantChecker& checker, redlatch::LeaderElection& election) {
    Random& r = simulation.random();
    simulation.pause();
    const std::uint64_t upheavals = checker.upheavals();
    redlatch::Term term;
    checker.waits();
    attempt(simulation, [&] {
        term = some_term(simulation, election);
        return true;
    });
    checker.waits_no_more();
    if (!term) return;
    checker.holds();
    const auto leads = [&] {
        if (!term.is_leader() || checker.upheavals() != upheavals) return false;
        checker.certain(false, term.valid_until().time_since_epoch().count());
        return true;
    };
    if (leads()) {
        const std::int64_t token = term.token();
        if (leads()) checker.token(token);
    }
    const std::int64_t read = checker.guarded;
    for (std::uint64_t steps = r.below(4); steps > 0; --steps) {
        scheduler().sleep(r.between(0, r.below(5) == 0 ? simulation.long_work() : 40 * ms));
        leads();
    }
    if (leads()) {
        checker.guarded = read + 1;
        ++checker.entries;
    }
    checker.uncertain();
    if (r.below(3) > 0)
        static_cast<void>(term.resign());
    else
        term = {};
    checker.holds_no_more();
}

// The tokens of the leaders that an observer sees never decrease.
void observe(Simulation& simulation, redlatch::LeaderElection& election, const bool& is_over) {
    std::optional<redlatch::Leader> seen;
    std::int64_t last = 0;
    while (!is_over) {
        attempt(simulation, [&] { return election.wait_change_for(some_ms(simulation, 1, 2000), seen); });
        if (!seen || simulation.lost_data()) continue;
        if (seen->token < last)
            scheduler().fail("the leader of token " + std::to_string(seen->token) + " was seen after that of " +
                             std::to_string(last));
        last = seen->token;
    }
}

void run_election() {
    Simulation simulation(1);
    Random& r = simulation.random();
    InvariantChecker& checker = simulation.guard("election", 0, {.wake_up = simulation.wake_up_bound(0)});
    const std::size_t processes = 1 + r.below(3) + simulation.faults().crashes;
    std::size_t candidates = 0;
    bool is_over = false;
    for (std::size_t p = 0; p < processes; ++p) {
        Simulation::Process& process = simulation.start_process();
        const auto election = simulation.keep(
            process, std::make_shared<redlatch::LeaderElection>(*process.clients[0], checker.key(), std::to_string(p)));
        for (std::size_t t = 1 + r.below(2); t > 0; --t) {
            ++candidates;
            simulation.start_thread(process, [&, election] {
                for (std::uint64_t round = 1 + simulation.random().below(3); round > 0; --round)
                    reign(simulation, checker, *election);
                if (--candidates == 0) is_over = true;
            });
        }
        if (!simulation.faults().crashes && r.below(2) == 0)
            simulation.start_thread(process, [&, election] { observe(simulation, *election, is_over); });
    }
    simulation.finish({"redisson_lock_token", "redlatch_leader"});
}

// --- OnceFlag and SingleFlight --------------------------------------------------------------------------------------------------------

struct Once {
    std::int64_t returned = 0;  // how often the work has ended well
    std::int64_t recorded = 0;  // how many callers were told that theirs is what counts
    Nanos recorded_at = 0;
};

struct WorkFailed : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Returns whether the work is known to be done, here or elsewhere.
template <class Work>
bool call(Simulation& simulation, redlatch::OnceFlag& flag, Work work) {
    switch (simulation.random().below(3)) {
        case 0: return flag.call_for(some_ms(simulation, 1, 3000), work);
        case 1: return flag.call(work, stop_at(scheduler().now() + simulation.random().between(0, 500 * ms)));
        default: flag.call(work); return true;
    }
}

// The same for a value. Nobody may see another one than that which was recorded.
template <class Work>
bool call(Simulation& simulation, redlatch::SingleFlight& flight, Work work) {
    const auto compute = [&] {
        work();
        return std::string("the value");
    };
    std::optional<redlatch::FlightValue> value;
    switch (simulation.random().below(3)) {
        case 0: value = flight.get_for(some_ms(simulation, 1, 3000), compute); break;
        case 1:
            value = flight.get(compute, stop_at(scheduler().now() + simulation.random().between(0, 500 * ms)));
            break;
        default: value = flight.get(compute);
    }
    if (value && value->value != "the value") scheduler().fail("a value that nobody has computed: " + value->value);
    return value.has_value();
}

template <class Object>
void do_once(Simulation& simulation, Once& once, Object& object) {
    Random& r = simulation.random();
    simulation.pause();
    bool is_own = false;
    const auto work = [&] {
        scheduler().sleep(r.between(0, r.below(5) == 0 ? simulation.long_work() : 40 * ms));
        if (r.below(3) == 0) throw WorkFailed("on purpose");
        ++once.returned;
        is_own = true;
    };
    const Nanos since = scheduler().now();
    bool is_done = false;
    try {
        is_done = attempt(simulation, [&] { return call(simulation, object, work); });
    } catch (const WorkFailed&) {
        return;
    }
    if (!is_done) return;
    if (once.returned == 0) scheduler().fail("the work is said to be done, but nobody has done it");
    if (is_own) {
        if (++once.recorded > 1 && !simulation.lost_data()) scheduler().fail("the work was done twice");
        once.recorded_at = scheduler().now();
    } else if (once.recorded == 1 && !simulation.lost_data()) {
        const Nanos late = scheduler().now() - std::max(since, once.recorded_at);
        if (late > simulation.wake_up_bound(second))
            scheduler().fail("lost wake-up: a caller waited on for " + std::to_string(late / ms) + " ms");
    }
}

template <class Make>
void run_work(Make make, const std::string& record) {
    Simulation simulation(1);
    Random& r = simulation.random();
    Once once;
    for (std::size_t p = 1 + r.below(3) + simulation.faults().crashes; p > 0; --p) {
        Simulation::Process& process = simulation.start_process();
        const auto object = simulation.keep(process, make(*process.clients[0]));
        for (std::size_t t = 1 + r.below(3); t > 0; --t)
            simulation.start_thread(process, [&, object] {
                for (std::uint64_t round = 1 + simulation.random().below(3); round > 0; --round)
                    do_once(simulation, once, *object);
            });
    }
    simulation.finish({"redisson_lock_token", record});
}

void run_once() {
    run_work([](Client& client) { return std::make_shared<redlatch::OnceFlag>(client, "once"); }, "redlatch_once");
}

void run_flight() {
    const auto make = [](Client& client) {
        return std::make_shared<redlatch::SingleFlight>(client, "flight", std::chrono::hours(1));
    };
    run_work(make, "redlatch_flight");
}

// --- SegmentedSemaphore ----------------------------------------------------------------------------------------------

void use_segments(Simulation& simulation, Ledger& ledger, redlatch::SegmentedSemaphore& semaphore) {
    Random& r = simulation.random();
    simulation.pause();
    redlatch::Permits permit;
    ledger.waits();
    attempt(simulation, [&] {
        switch (r.below(3)) {
            case 0: permit = semaphore.try_hold(); break;
            case 1: permit = semaphore.try_hold_for(some_ms(simulation, 1, 3000)); break;
            default: permit = semaphore.hold(stop_at(scheduler().now() + r.between(0, 500 * ms)));
        }
        return true;
    });
    ledger.waits_no_more();
    if (!permit) return;
    const auto loan = ledger.take(1, simulation.lost_data() ? 0 : permit.valid_until().time_since_epoch().count());
    scheduler().sleep(r.between(0, r.below(5) == 0 ? simulation.long_work() : 60 * ms));
    ledger.give_back(loan);
    if (r.below(2) == 0)
        static_cast<void>(permit.release());
    else
        permit = {};  // does not wait for the server
}

void run_segments() {
    Simulation simulation(1);
    Random& r = simulation.random();
    const std::size_t segments = 1 + r.below(3);
    std::vector<std::int64_t> stock;
    for (std::size_t i = 0; i < segments; ++i) stock.push_back(r.between(i == 0, 2));
    simulation.set_anew = [&] {
        for (std::size_t i = 0; i < segments; ++i) set_key(simulation, "stock:" + std::to_string(i), stock[i]);
    };
    simulation.set_anew();
    const std::int64_t permits = std::accumulate(stock.begin(), stock.end(), std::int64_t{0});
    Ledger ledger(permits, simulation.wake_up_bound(0));
    for (std::size_t p = 1 + r.below(3) + simulation.faults().crashes; p > 0; --p) {
        Simulation::Process& process = simulation.start_process();
        const auto semaphore = simulation.keep(
            process, std::make_shared<redlatch::SegmentedSemaphore>(*process.clients[0], "stock", segments));
        for (std::size_t t = 1 + r.below(3); t > 0; --t)
            simulation.start_thread(process, [&simulation, &ledger, semaphore] {
                for (std::uint64_t round = 1 + simulation.random().below(3); round > 0; --round)
                    use_segments(simulation, ledger, *semaphore);
            });
    }
    simulation.finish({"stock:", "{stock:"});
    const auto& process = simulation.start_process();
    redlatch::SegmentedSemaphore semaphore(*process.clients[0], "stock", segments);
    const auto left = semaphore.available_permits();
    if (!simulation.lost_data() && left != permits)
        scheduler().fail("of " + std::to_string(permits) + " permits came back: " + std::to_string(left));
}

}  // namespace

const std::vector<Kind>& around_kinds() {
    static const std::vector<Kind> kinds{
        {"election", run_election}, {"once", run_once}, {"flight", run_flight}, {"segments", run_segments}};
    return kinds;
}

}  // namespace sim
