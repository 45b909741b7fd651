// SPDX-License-Identifier: MIT
// Semaphores and the latch. Their keys exist from the beginning, as if set by hand.
#include "simulation/calls.hpp"
#include "simulation/ledger.hpp"
#include "simulation/simulation.hpp"

namespace sim {

namespace {

std::string key_text(Simulation& simulation, const std::string& key) {
    const std::vector<std::string_view> words{"GET", key};
    return simulation.server(0).model().execute(words).text;
}

// Adds a permit and takes it away again.
template <class Semaphore>
void add_and_take_away(Simulation& simulation, Semaphore& semaphore, bool& is_uncertain) {
    for (const std::ptrdiff_t n : {1, -1}) {
        const bool is_sure = attempt(simulation, [&] {
            semaphore.add_permits(n);
            return true;
        });
        if (!is_sure) is_uncertain = true;
        simulation.pause();
    }
}

// --- Semaphore -------------------------------------------------------------------------------------------------------

// Takes all permits that are there, and gives them back.
void drain(Simulation& simulation, Ledger& ledger, redlatch::Semaphore& semaphore, bool& is_uncertain) {
    std::int64_t n = 0;
    const bool is_sure = attempt(simulation, [&] {
        n = semaphore.drain_permits();
        return true;
    });
    if (!is_sure) is_uncertain = true;
    if (n > 0) {
        const auto loan = ledger.take(n, simulation.lost_data() ? 0 : forever);
        simulation.pause();
        ledger.give_back(loan);
    }
    const bool is_back = attempt(simulation, [&] {
        semaphore.add_permits(n);  // some may have been owed
        return true;
    });
    if (!is_back) is_uncertain = true;
}

// Sets up a semaphore that somebody deletes again. A late copy must not bring it back: no such key may be left.
void set_up_another(Simulation& simulation, redlatch::Client& client) {
    const std::string key = "deleted" + std::to_string(simulation.random().next());
    redlatch::Semaphore other(client, key);
    const auto remove = [&simulation, key] {
        simulation.server(0).model().execute(std::vector<std::string_view>{"DEL", key});
    };
    const bool is_sure = attempt(simulation, [&] {
        if (!other.try_set_permits(2)) scheduler().fail("a new semaphore is said to exist");
        return true;
    });
    if (is_sure)
        remove();
    else  // it may be set up until its mark has expired
        scheduler().at(scheduler().now() + beyond_marks, remove);
}

void use_semaphore(Simulation& simulation, Ledger& ledger, redlatch::Semaphore& semaphore, std::int64_t most,
                   bool& is_uncertain) {
    Random& r = simulation.random();
    simulation.pause();
    if (r.below(8) == 0) drain(simulation, ledger, semaphore, is_uncertain);
    const std::int64_t n = r.between(1, most);
    ledger.waits();
    const bool taken = attempt(simulation, [&] {
        // The permits of a crashed process never come back, so no thread may wait without a limit then.
        const std::uint64_t way = simulation.faults().crashes ? r.below(2) : r.below(4);
        if (way == 0) return semaphore.try_acquire(n);
        if (way == 1) return semaphore.try_acquire_for(some_ms(simulation, 1, 3000), n);
        if (way == 2) return semaphore.acquire(n, stop_at(scheduler().now() + r.between(0, 500 * ms)));
        semaphore.acquire(n);
        return true;
    });
    ledger.waits_no_more();
    if (!taken) return;
    const auto loan = ledger.take(n, simulation.lost_data() ? 0 : forever);
    scheduler().sleep(r.between(0, simulation.late() && r.below(5) == 0 ? simulation.long_work() : 60 * ms));
    ledger.give_back(loan);
    attempt(simulation, [&] {
        semaphore.release(n);
        return true;
    });
}

void run_semaphore() {
    Simulation simulation(1);
    Random& r = simulation.random();
    const std::int64_t permits = r.between(1, 4);
    simulation.set_anew = [&] { set_key(simulation, "semaphore", permits); };
    simulation.set_anew();
    const bool some_are_added = simulation.late() && r.below(3) == 0;
    bool is_uncertain = false;
    Ledger ledger(permits + some_are_added, simulation.wake_up_bound(0));
    for (std::size_t p = 1 + r.below(3) + simulation.faults().crashes; p > 0; --p) {
        Simulation::Process& process = simulation.start_process();
        const auto semaphore =
            simulation.keep(process, std::make_shared<redlatch::Semaphore>(*process.clients[0], "semaphore"));
        for (std::size_t t = 1 + r.below(3); t > 0; --t)
            simulation.start_thread(process, [&, semaphore, client = process.clients[0].get()] {
                for (std::uint64_t round = 1 + simulation.random().below(3); round > 0; --round) {
                    use_semaphore(simulation, ledger, *semaphore, permits, is_uncertain);
                    if (simulation.late() && simulation.random().below(2) == 0) set_up_another(simulation, *client);
                }
            });
        if (some_are_added && p == 1)
            simulation.start_thread(process,
                                    [&, semaphore] { add_and_take_away(simulation, *semaphore, is_uncertain); });
    }
    simulation.finish({"semaphore"});
    const std::string left = key_text(simulation, "semaphore");
    if (!is_uncertain && !simulation.lost_data() && !simulation.faults().crashes && left != std::to_string(permits))
        scheduler().fail("of " + std::to_string(permits) + " permits came back: " + left);
}

// --- PermitExpirableSemaphore ----------------------------------------------------------------------------------------

using Permits = redlatch::PermitExpirableSemaphore;

void use_permits(Simulation& simulation, Ledger& ledger, Permits& semaphore, std::int64_t most) {
    Random& r = simulation.random();
    simulation.pause();
    const std::int64_t n = r.between(1, most);
    const redlatch::Lease lease(simulation.some_lease(50 * ms));
    // A permit that the watchdog renews is certain only while there are no faults.
    const bool leased = r.below(2) == 0;
    std::vector<redlatch::PermitId> ids;
    Nanos asked = scheduler().now();
    ledger.waits();
    attempt(simulation, [&] {
        switch (r.below(4)) {
            case 0: ids = leased ? semaphore.try_acquire(n, lease) : semaphore.try_acquire(n); break;
            case 1: {
                const auto time = some_ms(simulation, 1, 3000);
                ids = leased ? semaphore.try_acquire_for(time, n, lease) : semaphore.try_acquire_for(time, n);
                break;
            }
            case 2: {
                const auto token = stop_at(asked + r.between(0, 500 * ms));
                ids = leased ? semaphore.acquire(n, lease, token) : semaphore.acquire(n, token);
                break;
            }
            default: ids = leased ? semaphore.acquire(n, lease) : semaphore.acquire(n);
        }
        return true;
    });
    ledger.waits_no_more();
    if (ids.empty()) return;
    // The lease began when the permits were last requested. Only the server knows how long ago that was.
    Nanos until = 0;
    attempt(simulation, [&] {
        const Nanos before = scheduler().now();
        for (const redlatch::PermitId& id : ids) {
            const auto left = semaphore.remaining_lease(id);
            if (!left) return false;
            until = before + left->count() * ms;
        }
        return true;
    });
    if (simulation.lost_data()) until = 0;
    const auto loan = ledger.take(n, until > scheduler().now() ? until : 0);
    if (leased && r.below(4) == 0)
        attempt(simulation, [&] {
            for (const redlatch::PermitId& id : ids)
                semaphore.update_lease(id, redlatch::Lease(redlatch::Milliseconds(Simulation::longest_lease / ms)));
            return true;
        });
    scheduler().sleep(r.between(0, r.below(5) == 0 ? simulation.long_work() : 60 * ms));
    const bool certain = !leased || loan->until > scheduler().now() + simulation.slack();
    ledger.give_back(loan);
    std::error_code ec;
    const bool released = semaphore.try_release(ids, ec);
    if (!released && certain && !simulation.excuses_errors()) scheduler().fail("a permit was lost: " + ec.message());
    // One of them is over, so none was released. The others may have long leases.
    if (!released)
        for (const redlatch::PermitId& id : ids) static_cast<void>(semaphore.try_release(id, ec));
}

void run_permits() {
    Simulation simulation(1);
    Random& r = simulation.random();
    const std::int64_t permits = r.between(1, 4);
    simulation.set_anew = [&] { set_key(simulation, "permits", permits); };
    simulation.set_anew();
    const bool some_are_added = simulation.late() && r.below(3) == 0;
    bool is_uncertain = false;
    Ledger ledger(permits + some_are_added, simulation.wake_up_bound(0));
    for (std::size_t p = 1 + r.below(3) + simulation.faults().crashes; p > 0; --p) {
        Simulation::Process& process = simulation.start_process();
        const auto semaphore = simulation.keep(process, std::make_shared<Permits>(*process.clients[0], "permits"));
        for (std::size_t t = 1 + r.below(3); t > 0; --t)
            simulation.start_thread(process, [&simulation, &ledger, semaphore, permits] {
                for (std::uint64_t round = 1 + simulation.random().below(3); round > 0; --round)
                    use_permits(simulation, ledger, *semaphore, permits);
            });
        if (some_are_added && p == 1)
            simulation.start_thread(process,
                                    [&, semaphore] { add_and_take_away(simulation, *semaphore, is_uncertain); });
    }
    simulation.finish({"permits", "{permits}"});
    const auto& process = simulation.start_process();
    Permits semaphore(*process.clients[0], "permits");
    const auto left = semaphore.available_permits();
    if (!is_uncertain && !simulation.lost_data() && left != permits)
        scheduler().fail("of " + std::to_string(permits) + " permits came back: " + std::to_string(left));
}

// --- CountDownLatch --------------------------------------------------------------------------------------------------

using Latch = redlatch::CountDownLatch;

struct Count {
    std::int64_t total = 0;
    std::int64_t begun = 0;
    std::int64_t done = 0;
    std::int64_t failed = 0;
    Nanos ended = 0;
};

void count_down(Simulation& simulation, Count& count, Latch& latch, std::int64_t n) {
    count.begun += n;
    const bool sure = attempt(simulation, [&] {
        latch.count_down(n);
        return true;
    });
    if (!sure) count.failed += n;
    count.done += n;
    if (count.done == count.total) count.ended = scheduler().now();
}

void wait_for_end(Simulation& simulation, Count& count, const Latch& latch) {
    Random& r = simulation.random();
    const Nanos since = scheduler().now();
    const bool ended = attempt(simulation, [&] {
        switch (simulation.faults().crashes ? 1 : r.below(4)) {
            case 0: return latch.try_wait();
            case 1: return latch.wait_for(some_ms(simulation, 1, 2000));
            case 2: return latch.wait(stop_at(since + r.between(0, 500 * ms)));
            default: latch.wait(); return true;
        }
    });
    if (ended && count.begun < count.total && !simulation.lost_data())
        scheduler().fail("the wait ended with " + std::to_string(count.begun) + " of " + std::to_string(count.total) +
                         " counted down");
    const Nanos late = scheduler().now() - std::max(count.ended, since);
    if (ended && count.done == count.total && count.failed == 0 && late > simulation.wake_up_bound(0))
        scheduler().fail("lost wake-up: a thread waited on for " + std::to_string(late / ms) + " ms");
}

void look(Simulation& simulation, const Count& count, const Latch& latch) {
    const bool ended = attempt(simulation, [&] { return latch.wait_for(some_ms(simulation, 1, 30)); });
    if (ended && count.begun < count.total && !simulation.lost_data())
        scheduler().fail("a wait ended before the count");
}

// No more was counted down than the threads have begun to.
void check_count(Simulation& simulation, const Count& count, const Latch& latch) {
    std::int64_t left = 0;
    const bool is_known = attempt(simulation, [&] {
        left = latch.count();
        return true;
    });
    if (is_known && left < count.total - count.begun && !simulation.lost_data())
        scheduler().fail("the count is " + std::to_string(left) + " after " + std::to_string(count.begun) + " of " +
                         std::to_string(count.total));
}

// The rounds of a latch, which all threads go through together.
struct Rounds {
    std::size_t number = 1;
    std::size_t last = 1;
    std::size_t threads = 0;
    std::size_t working = 0;
    std::int64_t total = 0;  // of each count
    Count count{};

    // Waits until the next round has begun. Returns whether there is one.
    bool next_after(std::size_t done) const {
        while (number == done && number != last) scheduler().wait(this, forever, "the next round");
        return number != done;
    }
    void end() {
        last = number;
        scheduler().wake_all(this);
    }
};

// Sets the count of the next round. Copies of earlier commands must not end it, nor set a count themselves.
void begin_next(Simulation& simulation, Rounds& rounds, Latch& latch) {
    if (rounds.number == rounds.last) return;
    // The background goes on to deliver a count-down that failed. It would count in the next round.
    if (rounds.count.failed > 0 || simulation.lost_data()) return rounds.end();
    simulation.pause();
    const bool is_reset = simulation.random().below(2) == 0;
    const bool is_set = attempt(simulation, [&] {
        if (is_reset) {
            if (!latch.try_set_count(rounds.total + 1)) scheduler().fail("a count was there before it was set");
            if (!latch.reset() && !simulation.lost_data()) scheduler().fail("a count was gone before its reset");
        }
        return latch.try_set_count(rounds.total);
    });
    if (!is_set) {
        if (!simulation.excuses_errors()) scheduler().fail("a count was there before it was set");
        return rounds.end();
    }
    rounds.count = {.total = rounds.total};
    rounds.working = rounds.threads;
    ++rounds.number;
    scheduler().wake_all(&rounds);
}

void go_through(Simulation& simulation, Rounds& rounds, Latch& latch, std::int64_t n) {
    Random& random = simulation.random();
    std::size_t round = 0;
    do {
        round = rounds.number;
        scheduler().sleep(random.between(0, 100 * ms));
        if (random.below(2) == 0) look(simulation, rounds.count, latch);
        for (std::int64_t i = 0; i < n; ++i) {
            if (simulation.late()) {
                simulation.pause();
                check_count(simulation, rounds.count, latch);
            }
            count_down(simulation, rounds.count, latch, 1);
            scheduler().sleep(random.between(0, 50 * ms));
        }
        wait_for_end(simulation, rounds.count, latch);
        if (--rounds.working == 0) begin_next(simulation, rounds, latch);
    } while (rounds.next_after(round));
}

void run_latch() {
    Simulation simulation(1);
    Random& r = simulation.random();
    Rounds rounds;
    // Drawn before the threads start, so that the count exists before the first count-down.
    std::vector<std::vector<std::int64_t>> plan(1 + r.below(3) + simulation.faults().crashes);
    for (auto& threads : plan)
        for (std::size_t t = 1 + r.below(3); t > 0; --t) {
            threads.push_back(r.between(0, 2));
            rounds.total += threads.back();
            ++rounds.threads;
        }
    if (rounds.total > 0) set_key(simulation, "latch", rounds.total);
    // A crash ends a round without an end of the count.
    if (rounds.total > 0 && !simulation.faults().crashes) rounds.last = 1 + r.below(4);
    rounds.count = {.total = rounds.total};
    rounds.working = rounds.threads;
    for (const auto& threads : plan) {
        Simulation::Process& process = simulation.start_process();
        const auto latch = simulation.keep(process, std::make_shared<Latch>(*process.clients[0], "latch"));
        for (const std::int64_t n : threads)
            simulation.start_thread(process, [&, latch, n] { go_through(simulation, rounds, *latch, n); });
    }
    simulation.finish(simulation.faults().crashes ? std::vector<std::string>{"latch"} : std::vector<std::string>{});
}

}  // namespace

const std::vector<Kind>& synchronizer_kinds() {
    static const std::vector<Kind> kinds{{"semaphore", run_semaphore}, {"permits", run_permits}, {"latch", run_latch}};
    return kinds;
}

}  // namespace sim
