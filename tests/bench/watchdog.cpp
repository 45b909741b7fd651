// SPDX-License-Identifier: MIT

// Many holds without a lease, and the cost of renewing them.
#include <algorithm>
#include <cmath>
#include <deque>
#include <stdexcept>

#include "scenarios.hpp"
#include "subjects.hpp"

namespace redlatch::bench {

using namespace redlatch::detail;

namespace {

constexpr std::size_t holds = 10'000;
constexpr double usual_periods = 5;
constexpr std::chrono::milliseconds period{1000};
constexpr std::chrono::milliseconds watchdog_timeout = 3 * period;

std::function<void(Crew&)> holder(const std::string& url) {
    return [=](Crew& crew) {
        Client redis{url, {.watchdog_timeout = watchdog_timeout}};
        crew.run([&](Seat& seat) {
            std::deque<RLock> locks;
            for (std::size_t i = 0; i < holds; ++i) locks.emplace_back(redis, own_key(i)).lock();
            seat.start();
            seat.wait_for_stop();
            for (auto& lock : locks)
                if (!lock.lost().stop_requested()) ++seat.worker().acquisitions;
            seat.finish();
            for (auto& lock : locks) lock.unlock();
        });
    };
}

}  // namespace

bool watchdog(Bench& bench, const std::string& link) {
    const Setting setting{.scenario = "watchdog", .link = link, .placement = "free", .threads = 1};
    const double periods = std::max(2.0, std::round(usual_periods * bench.share_of_usual()));
    bench.prepare();
    Fleet fleet;
    fleet.add(1, holder(bench.url(link)));
    fleet.gather();
    fleet.go();
    fleet.pause(watchdog_timeout);  // the first lease of every hold is over: only renewals kept it alive

    const auto scripts = bench.script_calls();
    const auto commands = bench.commands();
    const auto cpu = fleet.cpu_time();
    fleet.pause(std::chrono::duration_cast<std::chrono::nanoseconds>(periods * period));
    const auto renewals = static_cast<double>(bench.script_calls() - scripts);
    const auto sent = static_cast<double>(bench.commands() - commands);
    const auto used = static_cast<double>((fleet.cpu_time() - cpu).count()) / 1e6;
    const auto kept = static_cast<double>(bench.keys());
    fleet.stop();
    fleet.wait_until_done();
    fleet.dismiss();

    const auto not_lost = static_cast<double>(fleet.shared().workers[0].acquisitions);
    print(setting, "redlatch", "renewal_commands_per_period", renewals / periods, "commands");
    print(setting, "redlatch", "commands_per_period", sent / periods, "commands");
    print(setting, "redlatch", "client_cpu_per_period", used / periods, "ms");
    print(setting, "redlatch", "holds_on_server", kept, "count");
    print(setting, "redlatch", "holds_lost", static_cast<double>(holds) - not_lost, "count");
    return true;
}

}  // namespace redlatch::bench
