// SPDX-License-Identifier: MIT
// redlatch_soak <seconds> <seed> [kind of fault]: all primitives, in many processes, under all kinds of faults, at
// least one a second. At the end it checks every guarantee. Started by cmake/soak.cmake.
#include <array>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "crowd.hpp"
#include "faults.hpp"
#include "final_checks.hpp"
#include "findings.hpp"
#include "holder_watch.hpp"
#include "queue_watch.hpp"
#include "support/process.hpp"
#include "support/shared_memory.hpp"
#include "support/temp_dir.hpp"

namespace redlatch::soak {

namespace {

void print(const Findings& findings, std::int64_t seconds, const std::vector<Fault>& faults) {
    std::set<FaultKind> kinds_of_faults;
    for (const Fault& fault : faults) kinds_of_faults.insert(fault.kind);
    for (const std::string& remark : findings.remarks) std::cout << remark << "\n";
    for (const std::string& complaint : findings.complaints) std::cout << "WRONG: " << complaint << "\n";
    std::cout << "soak: seconds=" << seconds << " cycles=" << findings.cycles << " faults=" << faults.size()
              << " kinds=" << kinds_of_faults.size() << " overlaps=" << findings.overlaps
              << " lost_updates=" << findings.lost_updates << " stale_writes=" << findings.stale_writes
              << " late_losses=" << findings.late_losses << " leftovers=" << findings.leftovers
              << " max_wake_ms=" << findings.max_wake_ms << std::endl;
}

// Causes the faults at their times. Returns whether all workers stayed alive.
bool make_trouble(const std::vector<PlannedFault>& plan, std::int64_t began, std::int64_t seconds, Crowd& crowd,
                  Troublemaker& troublemaker, Findings& findings) {
    std::size_t next = 0;
    for (std::int64_t now = began; now < began + ns(std::chrono::seconds{seconds}); now = test::monotonic_ns()) {
        troublemaker.end_due(now);
        if (next < plan.size() && began + plan[next].at_ms * 1'000'000 <= now) troublemaker.begin(plan[next++]);
        if (const auto dead = crowd.find_dead(); !dead.empty()) {
            for (const std::string& one : dead) findings.complain(one);
            return false;
        }
        std::this_thread::sleep_for(2ms);
    }
    return true;
}

int soak(std::int64_t seconds, std::uint64_t seed, const std::string& only) {
    std::cout << "soak: seed=" << seed << " seconds=" << seconds << std::endl;
    const test::TempDir dir;
    const Paths paths{dir.path()};
    auto shared = test::SharedMemory<Shared>::create(paths.shared());
    const Journal journal{paths.journal()};
    test::ChildProcess resource = test::spawn_self("soak: fenced resource", {paths.directory});
    Crowd crowd{*shared, paths, seed};
    Troublemaker troublemaker{crowd, *shared, seconds};
    Findings findings;

    std::vector<std::string> urls;
    for (std::size_t worker = 0; worker < worker_count; ++worker) urls.push_back(troublemaker.url(worker));
    std::array<test::RedisServer, steady_servers> steady;
    crowd.start(urls, {steady[0].url(), steady[1].url()});
    if (!test::eventually([&] { return shared->ready >= worker_count; }, test::patient(30s)))
        throw std::runtime_error("the workers do not start");

    const std::int64_t began = test::monotonic_ns();
    QueueWatch queue{troublemaker.server()};
    HolderWatch holders{troublemaker.server(), steady};
    const bool alive = make_trouble(make_plan(seed, seconds, only), began, seconds, crowd, troublemaker, findings);
    troublemaker.end_all();
    const std::vector<test::QueueSight> sights = queue.end();
    shared->stop = true;
    for (const std::string& wrong : crowd.join(test::patient(30s))) findings.complain(wrong);
    const std::vector<HolderSight> seen_holders = holders.end();
    if (alive) run_final_checks(troublemaker.server(), steady, *shared, crowd, findings);

    const std::vector<Entry> entries = journal.read();
    check_journal(entries, troublemaker.faults(), troublemaker.late_arrivals(), {sights, seen_holders}, began,
                  findings);
    if (only.empty()) judge_coverage(entries, troublemaker.faults(), seconds, findings);
    print(findings, seconds, troublemaker.faults());
    if (!findings.complaints.empty()) {
        for (const Fault& fault : troublemaker.faults())
            std::cout << "fault: " << info(fault.kind).name << " " << (fault.from - began) / 1'000'000 << " to "
                      << (fault.until - began) / 1'000'000 << " ms, worker " << fault.worker << ", lock " << fault.lock
                      << (fault.bit ? "" : ", without effect") << "\n";
        std::cout << "soak: seed=" << seed << " has failed" << std::endl;
    }
    return findings.complaints.empty() ? 0 : 1;
}

int run(int argc, char** argv) {
    if (argc != 3 && argc != 4) {
        std::cerr << "usage: redlatch_soak <seconds> <seed> [kind of fault]\n";
        return 2;
    }
    return soak(std::atoll(argv[1]), std::strtoull(argv[2], nullptr, 10), argc == 4 ? argv[3] : "");
}

}  // namespace

}  // namespace redlatch::soak

int main(int argc, char** argv) { return redlatch::test::role_main(argc, argv, redlatch::soak::run); }
