// SPDX-License-Identifier: MIT

// Sixteen threads of four processes compete for four permits.
#include "scenarios.hpp"
#include "subjects.hpp"

namespace redlatch::bench {
namespace {

constexpr std::size_t permits = 4;
constexpr std::size_t processes = 4;
constexpr std::size_t threads_each = 4;

// A token for each permit, in one list.
class Tokens : Token {
public:
    explicit Tokens(const std::string& url) : Token(url, token_key) {}
    void acquire() { lock(); }
    void release() { unlock(); }
};

auto visit(std::chrono::nanoseconds hold) {
    return [=](Seat& seat, auto& semaphore) {
        for (int i = 0; i < 20; ++i) {
            semaphore.acquire();
            semaphore.release();
        }
        Worker& worker = seat.worker();
        seat.start();
        while (seat.running()) {
            const auto asked = now_ns();
            semaphore.acquire();
            worker.inside = true;
            worker.acquired(asked, now_ns());
            ++worker.shared;
            if (seat.shared().inside() > permits) ++worker.violations;
            if (hold.count() > 0) stay(hold);
            worker.inside = false;
            semaphore.release();
        }
        seat.finish();
    };
}

template <class Body>
auto redlatch_semaphores(const std::string& url, Body body) {
    return [=](Crew& crew) {
        Client redis{url};
        Semaphore semaphore{redis, "permits"};
        semaphore.try_set_permits(permits);
        crew.run([&](Seat& seat) { body(seat, semaphore); });
    };
}

template <class Body>
auto tokens(const std::string& url, Body body) {
    return [=](Crew& crew) {
        crew.run([&](Seat& seat) {
            Tokens semaphore{url};
            body(seat, semaphore);
        });
    };
}

Slice one_slice(Bench& bench, const std::function<void(Crew&)>& process) {
    bench.prepare(Placement::free, token_key, permits);
    Fleet fleet;
    for (std::size_t i = 0; i < processes; ++i) fleet.add(threads_each, process);
    return measure(bench, fleet, bench.round_time());
}

bool compare(Bench& bench, const Setting& setting, std::chrono::nanoseconds hold) {
    const std::string url = bench.url(setting.link);
    std::vector<Subject> subjects{{"redlatch", [&] { return one_slice(bench, redlatch_semaphores(url, visit(hold))); }},
                                  {"token", [&] { return one_slice(bench, tokens(url, visit(hold))); }}};
    alternate(subjects);
    bool limited = true;
    for (const Subject& subject : subjects) {
        print_throughput(setting, subject);
        print(setting, subject.name, "commands_per_acquisition", each_round(subject, &Slice::commands_each),
              "commands");
        limited &= print_exclusion(setting, subject.name, violations(subject));
    }
    print(setting, "redlatch", "ratio_to_token", ratio(subjects[0], subjects[1], &Slice::per_second), "ratio");
    return limited;
}

}  // namespace

bool semaphore(Bench& bench, const std::string& link) {
    Setting setting{
        .scenario = "semaphore", .link = link, .placement = "free", .processes = processes, .threads = threads_each};
    const bool at_once = compare(bench, setting, {});
    setting.scenario = "semaphore_held_1ms";
    return compare(bench, setting, std::chrono::milliseconds{1}) && at_once;
}

}  // namespace redlatch::bench
