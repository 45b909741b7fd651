// SPDX-License-Identifier: MIT

// Threads that never meet: the cost of a free lock.
#include <initializer_list>

#include "scenarios.hpp"
#include "subjects.hpp"

namespace redlatch::bench {

using namespace redlatch::detail;

namespace {

Slice one_slice(Bench& bench, Placement placement, std::size_t threads, const std::function<void(Crew&)>& process) {
    bench.prepare(placement);
    Fleet fleet{placement};
    fleet.add(threads, process);
    return measure(bench, fleet, bench.round_time());
}

void compare(Bench& bench, const Setting& setting, Placement placement, bool with_pipeline) {
    const std::string url = bench.url(setting.link);
    const std::size_t threads = *setting.threads;
    std::vector<Subject> subjects{
        {"redlatch",
         [&] { return one_slice(bench, placement, threads, redlatch_process(url, own_key, lock_and_unlock)); }},
        {"bare_hiredis",
         [&] { return one_slice(bench, placement, threads, bare_process(url, own_key, lock_and_unlock)); }},
        {"bare_set", [&] {
             return one_slice(bench, placement, threads, bare_process<HandmadeLock>(url, own_key, lock_and_unlock));
         }}};
    if (with_pipeline)
        subjects.push_back(
            {"pipelined", [&] { return one_slice(bench, placement, 1, pipelined_process(url, threads)); }});
    alternate(subjects);
    const Subject &bare = subjects[1], &bare_set = subjects[2];
    for (const Subject& subject : subjects) {
        print(setting, subject.name, "pairs_per_second", each_round(subject, &Slice::per_second), "1/s");
        if (&subject != &bare)
            print(setting, subject.name, "ratio_to_bare_hiredis", ratio(subject, bare, &Slice::per_second), "ratio");
        if (&subject == &subjects.front())
            print(setting, subject.name, "ratio_to_bare_set", ratio(subject, bare_set, &Slice::per_second), "ratio");
        print(setting, subject.name, "commands_per_acquisition", each_round(subject, &Slice::commands_each),
              "commands");
        print(setting, subject.name, "client_cpu_per_pair", each_round(subject, &Slice::cpu_us_each), "us");
        if (threads > 1 && subject.name != "pipelined")
            print(setting, subject.name, "fairness", each_round(subject, &Slice::fairness), "max/min");
    }
}

}  // namespace

bool uncontended(Bench& bench, const std::string& link) {
    for (const Placement placement : {Placement::cross, Placement::same}) {
        if (!possible(placement)) continue;
        const Setting setting{
            .scenario = "uncontended", .link = link, .placement = std::string{name_of(placement)}, .threads = 1};
        compare(bench, setting, placement, false);
    }
    return true;
}

bool threads(Bench& bench, const std::string& link) {
    for (const std::size_t count : std::initializer_list<std::size_t>{1, 2, 4, 16, 64}) {
        const Setting setting{.scenario = "threads", .link = link, .placement = "free", .threads = count};
        compare(bench, setting, Placement::free, true);
    }
    return true;
}

}  // namespace redlatch::bench
