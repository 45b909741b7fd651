// SPDX-License-Identifier: MIT

// Waiting must cost nothing.
#include "scenarios.hpp"
#include "subjects.hpp"

namespace redlatch::bench {

using namespace redlatch::detail;

namespace {

constexpr std::size_t waiters = 20;
constexpr std::chrono::seconds usual_time{10};
constexpr std::chrono::seconds lease{120};  // outlasts the scenario, and no thread renews it

template <class Lock>
void hold(Lock& lock) {
    if constexpr (requires { lock.lock(Lease{lease}); })
        lock.lock(Lease{lease});
    else
        lock.lock();
}

constexpr auto holder = [](Seat& seat, auto& lock) {
    const auto asked = now_ns();
    hold(lock);
    seat.critical().enter(seat.index(), seat.worker(), asked, now_ns());
    seat.start();
    seat.wait_for_stop();
    seat.critical().leave(seat.index());
    lock.unlock();
    seat.finish();
};

constexpr auto waiter = [](Seat& seat, auto& lock) {
    seat.start();
    enter_and_leave(seat, lock, {});
    seat.finish();
};

// If the lock has not been requested for a while, all waiters are asleep.
void wait_until_quiet(Bench& bench, Fleet& fleet) {
    for (auto before = bench.commands();;) {
        fleet.pause(std::chrono::milliseconds{300});
        const auto after = bench.commands();
        if (after == before) return;
        before = after;
    }
}

bool observe(Bench& bench, const Setting& setting, const std::string& subject,
             const std::function<void(Crew&)>& holding, const std::function<void(Crew&)>& waiting) {
    bench.prepare(Placement::free, token_key);
    Fleet fleet;
    fleet.add(1, holding);
    fleet.add(waiters, waiting);
    fleet.gather();
    fleet.go();
    fleet.pause(std::chrono::milliseconds{200});
    wait_until_quiet(bench, fleet);

    const auto commands = bench.commands();
    const auto cpu = fleet.cpu_time();
    const auto began = now_ns();
    fleet.pause(std::chrono::duration_cast<std::chrono::nanoseconds>(usual_time * bench.share_of_usual()));
    const double seconds = static_cast<double>(now_ns() - began) / 1e9;
    const auto used = static_cast<double>((fleet.cpu_time() - cpu).count()) / 1e6;
    const auto sent = static_cast<double>(bench.commands() - commands);
    fleet.stop();
    fleet.wait_until_done();
    fleet.dismiss();

    std::uint64_t acquisitions = 0;
    for (std::size_t i = 0; i < fleet.workers(); ++i) acquisitions += fleet.shared().workers[i].acquisitions;
    print(setting, subject, "commands_per_second", sent / seconds, "1/s");
    print(setting, subject, "client_cpu", used / seconds, "ms/s");
    const auto violations = fleet.shared().critical.violations(acquisitions);
    return print_exclusion(setting, subject, static_cast<double>(violations));
}

}  // namespace

bool idle_wait(Bench& bench, const std::string& link) {
    const Setting setting{.scenario = "idle_wait", .link = link, .placement = "free", .threads = waiters};
    const std::string url = bench.url(link);
    const bool locks = observe(bench, setting, "redlatch", redlatch_process(url, one_key, holder),
                               redlatch_process(url, one_key, waiter));
    const bool mutexes = observe(bench, setting, "redlatch_mutex", redlatch_process<Mutex>(url, one_key, holder),
                                 redlatch_process<Mutex>(url, one_key, waiter));
    const bool spin_locks =
        observe(bench, setting, "redlatch_spin_lock", redlatch_process<SpinLock>(url, one_key, holder),
                redlatch_process<SpinLock>(url, one_key, waiter));
    const bool tokens = observe(bench, setting, "token", token_process(url, holder), token_process(url, waiter));
    return locks && mutexes && spin_locks && tokens;
}

}  // namespace redlatch::bench
