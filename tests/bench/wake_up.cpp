// SPDX-License-Identifier: MIT

// A waiter in another process has been asleep for long: how soon does it run after the unlock?
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "scenarios.hpp"
#include "subjects.hpp"

namespace redlatch::bench {
namespace {

constexpr std::chrono::milliseconds hold{200};
constexpr double usual_times = 10;  // in each round

struct Signals {
    Pipe held;  // the holder has the lock: the waiter may request it
    Pipe back;  // the waiter has released it
};

auto holder(const Signals& signals, int times) {
    return [&signals, times](Seat& seat, auto& lock) {
        seat.start();
        for (int i = 0; i < times; ++i) {
            const auto asked = now_ns();
            lock.lock();
            seat.critical().enter(seat.index(), seat.worker(), asked, now_ns());
            signals.held.put('h');
            std::this_thread::sleep_for(hold);
            seat.critical().leave(seat.index());
            lock.unlock();
            signals.back.get();
        }
        seat.finish();
    };
}

auto waiter(const Signals& signals, int times) {
    return [&signals, times](Seat& seat, auto& lock) {
        seat.start();
        for (int i = 0; i < times; ++i) {
            signals.held.get();
            enter_and_leave(seat, lock, {});
            signals.back.put('b');
        }
        seat.finish();
    };
}

Slice one_slice(Bench& bench, const std::function<void(Crew&)>& holding, const std::function<void(Crew&)>& waiting) {
    bench.prepare(Placement::free, token_key);
    Fleet fleet;
    fleet.add(1, holding);
    fleet.add(1, waiting);
    return measure(bench, fleet, {});
}

}  // namespace

bool wake_up(Bench& bench, const std::string& link) {
    const Setting setting{.scenario = "wake_up", .link = link, .placement = "free", .processes = 2, .threads = 1};
    const std::string url = bench.url(link);
    const int times = std::max(2, static_cast<int>(std::lround(usual_times * bench.share_of_usual())));
    const Signals signals;
    const auto slice_of = [&]<class Lock>(std::type_identity<Lock>) {
        return [&] {
            return one_slice(bench, redlatch_process<Lock>(url, one_key, holder(signals, times)),
                             redlatch_process<Lock>(url, one_key, waiter(signals, times)));
        };
    };
    std::vector<Subject> subjects{{"redlatch", slice_of(std::type_identity<RLock>())},
                                  {"token",
                                   [&] {
                                       return one_slice(bench, token_process(url, holder(signals, times)),
                                                        token_process(url, waiter(signals, times)));
                                   }},
                                  {"redlatch_fair_lock", slice_of(std::type_identity<FairLock>())},
                                  {"redlatch_mutex", slice_of(std::type_identity<Mutex>())},
                                  {"redlatch_spin_lock", slice_of(std::type_identity<SpinLock>())},
                                  {"redlatch_without_grants", slice_of(std::type_identity<UngrantedRLock>())}};
    alternate(subjects);
    bool excluded = true;
    for (const Subject& subject : subjects) {
        print_handoffs(setting, subject);
        excluded &= print_exclusion(setting, subject.name, violations(subject));
    }
    for (const Subject& subject : subjects)
        if (&subject != &subjects[1])
            print(setting, subject.name, "ratio_to_token", ratio(subject, subjects[1], &Slice::handoff_p50_us),
                  "ratio");
    return excluded;
}

}  // namespace redlatch::bench
