// SPDX-License-Identifier: MIT
#include "measure.hpp"

#include <algorithm>
#include <span>

#include "bare.hpp"

namespace redlatch::bench {

namespace {

// The time within which a fleet must finish after a stop request, or by itself.
constexpr std::chrono::seconds patience{60};

double fairness(const Shared& shared, std::size_t workers) {
    const auto less = [](const Worker& a, const Worker& b) { return a.acquisitions < b.acquisitions; };
    const auto [least, most] = std::minmax_element(shared.workers, shared.workers + workers, less);
    return static_cast<double>(most->acquisitions) / static_cast<double>(least->acquisitions);
}

// Collects when the waiters continued, and the last one of each release.
void collect_releases(Slice& slice, const Shared& shared, std::size_t workers) {
    for (std::size_t time = 0; time < Worker::max_releases; ++time) {
        double last = 0;
        for (const Worker& worker : std::span{shared.workers, workers}) {
            if (time >= worker.release_count) continue;
            const double us = static_cast<double>(worker.releases_ns[time]) / 1e3;
            slice.releases_us.push_back(us);
            last = std::max(last, us);
        }
        if (last == 0) return;
        slice.last_us.push_back(last);
    }
}

}  // namespace

void Bench::prepare(Placement placement, const std::optional<std::string>& token, std::size_t tokens) {
    redis_.call("FLUSHALL");
    if (token) redis_.command(Token::make(*token, tokens));
    place_server(server_.pid(), placement);
}

Slice measure(const std::function<std::uint64_t()>& commands, Fleet& fleet,
              std::optional<std::chrono::nanoseconds> time) {
    fleet.gather();
    const auto commands_before = commands();
    const auto cpu = fleet.cpu_time();
    const auto began = now_ns();
    fleet.go();
    if (time) {
        fleet.pause(*time);
        fleet.stop();
    }
    fleet.wait_until_done(patience);
    const auto ended = now_ns();
    Slice slice;
    slice.seconds = static_cast<double>(ended - began) / 1e9;
    slice.cpu_us = static_cast<double>((fleet.cpu_time() - cpu).count()) / 1e3;
    slice.commands = static_cast<double>(commands() - commands_before);
    fleet.dismiss();

    const Shared& shared = fleet.shared();
    const Critical& critical = shared.critical;
    std::uint64_t acquisitions = 0;
    std::uint64_t shared_count = 0;
    std::uint64_t violations = 0;
    std::int64_t longest_wait_ns = 0;
    for (const Worker& worker : std::span{shared.workers, fleet.workers()}) {
        acquisitions += worker.acquisitions;
        shared_count += worker.shared;
        violations += worker.violations;
        slice.release_commands += static_cast<double>(worker.release_commands);
        longest_wait_ns = std::max(longest_wait_ns, worker.longest_wait_ns);
    }
    for (std::size_t i = 0; i < critical.handoff_count(); ++i)
        slice.handoffs_us.push_back(static_cast<double>(critical.handoff_ns(i)) / 1e3);
    collect_releases(slice, shared, fleet.workers());
    slice.acquisitions = static_cast<double>(acquisitions);
    slice.shared = static_cast<double>(shared_count);
    slice.fairness = fairness(shared, fleet.workers());
    slice.holders = critical.holders();
    slice.held = static_cast<double>(critical.held_ns()) / static_cast<double>(ended - began);
    slice.longest_wait_ms = static_cast<double>(longest_wait_ns) / 1e6;
    slice.violations = static_cast<double>(violations + critical.violations(acquisitions - shared_count));
    return slice;
}

void alternate(std::vector<Subject>& subjects) {
    for (std::size_t round = 0; round < Bench::rounds; ++round)
        for (Subject& subject : subjects) subject.slices.push_back(subject.run());
}

void print_throughput(const Setting& setting, const Subject& subject) {
    print(setting, subject.name, "pairs_per_second", each_round(subject, &Slice::per_second), "1/s");
    print(setting, subject.name, "fairness", each_round(subject, &Slice::fairness), "max/min");
    print(setting, subject.name, "longest_wait", each_round(subject, &Slice::longest_wait_ms), "ms");
}

void print_holders(const Setting& setting, const Subject& subject) {
    print(setting, subject.name, "handoffs_per_second", each_round(subject, &Slice::handoffs_per_second), "1/s");
    print(setting, subject.name, "self", each_round(subject, &Slice::self_share), "share");
    print(setting, subject.name, "local", each_round(subject, &Slice::local_share), "share");
    print(setting, subject.name, "remote", each_round(subject, &Slice::remote_share), "share");
    print(setting, subject.name, "commands_per_handoff", each_round(subject, &Slice::commands_each_handoff),
          "commands");
}

void print_ratios_to_token(const Setting& setting, const Subject& subject, const Subject& token) {
    print(setting, subject.name, "ratio_to_token", ratio(subject, token, &Slice::per_second), "ratio");
    print(setting, subject.name, "handoffs_ratio_to_token", ratio(subject, token, &Slice::handoffs_per_second),
          "ratio");
}

void print_handoffs(const Setting& setting, const Subject& subject) {
    Figure p50 = each_round(subject, &Slice::handoff_p50_us);
    Figure p99 = each_round(subject, &Slice::handoff_p99_us);
    // A single round may have few hand-offs.
    std::vector<double> handoffs_us;
    for (const Slice& slice : subject.slices)
        handoffs_us.insert(handoffs_us.end(), slice.handoffs_us.begin(), slice.handoffs_us.end());
    p50.value = quantile(handoffs_us, 0.5);
    p99.value = quantile(handoffs_us, 0.99);
    print(setting, subject.name, "handoff_p50", p50, "us");
    print(setting, subject.name, "handoff_p99", p99, "us");
    print(setting, subject.name, "commands_per_acquisition", each_round(subject, &Slice::commands_each), "commands");
}

bool print_exclusion(const Setting& setting, const std::string& subject, double violations) {
    print(setting, subject, "exclusion_violations", violations, "count");
    return violations == 0;
}

}  // namespace redlatch::bench
