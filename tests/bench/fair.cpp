// SPDX-License-Identifier: MIT

// Many threads wait in one queue: the cost of a hand-off must not depend on their number.
#include <algorithm>
#include <initializer_list>

#include "scenarios.hpp"
#include "subjects.hpp"

namespace redlatch::bench {
namespace {

struct Queue {
    std::string scenario = {};
    std::size_t waiters = 0;
    std::size_t processes = 1;
};

// One more thread than waiters: one thread always holds the lock.
Slice one_slice(Bench& bench, const Queue& queue, const std::function<void(Crew&)>& process) {
    bench.prepare(Placement::free, token_key);
    Fleet fleet;
    for (std::size_t p = 0; p < queue.processes; ++p)
        fleet.add(queue.waiters / queue.processes + (p == 0 ? 1 : 0), process);
    return measure(bench, fleet, bench.round_time());
}

// Returns the commands for each acquisition, in each round.
std::vector<double> commands_of(const Subject& subject) {
    std::vector<double> values;
    for (const Slice& slice : subject.slices) values.push_back(slice.commands_each());
    return values;
}

// Redis also serves clients that are blocked in BLPOP in the order of their arrival. So the token is the lower bound
// for all queues.
bool observe(Bench& bench, const std::string& link, const Queue& queue, std::vector<double>& commands_of_the_fewest) {
    const std::string url = bench.url(link);
    const auto visit = contend({}, {});
    std::vector<Subject> subjects{
        {"redlatch", [&] { return one_slice(bench, queue, redlatch_process<FairLock>(url, one_key, visit)); }},
        {"token", [&] { return one_slice(bench, queue, token_process(url, visit)); }}};
    alternate(subjects);

    Setting setting{.scenario = queue.scenario, .link = link, .placement = "free", .waiters = queue.waiters};
    if (queue.processes > 1) setting.processes = queue.processes;
    bool excluded = true;
    for (const Subject& subject : subjects) {
        print_throughput(setting, subject);
        print_holders(setting, subject);
        print_handoffs(setting, subject);
        excluded &= print_exclusion(setting, subject.name, violations(subject));
    }
    const Subject& fair = subjects[0];
    print_ratios_to_token(setting, fair, subjects[1]);
    print(setting, fair.name, "handoff_ratio_to_token", ratio(fair, subjects[1], &Slice::handoff_p50_us), "ratio");

    std::vector<double> growth = commands_of(fair);
    if (commands_of_the_fewest.empty()) commands_of_the_fewest = growth;
    std::transform(growth.begin(), growth.end(), commands_of_the_fewest.begin(), growth.begin(), std::divides{});
    print(setting, fair.name, "commands_ratio_to_2_waiters", growth, "ratio");
    return excluded;
}

bool observe_all(Bench& bench, const std::string& link, const std::string& scenario, std::size_t most_processes) {
    bool excluded = true;
    std::vector<double> commands_of_the_fewest;
    for (const std::size_t waiters : std::initializer_list<std::size_t>{2, 8, 32}) {
        const Queue queue{.scenario = scenario, .waiters = waiters, .processes = std::min(waiters, most_processes)};
        excluded &= observe(bench, link, queue, commands_of_the_fewest);
    }
    return excluded;
}

}  // namespace

bool fair_threads(Bench& bench, const std::string& link) { return observe_all(bench, link, "fair_threads", 1); }
bool fair_processes(Bench& bench, const std::string& link) { return observe_all(bench, link, "fair_processes", 4); }

}  // namespace redlatch::bench
