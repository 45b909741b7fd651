// SPDX-License-Identifier: MIT
//
// Leader election: one of several processes leads. It steps down on SIGTERM, and stops at once when it has lost its term.
// Either way a candidate takes over. Here three candidates are child processes, and main() is their operator, who
// observes who leads.

#include <redlatch/redlatch.hpp>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

namespace {

// Stands for a write that carries the fencing token, so that the resource can refuse a late one.
void publish(std::int64_t /* token */) {}

// [readme]
// The work of a leader, from its election until it is to end.
void schedule(const std::stop_token& ending, const redlatch::Term& term) {
    while (!ending.stop_requested()) {
        std::this_thread::sleep_for(5ms);  // prepares a piece of work
        if (!term.is_leader()) return;     // do not publish it: a pause was too long, others may lead
        publish(term.token());
    }
}

int candidate(const char* url, const std::string& name, const sigset_t& signals) {
    redlatch::Client redis{url, {.watchdog_timeout = 3s}};  // a loss is noticed within a third of it
    redlatch::LeaderElection election{redis, "example:leader", name};
    // Campaigns, runs schedule() while it leads, and campaigns again after a loss.
    const std::jthread candidacy{[&](const std::stop_token& stop) { election.lead(schedule, stop); }};
    int signal = 0;
    ::sigwait(&signals, &signal);  // SIGTERM: the end of the scope requests the stop, and waits until it has resigned
    return 0;
}
// [/readme]

}  // namespace

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    // Before there are threads: all of them inherit it, so that only sigwait() receives the signal.
    sigset_t signals;
    ::sigemptyset(&signals);
    ::sigaddset(&signals, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    std::vector<pid_t> candidates;
    while (candidates.size() < 3) {
        const pid_t pid = ::fork();
        if (pid < 0) return 1;
        if (pid == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // it does not outlive its parent
            std::_Exit(candidate(url, "host-" + std::to_string(candidates.size()), signals));
        }
        candidates.push_back(pid);
    }
    const auto orderly_end_of = [](pid_t pid) {
        int status = 0;
        return ::kill(pid, SIGTERM) == 0 && ::waitpid(pid, &status, 0) == pid && status == 0;
    };

    redlatch::Client redis{url};
    redlatch::LeaderElection election{redis, "example:leader"};
    std::optional<redlatch::Leader> seen;
    // Returns the candidate that is elected next, by its name. Nothing polls.
    const auto next_leader = [&] {
        const std::int64_t before = seen ? seen->token : 0;
        do
            if (!election.wait_change_for(30s, seen)) return std::size_t{99};
        while (!seen || seen->token == before || seen->name.empty());
        std::cout << seen->name << " leads\n" << std::flush;
        return static_cast<std::size_t>(seen->name.back() - '0');
    };

    const std::size_t first = next_leader();
    bool well = first < 3 && orderly_end_of(candidates[first]);
    const std::size_t second = next_leader();
    well = well && second < 3 && second != first && election.force_resign();  // an operator ends its term
    const std::size_t third = next_leader();
    well = well && third < 3 && third != first;
    for (std::size_t i = 0; i < 3; ++i) well = well && (i == first || orderly_end_of(candidates[i]));
    well = well && !election.leader();
    std::cout << (well ? "all went in order\n" : "that went wrong\n");
    return well ? 0 : 1;
}
