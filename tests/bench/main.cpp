// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <exception>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "drawing.hpp"
#include "scenarios.hpp"

namespace {

using redlatch::bench::Bench;

constexpr const char* help = R"(redlatch_bench: measures redlatch against bare hiredis, on a private redis-server.

  --scenario NAME[,NAME...]  uncontended, threads, coroutines, contended_threads, contended_processes, busy,
                             wake_up, idle_wait, watchdog, fair_threads, fair_processes, rw_mixed, semaphore,
                             latch_release, redlock; all of them if not given
  --link unix|tcp            how the clients connect; both if not given
  --seconds S                measuring time of each subject of a scenario, in 5 rounds; 2 if not given.
                             The work of wake_up (50 times 200 ms), idle_wait (10 s), watchdog (5 periods) and
                             latch_release (50 releases) is fixed; it is cut down in proportion when S is below 2
  --svg FILE                 also draws the ratios of this run as bars: a panel for each scenario
  --help                     this text

Every line on stdout is a JSON object: scenario, link, subject, metric, value, unit; where it applies placement
(cross: client and server on a CPU each; same: on one CPU; free: left to the scheduler), processes, threads (of each
process), waiters (of all processes, at any time), coroutines (on one thread); where there are rounds, value is their
median (of hand-offs: the quantile over all of them), and min and max of the rounds are beside it. Subjects take turns
within a round, and a ratio is the median of the ratios round by round.

Where threads compete for a lock, pairs_per_second counts all acquisitions. A real hand-off is an acquisition by another
thread than the last holder: handoffs_per_second, commands_per_handoff, handoffs_ratio_to_token. Of all acquisitions,
self is the share of the last holder, local that of other threads of its process, remote that of other processes.

  redlatch      this library, one client object for all threads of a process; its RLock where another lock is
                not in the name of the scenario
  fair_lock     this library's FairLock, where redlatch is the RLock
  redlatch_without_grants
                the RLock of a client with ClientOptions::grants = false
  bare_hiredis  the same two scripts with the same arguments by hiredis alone, a connection for each thread; for a
                RedLock one for each server, and the five commands on their way at the same time
  bare_set      the lock that programs write by hand: SET NX PX and a script that compares and deletes, by hiredis, a
                connection for each thread
  pipelined     the scripts of all threads in one pipeline from one thread: the ceiling
  token         a hand-off by BLPOP and LPUSH: the floor of every wait; for a semaphore a token for each permit
  bare_publish  a connection for each waiter, which listens, and a PUBLISH that lets all go on
  writers_first the read-write lock whose waiting writers keep new readers out
  rlock         this library's RLock for readers and writers alike
  one_frozen, rlock_one_server
                a RedLock when one of its five servers does not answer; an RLock on one of the five

Exit status: 0; 1 when a scenario failed, or the lock was held twice at once; 2 for wrong arguments.
)";

struct Scenario {
    std::string name;
    bool (*run)(Bench&, const std::string& link);
};

const std::vector<Scenario> all_scenarios{
    {"uncontended", redlatch::bench::uncontended},
    {"threads", redlatch::bench::threads},
    {"coroutines", redlatch::bench::coroutines},
    {"contended_threads", redlatch::bench::contended_threads},
    {"contended_processes", redlatch::bench::contended_processes},
    {"busy", redlatch::bench::busy},
    {"wake_up", redlatch::bench::wake_up},
    {"idle_wait", redlatch::bench::idle_wait},
    {"watchdog", redlatch::bench::watchdog},
    {"fair_threads", redlatch::bench::fair_threads},
    {"fair_processes", redlatch::bench::fair_processes},
    {"rw_mixed", redlatch::bench::rw_mixed},
    {"semaphore", redlatch::bench::semaphore},
    {"latch_release", redlatch::bench::latch_release},
    {"redlock", redlatch::bench::redlock},
};

struct Options {
    std::vector<Scenario> scenarios = all_scenarios;
    std::vector<std::string> links{"unix", "tcp"};
    double seconds = Bench::usual_seconds;
    std::string svg = {};  // empty: no drawing
};

std::vector<Scenario> scenarios_named(const std::string& names) {
    std::vector<Scenario> result;
    std::istringstream list{names};
    for (std::string name; std::getline(list, name, ',');) {
        const auto found = std::find_if(all_scenarios.begin(), all_scenarios.end(),
                                        [&](const Scenario& scenario) { return scenario.name == name; });
        if (found == all_scenarios.end()) throw std::invalid_argument("no scenario is named '" + name + "'");
        result.push_back(*found);
    }
    if (result.empty()) throw std::invalid_argument("--scenario needs a name");
    return result;
}

double seconds_from(const std::string& text) {
    std::size_t used = 0;
    double seconds = 0;
    try {
        seconds = std::stod(text, &used);
    } catch (const std::exception&) {
        used = 0;
    }
    if (used == 0 || used != text.size() || !(seconds >= 0.05 && seconds <= 3600))
        throw std::invalid_argument("--seconds takes a number from 0.05 to 3600, not '" + text + "'");
    return seconds;
}

// Opens the file at once: a measurement takes minutes. Leaves its content until there is a new drawing.
std::string svg_from(const std::string& path) {
    if (!std::ofstream{path, std::ios::app}) throw std::invalid_argument("--svg cannot write to '" + path + "'");
    return path;
}

void write_drawing(const std::string& path) {
    std::ofstream file{path};
    file << redlatch::bench::draw(redlatch::bench::printed());
    file.close();
    if (!file) throw std::runtime_error("cannot write to " + path);
}

/// Returns nothing if only help was requested.
std::optional<Options> parse(const std::vector<std::string>& words) {
    Options options;
    for (std::size_t i = 0; i < words.size(); ++i) {
        const std::string option = words[i].substr(0, words[i].find('='));
        if (option == "--help" || option == "-h") return std::nullopt;
        if (option != "--scenario" && option != "--link" && option != "--seconds" && option != "--svg")
            throw std::invalid_argument("unknown option '" + words[i] + "'");
        const bool joined = option.size() < words[i].size();
        if (!joined && i + 1 == words.size()) throw std::invalid_argument(option + " needs a value");
        const std::string value = joined ? words[i].substr(option.size() + 1) : words[++i];
        if (option == "--scenario") options.scenarios = scenarios_named(value);
        if (option == "--seconds") options.seconds = seconds_from(value);
        if (option == "--svg") options.svg = svg_from(value);
        if (option == "--link") {
            if (value != "unix" && value != "tcp")
                throw std::invalid_argument("--link takes unix or tcp, not '" + value + "'");
            options.links = {value};
        }
    }
    return options;
}

int run(const Options& options) {
    redlatch::bench::catch_signals();
    Bench bench{options.seconds};
    bool good = true;
    for (const std::string& link : options.links) {
        for (const Scenario& scenario : options.scenarios) {
            try {
                if (scenario.run(bench, link)) continue;
                std::cerr << scenario.name << " over " << link << ": the lock was held twice at once" << std::endl;
            } catch (const redlatch::bench::Interrupted&) {
                throw;
            } catch (const std::exception& error) {
                std::cerr << scenario.name << " over " << link << ": " << error.what() << std::endl;
            }
            good = false;
        }
    }
    if (!options.svg.empty()) write_drawing(options.svg);
    return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    std::optional<Options> options;
    try {
        options = parse({argv + 1, argv + argc});
    } catch (const std::exception& error) {
        std::cerr << "redlatch_bench: " << error.what() << "; try --help" << std::endl;
        return 2;
    }
    if (!options) {
        std::cout << help;
        return 0;
    }
    try {
        return run(*options);
    } catch (const std::exception& error) {
        std::cerr << "redlatch_bench: " << error.what() << std::endl;
        return 1;
    }
}
