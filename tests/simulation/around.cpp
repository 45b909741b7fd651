// SPDX-License-Identifier: MIT
// What stands on locks and permits: elections, work that is done once, values that one computes, segmented semaphores.
#include "simulation/calls.hpp"
#include "simulation/ledger.hpp"
#include "simulation/world.hpp"

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

redlatch::Term some_term(World& world, redlatch::LeaderElection& election) {
    Random& r = world.random();
    switch (r.below(5)) {
        case 0: return election.campaign();
        case 1: return election.try_campaign();
        case 2: return election.campaign_for(some_ms(world, 1, 3000));
        case 3: return election.async_campaign_for(some_ms(world, 1, 3000)).future().get();
        default: return election.campaign(stop_at(scheduler().now() + r.between(0, 500 * ms)));
    }
}

void reign(World& world, Ward& ward, redlatch::LeaderElection& election) {
    Random& r = world.random();
    world.pause();
    const std::uint64_t upheavals = ward.upheavals();
    redlatch::Term term;
    ward.waits();
    attempt(world, [&] {
        term = some_term(world, election);
        return true;
    });
    ward.waits_no_more();
    if (!term) return;
    ward.holds();
    const auto leads = [&] {
        if (!term.is_leader() || ward.upheavals() != upheavals) return false;
        ward.certain(false, term.valid_until().time_since_epoch().count());
        return true;
    };
    if (leads()) {
        const std::int64_t token = term.token();
        if (leads()) ward.token(token);
    }
    const std::int64_t read = ward.guarded;
    for (std::uint64_t steps = r.below(4); steps > 0; --steps) {
        scheduler().sleep(r.between(0, r.below(5) == 0 ? world.long_work() : 40 * ms));
        leads();
    }
    if (leads()) {
        ward.guarded = read + 1;
        ++ward.entries;
    }
    ward.uncertain();
    if (r.below(3) > 0)
        static_cast<void>(term.resign());
    else
        term = {};
    ward.holds_no_more();
}

// The tokens of the leaders that an observer sees never decrease.
void observe(World& world, redlatch::LeaderElection& election, const bool& is_over) {
    std::optional<redlatch::Leader> seen;
    std::int64_t last = 0;
    while (!is_over) {
        attempt(world, [&] { return election.wait_change_for(some_ms(world, 1, 2000), seen); });
        if (!seen || world.lost_data()) continue;
        if (seen->token < last)
            scheduler().fail("the leader of token " + std::to_string(seen->token) + " was seen after that of " +
                             std::to_string(last));
        last = seen->token;
    }
}

void run_election() {
    World world(1);
    Random& r = world.random();
    Ward& ward = world.guard("election", 0, {.wake_up = world.wake_up_bound(0)});
    const std::size_t processes = 1 + r.below(3) + world.faults().crashes;
    std::size_t candidates = 0;
    bool is_over = false;
    for (std::size_t p = 0; p < processes; ++p) {
        World::Process& process = world.start_process();
        const auto election = world.keep(
            process, std::make_shared<redlatch::LeaderElection>(*process.clients[0], ward.key(), std::to_string(p)));
        for (std::size_t t = 1 + r.below(2); t > 0; --t) {
            ++candidates;
            world.start_thread(process, [&, election] {
                for (std::uint64_t round = 1 + world.random().below(3); round > 0; --round)
                    reign(world, ward, *election);
                if (--candidates == 0) is_over = true;
            });
        }
        if (!world.faults().crashes && r.below(2) == 0)
            world.start_thread(process, [&, election] { observe(world, *election, is_over); });
    }
    world.finish({"redisson_lock_token", "redlatch_leader"});
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
bool call(World& world, redlatch::OnceFlag& flag, Work work) {
    switch (world.random().below(3)) {
        case 0: return flag.call_for(some_ms(world, 1, 3000), work);
        case 1: return flag.call(work, stop_at(scheduler().now() + world.random().between(0, 500 * ms)));
        default: flag.call(work); return true;
    }
}

// The same for a value. Nobody may see another one than that which was recorded.
template <class Work>
bool call(World& world, redlatch::SingleFlight& flight, Work work) {
    const auto compute = [&] {
        work();
        return std::string("the value");
    };
    std::optional<redlatch::FlightValue> value;
    switch (world.random().below(3)) {
        case 0: value = flight.get_for(some_ms(world, 1, 3000), compute); break;
        case 1: value = flight.get(compute, stop_at(scheduler().now() + world.random().between(0, 500 * ms))); break;
        default: value = flight.get(compute);
    }
    if (value && value->value != "the value") scheduler().fail("a value that nobody has computed: " + value->value);
    return value.has_value();
}

template <class Object>
void do_once(World& world, Once& once, Object& object) {
    Random& r = world.random();
    world.pause();
    bool is_own = false;
    const auto work = [&] {
        scheduler().sleep(r.between(0, r.below(5) == 0 ? world.long_work() : 40 * ms));
        if (r.below(3) == 0) throw WorkFailed("on purpose");
        ++once.returned;
        is_own = true;
    };
    const Nanos since = scheduler().now();
    bool is_done = false;
    try {
        is_done = attempt(world, [&] { return call(world, object, work); });
    } catch (const WorkFailed&) {
        return;
    }
    if (!is_done) return;
    if (once.returned == 0) scheduler().fail("the work is said to be done, but nobody has done it");
    if (is_own) {
        if (++once.recorded > 1 && !world.lost_data()) scheduler().fail("the work was done twice");
        once.recorded_at = scheduler().now();
    } else if (once.recorded == 1 && !world.lost_data()) {
        const Nanos late = scheduler().now() - std::max(since, once.recorded_at);
        if (late > world.wake_up_bound(second))
            scheduler().fail("lost wake-up: a caller waited on for " + std::to_string(late / ms) + " ms");
    }
}

template <class Make>
void run_work(Make make, const std::string& record) {
    World world(1);
    Random& r = world.random();
    Once once;
    for (std::size_t p = 1 + r.below(3) + world.faults().crashes; p > 0; --p) {
        World::Process& process = world.start_process();
        const auto object = world.keep(process, make(*process.clients[0]));
        for (std::size_t t = 1 + r.below(3); t > 0; --t)
            world.start_thread(process, [&, object] {
                for (std::uint64_t round = 1 + world.random().below(3); round > 0; --round)
                    do_once(world, once, *object);
            });
    }
    world.finish({"redisson_lock_token", record});
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

void use_segments(World& world, Ledger& ledger, redlatch::SegmentedSemaphore& semaphore) {
    Random& r = world.random();
    world.pause();
    redlatch::Permits permit;
    ledger.waits();
    attempt(world, [&] {
        switch (r.below(3)) {
            case 0: permit = semaphore.try_hold(); break;
            case 1: permit = semaphore.try_hold_for(some_ms(world, 1, 3000)); break;
            default: permit = semaphore.hold(stop_at(scheduler().now() + r.between(0, 500 * ms)));
        }
        return true;
    });
    ledger.waits_no_more();
    if (!permit) return;
    const auto loan = ledger.take(1, world.lost_data() ? 0 : permit.valid_until().time_since_epoch().count());
    scheduler().sleep(r.between(0, r.below(5) == 0 ? world.long_work() : 60 * ms));
    ledger.give_back(loan);
    if (r.below(2) == 0)
        static_cast<void>(permit.release());
    else
        permit = {};  // does not wait for the server
}

void run_segments() {
    World world(1);
    Random& r = world.random();
    const std::size_t segments = 1 + r.below(3);
    std::vector<std::int64_t> stock;
    for (std::size_t i = 0; i < segments; ++i) stock.push_back(r.between(i == 0, 2));
    world.set_anew = [&] {
        for (std::size_t i = 0; i < segments; ++i) set_key(world, "stock:" + std::to_string(i), stock[i]);
    };
    world.set_anew();
    const std::int64_t permits = std::accumulate(stock.begin(), stock.end(), std::int64_t{0});
    Ledger ledger(permits, world.wake_up_bound(0));
    for (std::size_t p = 1 + r.below(3) + world.faults().crashes; p > 0; --p) {
        World::Process& process = world.start_process();
        const auto semaphore =
            world.keep(process, std::make_shared<redlatch::SegmentedSemaphore>(*process.clients[0], "stock", segments));
        for (std::size_t t = 1 + r.below(3); t > 0; --t)
            world.start_thread(process, [&world, &ledger, semaphore] {
                for (std::uint64_t round = 1 + world.random().below(3); round > 0; --round)
                    use_segments(world, ledger, *semaphore);
            });
    }
    world.finish({"stock:", "{stock:"});
    const auto& process = world.start_process();
    redlatch::SegmentedSemaphore semaphore(*process.clients[0], "stock", segments);
    const auto left = semaphore.available_permits();
    if (!world.lost_data() && left != permits)
        scheduler().fail("of " + std::to_string(permits) + " permits came back: " + std::to_string(left));
}

}  // namespace

const std::vector<Kind>& around_kinds() {
    static const std::vector<Kind> kinds{
        {"election", run_election}, {"once", run_once}, {"flight", run_flight}, {"segments", run_segments}};
    return kinds;
}

}  // namespace sim
