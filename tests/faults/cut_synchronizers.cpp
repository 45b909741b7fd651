// SPDX-License-Identifier: MIT
// ctest: timeout=300 without=address
// Cuts the connection at every byte of a request and of its reply, for every operation of semaphores and latches.
#include "faults/cut_kit.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

namespace {

std::string digest(const Script& script) { return std::string{script.digest()}; }

std::string text(std::ptrdiff_t value) { return std::to_string(value); }
std::string yes_or_no(bool value) { return value ? "yes" : "no"; }

struct Semaphores final : CutWork {
    explicit Semaphores(CutBench& fixture) : seats(fixture.far, fixture.name) {
        const auto ten = [this] { seats.try_set_permits(10); };
        const auto add = [&](std::string what, const Script& script, auto run) {
            operations.push_back({"Semaphore " + what, digest(script), ten, run});
        };
        operations.push_back({"Semaphore try_set_permits", digest(digested<scripts::semaphore_set>), [] {},
                              [this] { return yes_or_no(seats.try_set_permits(10)); }});
        add("try_set_permits again", digested<scripts::semaphore_set>,
            [this] { return yes_or_no(seats.try_set_permits(5)); });
        add("acquire", digested<scripts::semaphore_acquire>, [this] { return seats.acquire(3), "taken"; });
        add("try_acquire", digested<scripts::semaphore_acquire>, [this] { return yes_or_no(seats.try_acquire(4)); });
        add("try_acquire of too many", digested<scripts::semaphore_acquire>,
            [this] { return yes_or_no(seats.try_acquire(11)); });
        add("try_acquire_for", digested<scripts::semaphore_acquire>,
            [this] { return yes_or_no(seats.try_acquire_for(10s)); });
        add("release", digested<scripts::semaphore_add>, [this] { return seats.release(2), "given"; });
        add("release_if_exists", digested<scripts::semaphore_add>,
            [this] { return yes_or_no(seats.release_if_exists()); });
        add("add_permits", digested<scripts::semaphore_add>, [this] { return seats.add_permits(-3), "added"; });
        add("drain_permits", digested<scripts::semaphore_drain>, [this] { return text(seats.drain_permits()); });
        add("expire", digested<scripts::counter_expire>, [this] { return yes_or_no(seats.expire(60s)); });
        add("remove", digested<scripts::counter_remove>, [this] { return yes_or_no(seats.remove()); });
        add("inspect", digested<scripts::value_inspect>, [this] { return text(seats.inspect().available); });
        operations.push_back(
            {"Semaphore available_permits", "GET", ten, [this] { return text(seats.available_permits()); }});
    }
    Semaphore seats;
};

struct ExpirablePermits final : CutWork {
    explicit ExpirablePermits(CutBench& fixture) : slots(fixture.far, fixture.name) {
        const auto ten = [this] { slots.try_set_permits(10); };
        const auto back = [this] {
            if (!ids.empty()) static_cast<void>(slots.try_release(std::exchange(ids, {})));
        };
        const auto taken = [this] {
            slots.try_set_permits(10);
            ids = slots.acquire(2, Lease{20s});
        };
        const auto add = [&](std::string what, const Script& script, std::function<void()> prepare, auto run) {
            operations.push_back({"PermitExpirableSemaphore " + what, digest(script), prepare, run, back});
        };
        const auto nothing = [] {};
        add("try_set_permits", digested<scripts::semaphore_set>, nothing,
            [this] { return yes_or_no(slots.try_set_permits(3)); });
        add("set_permits", digested<scripts::permit_set_total>, ten, [this] { return slots.set_permits(4), "set"; });
        add("add_permits", digested<scripts::permit_add>, ten, [this] { return slots.add_permits(4), "added"; });
        add("acquire", digested<scripts::permit_acquire>, ten, [this] { return ids = {slots.acquire()}, "taken"; });
        add("acquire of several", digested<scripts::permit_acquire>, ten,
            [this] { return ids = slots.acquire(3), text(std::ssize(ids)); });
        add("acquire with a lease", digested<scripts::permit_acquire>, ten,
            [this] { return ids = {slots.acquire(Lease{20s})}, "taken"; });
        add("acquire for ever", digested<scripts::permit_acquire>, ten,
            [this] { return ids = {slots.acquire(Lease::forever())}, "taken"; });
        add("try_acquire of too many", digested<scripts::permit_acquire>, ten,
            [this] { return ids = slots.try_acquire(11), text(std::ssize(ids)); });
        add("try_acquire_for", digested<scripts::permit_acquire>, ten,
            [this] { return ids = slots.try_acquire_for(10s, 2), text(std::ssize(ids)); });
        add("release", digested<scripts::permit_release>, taken,
            [this] { return slots.release(std::exchange(ids, {})), "given back"; });
        add("try_release", digested<scripts::permit_release>, taken, [this] {
            const PermitId last = ids.back();
            ids.pop_back();
            return yes_or_no(slots.try_release(last));
        });
        add("try_release of an unknown permit", digested<scripts::permit_release>, ten,
            [this] { return yes_or_no(slots.try_release(PermitId::random())); });
        add("update_lease", digested<scripts::permit_set_lease>, taken,
            [this] { return slots.update_lease(ids[0], Lease{25s}), "changed"; });
        add("remaining_lease", digested<scripts::permit_remaining>, taken,
            [this] { return yes_or_no(slots.remaining_lease(ids[0]) > 0ms); });
        add("expire", digested<scripts::counter_expire>, taken, [this] { return yes_or_no(slots.expire(60s)); });
        add("remove", digested<scripts::counter_remove>, taken, [this] { return yes_or_no(slots.remove()); });
        add("inspect", digested<scripts::permit_inspect>, taken,
            [this] { return text(std::ssize(slots.inspect().permits)); });
        add("available_permits", digested<scripts::permit_count>, taken,
            [this] { return text(slots.available_permits()); });
        add("acquired_permits", digested<scripts::permit_count>, taken,
            [this] { return text(slots.acquired_permits()); });
        add("permits", digested<scripts::permit_count>, taken, [this] { return text(slots.permits()); });
    }
    PermitExpirableSemaphore slots;
    std::vector<PermitId> ids;
};

struct Latches final : CutWork {
    explicit Latches(CutBench& fixture) : gate(fixture.far, fixture.name) {
        const auto five = [this] { gate.try_set_count(5); };
        const auto one = [this] { gate.try_set_count(1); };
        const auto add = [&](std::string what, const std::string& request, std::function<void()> prepare, auto run) {
            operations.push_back({"CountDownLatch " + what, request, prepare, run});
        };
        add(
            "try_set_count", digest(digested<scripts::count_down_latch_set>), [] {},
            [this] { return yes_or_no(gate.try_set_count(5)); });
        add("count", "GET", five, [this] { return text(gate.count()); });
        add("count_down", digest(digested<scripts::count_down_latch_lower>), five,
            [this] { return gate.count_down(2), "counted"; });
        add("last count_down", digest(digested<scripts::count_down_latch_lower>), one,
            [this] { return gate.count_down(), "counted"; });
        add("try_wait", digest(digested<scripts::count_down_latch_look>), five,
            [this] { return yes_or_no(gate.try_wait()); });
        add(
            "wait for what has ended", digest(digested<scripts::count_down_latch_look>), [] {},
            [this] { return gate.wait(), "over"; });
        add("arrive_and_wait of the last", digest(digested<scripts::count_down_latch_lower>), one,
            [this] { return gate.arrive_and_wait(), "over"; });
        add("expire", digest(digested<scripts::counter_expire>), five, [this] { return yes_or_no(gate.expire(60s)); });
        add("reset", digest(digested<scripts::count_down_latch_lower>), five,
            [this] { return yes_or_no(gate.reset()); });
    }
    CountDownLatch gate;
};

}  // namespace

TEST_CASE("fault: connection cut at every byte of every operation of Semaphore and CountDownLatch") {
    CutReport report;
    sweep_all<Semaphores>(report);
    sweep_all<Latches>(report);
    CHECK_MESSAGE(report.wrong.empty(), report.text());
    CHECK(report.cuts > 19 * 40);
    MESSAGE(report.cuts, " cuts");
}

TEST_CASE("fault: connection cut at every byte of every operation of PermitExpirableSemaphore") {
    CutReport report;
    sweep_all<ExpirablePermits>(report);
    CHECK_MESSAGE(report.wrong.empty(), report.text());
    CHECK(report.cuts > 17 * 100);
    MESSAGE(report.cuts, " cuts");
}
