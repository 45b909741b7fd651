// SPDX-License-Identifier: MIT

// Coroutines that never meet, all on one thread of the client: the cost of a free lock without a thread that waits.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <thread>
#include <utility>
#include <vector>

#include "scenarios.hpp"
#include "subjects.hpp"
#include "support/coroutine.hpp"

namespace redlatch::bench {

namespace {

// The completions of one client run one after another, so `pairs` needs no protection while they run.
test::Fiber lock_and_unlock_until(const std::atomic<bool>& stopped, RLock& lock, std::uint64_t& pairs) {
    while (!stopped) {
        Hold hold = co_await lock.async_lock();
        co_await std::move(hold).async_unlock();
        ++pairs;
    }
}

std::function<void(Crew&)> coroutine_process(const std::string& url, std::size_t count) {
    return [=](Crew& crew) {
        Client redis{url};
        crew.run([&](Seat& seat) {
            std::deque<RLock> locks;
            for (std::size_t i = 0; i < count; ++i) locks.emplace_back(redis, own_key(i));
            warm_up(locks.front());
            std::atomic<bool> stopped{false};
            std::uint64_t pairs = 0;
            seat.start();
            std::vector<test::Fiber> fibers;
            for (RLock& lock : locks) fibers.push_back(lock_and_unlock_until(stopped, lock, pairs));
            while (seat.running()) std::this_thread::sleep_for(std::chrono::milliseconds{1});
            stopped = true;
            for (const test::Fiber& fiber : fibers)
                while (!fiber.done()) std::this_thread::sleep_for(std::chrono::milliseconds{1});
            seat.worker().acquisitions = pairs;
            seat.finish();
        });
    };
}

}  // namespace

bool coroutines(Bench& bench, const std::string& link) {
    const std::string url = bench.url(link);
    for (const std::size_t count : std::initializer_list<std::size_t>{64, 10'000}) {
        const Setting setting{.scenario = "coroutines", .link = link, .placement = "free", .coroutines = count};
        const auto one_slice = [&](const std::function<void(Crew&)>& process) {
            bench.prepare();
            Fleet fleet{Placement::free};
            fleet.add(1, process);
            return measure(bench, fleet, bench.round_time());
        };
        std::vector<Subject> subjects{{"redlatch", [&] { return one_slice(coroutine_process(url, count)); }},
                                      {"pipelined", [&] { return one_slice(pipelined_process(url, count)); }}};
        alternate(subjects);
        for (const Subject& subject : subjects) {
            print(setting, subject.name, "pairs_per_second", each_round(subject, &Slice::per_second), "1/s");
            print(setting, subject.name, "commands_per_acquisition", each_round(subject, &Slice::commands_each),
                  "commands");
            print(setting, subject.name, "client_cpu_per_pair", each_round(subject, &Slice::cpu_us_each), "us");
        }
        print(setting, "redlatch", "ratio_to_pipelined", ratio(subjects[0], subjects[1], &Slice::per_second), "ratio");
    }
    return true;
}

}  // namespace redlatch::bench
