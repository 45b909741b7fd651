// SPDX-License-Identifier: MIT

// Many threads compete for one lock.
#include <algorithm>
#include <initializer_list>

#include "scenarios.hpp"
#include "subjects.hpp"

namespace redlatch::bench {

using namespace redlatch::detail;

namespace {

struct Load {
    std::string scenario = {};
    std::size_t processes = 1;
    std::size_t threads = 1;
    std::chrono::microseconds hold{0};
    std::chrono::microseconds rest{0};
    Placement placement = Placement::free;
};

// How long a holder stays where exclusion is tested: holders that leave at once hardly ever meet.
constexpr std::chrono::microseconds long_enough_to_meet{100};

Setting setting_of(const Load& load, const std::string& link) {
    Setting setting{.scenario = load.scenario,
                    .link = link,
                    .placement = std::string{name_of(load.placement)},
                    .threads = load.threads};
    if (load.processes > 1) setting.processes = load.processes;
    return setting;
}

Slice one_slice(Bench& bench, const Load& load, const std::function<void(Crew&)>& process) {
    bench.prepare(load.placement, token_key);
    Fleet fleet{load.placement};
    for (std::size_t i = 0; i < load.processes; ++i) fleet.add(load.threads, process);
    return measure(bench, fleet, bench.round_time());
}

template <class Lock>
Slice lock_slice(Bench& bench, const Load& load, const std::string& url) {
    return one_slice(bench, load, redlatch_process<Lock>(url, one_key, contend(load.hold, load.rest)));
}

// Measures the library's two locks, the token, the lock with grants, and the given others.
std::vector<Subject> measure_all(Bench& bench, const Load& load, const std::string& url,
                                 const std::vector<Subject>& others = {}) {
    std::vector<Subject> subjects{
        {"redlatch", [&] { return lock_slice<RLock>(bench, load, url); }},
        {"fair_lock", [&] { return lock_slice<FairLock>(bench, load, url); }},
        {"token", [&] { return one_slice(bench, load, token_process(url, contend(load.hold, load.rest))); }},
        {"redlatch_without_grants", [&] { return lock_slice<UngrantedRLock>(bench, load, url); }}};
    subjects.insert(subjects.end(), others.begin(), others.end());
    alternate(subjects);
    return subjects;
}

void print_all(const Setting& setting, const Subject& subject) {
    print_throughput(setting, subject);
    print_holders(setting, subject);
    print(setting, subject.name, "held", each_round(subject, &Slice::held), "share");
    print_handoffs(setting, subject);
}

template <class Lock>
bool report_lock(Bench& bench, const Load& load, const std::string& link, const Subject& lock, const Subject& token) {
    const Setting setting = setting_of(load, link);
    print_all(setting, lock);
    print_ratios_to_token(setting, lock, token);
    Load checked = load;
    checked.hold = std::max(load.hold, long_enough_to_meet);
    const double met = violations(lock) + lock_slice<Lock>(bench, checked, bench.url(link)).violations;
    return print_exclusion(setting, lock.name, met);
}

bool report(Bench& bench, const Load& load, const std::string& link, const std::vector<Subject>& subjects) {
    const Subject& token = subjects[2];
    const bool locks = report_lock<RLock>(bench, load, link, subjects[0], token);
    const bool fair_locks = report_lock<FairLock>(bench, load, link, subjects[1], token);
    const bool ungranted = report_lock<UngrantedRLock>(bench, load, link, subjects[3], token);
    const Setting setting = setting_of(load, link);
    print_all(setting, token);
    const bool tokens = print_exclusion(setting, token.name, violations(token));
    return locks && fair_locks && ungranted && tokens;
}

// A hand-over inside a process is one script call. So compare it with the rate at which a single thread can make script
// calls one after another.
bool against_script_calls(Bench& bench, const Load& load, const std::string& link) {
    const std::string url = bench.url(link);
    const Load alone{.placement = load.placement};
    const std::vector<Subject> subjects = measure_all(
        bench, load, url,
        {{"bare_hiredis", [&] { return one_slice(bench, alone, bare_process(url, one_key, lock_and_unlock)); }}});
    const bool excluded = report(bench, load, link, subjects);

    const Subject& redlatch = subjects[0];
    const Subject& bare = subjects[4];
    const auto calls_per_second = [](const Slice& slice) { return 2 * slice.per_second(); };  // two calls for each pair
    std::vector<double> ratios;
    for (std::size_t i = 0; i < Bench::rounds; ++i)
        ratios.push_back(redlatch.slices[i].per_second() / calls_per_second(bare.slices[i]));
    const Setting setting = setting_of(load, link);
    print(setting, bare.name, "script_calls_per_second", each_round(bare, calls_per_second), "1/s");
    print(setting, redlatch.name, "ratio_to_bare_script_calls", ratios, "ratio");
    return excluded;
}

}  // namespace

// Measured free, as a program would run, and pinned: left free, the one thread of the reference flips between two
// rates.
bool contended_threads(Bench& bench, const std::string& link) {
    bool excluded = true;
    for (const Placement placement : {Placement::free, Placement::cross}) {
        if (!possible(placement)) continue;
        const Load load{.scenario = "contended_threads", .threads = 8, .placement = placement};
        excluded &= against_script_calls(bench, load, link);
    }
    return excluded;
}

// With one thread each, every hand-off goes to another process. With several, the lock may stay in its process for a
// while.
bool contended_processes(Bench& bench, const std::string& link) {
    struct Size {
        std::size_t processes, threads;
    };
    bool excluded = true;
    for (const auto [processes, threads] : std::initializer_list<Size>{{2, 1}, {4, 1}, {8, 1}, {16, 1}, {4, 4}}) {
        const Load load{.scenario = "contended_processes", .processes = processes, .threads = threads};
        excluded &= report(bench, load, link, measure_all(bench, load, bench.url(link)));
    }
    return excluded;
}

bool busy(Bench& bench, const std::string& link) {
    const std::chrono::milliseconds one{1};
    const Load load{.scenario = "busy", .threads = 8, .hold = one, .rest = one};
    return report(bench, load, link, measure_all(bench, load, bench.url(link)));
}

}  // namespace redlatch::bench
