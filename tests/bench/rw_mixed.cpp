// SPDX-License-Identifier: MIT

// Nine reads for each write: the benefit of sharing, compared with one exclusive lock.
#include "scenarios.hpp"
#include "subjects.hpp"

namespace redlatch::bench {
namespace {

constexpr std::size_t processes = 4;
constexpr std::size_t threads_each = 4;
constexpr std::size_t a_write_in = 10;
constexpr std::chrono::milliseconds hold{1};

// A reader may meet readers, but no writer, neither when it enters nor when it leaves.
template <class Lock>
void read(Seat& seat, Lock& lock) {
    const auto asked = now_ns();
    lock.lock_shared();
    Worker& worker = seat.worker();
    worker.acquired(asked, now_ns());
    ++worker.shared;
    const bool met = seat.critical().occupied();
    stay(hold);
    if (met || seat.critical().occupied()) ++worker.violations;
    lock.unlock_shared();
}

// Works on a lock with the two sides, and on a lock without readers: there all are writers.
constexpr auto use = [](Seat& seat, auto& lock) {
    warm_up(lock);
    seat.start();
    // Each thread writes at a different time than its neighbours.
    for (std::size_t turn = seat.index(); seat.running(); ++turn) {
        if constexpr (requires { lock.lock_shared(); }) {
            if (turn % a_write_in != 0) {
                read(seat, lock);
                continue;
            }
        }
        enter_and_leave(seat, lock, hold);
    }
    seat.finish();
};

Slice one_slice(Bench& bench, const std::function<void(Crew&)>& process) {
    bench.prepare(Placement::free, token_key);
    Fleet fleet;
    for (std::size_t i = 0; i < processes; ++i) fleet.add(threads_each, process);
    return measure(bench, fleet, bench.round_time());
}

}  // namespace

bool rw_mixed(Bench& bench, const std::string& link) {
    const std::string url = bench.url(link);
    const ReadWriteOptions precedence{.writer_preference = true};
    std::vector<Subject> subjects{
        {"redlatch", [&] { return one_slice(bench, redlatch_process<ReadWriteLock>(url, one_key, use)); }},
        {"writers_first",
         [&] { return one_slice(bench, redlatch_process<ReadWriteLock>(url, one_key, use, precedence)); }},
        {"rlock", [&] { return one_slice(bench, redlatch_process<RLock>(url, one_key, use)); }},
        {"token", [&] { return one_slice(bench, token_process(url, use)); }}};
    alternate(subjects);

    const Setting setting{
        .scenario = "rw_mixed", .link = link, .placement = "free", .processes = processes, .threads = threads_each};
    bool excluded = true;
    for (const Subject& subject : subjects) {
        print_throughput(setting, subject);
        print(setting, subject.name, "writes_per_second", each_round(subject, &Slice::writes_per_second), "1/s");
        print(setting, subject.name, "commands_per_acquisition", each_round(subject, &Slice::commands_each),
              "commands");
        excluded &= print_exclusion(setting, subject.name, violations(subject));
    }
    const Subject& rlock = subjects[2];
    const Subject& token = subjects[3];
    for (const Subject* shared : {&subjects[0], &subjects[1]}) {
        print(setting, shared->name, "ratio_to_rlock", ratio(*shared, rlock, &Slice::per_second), "ratio");
        print(setting, shared->name, "ratio_to_token", ratio(*shared, token, &Slice::per_second), "ratio");
    }
    return excluded;
}

}  // namespace redlatch::bench
