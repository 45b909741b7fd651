// SPDX-License-Identifier: MIT
//
// Leader election: one of several processes leads. It steps down on SIGTERM, and stops at once when it has lost the lock.
// Either way a candidate takes over. Here three candidates are child processes, and main() is their operator.

#include <redlatch/redlatch.hpp>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <future>
#include <iostream>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

// Stands for what a leader must leave in order, such as a last entry in its journal.
void hand_over(Clock::time_point deadline) {
    if (Clock::now() < deadline) std::cout << "the leader hands over\n" << std::flush;
}

// [readme]
// Leads for one term: elected() and hand_over() are what a leader does first and last.
void campaign(redlatch::RLock& leadership, const std::stop_token& stop, const std::function<void()>& elected) {
    redlatch::Hold term = leadership.hold(stop);  // waits; empty if the stop came first
    if (!term) return;
    elected();
    const std::stop_token lost = term.lost();
    while (!stop.stop_requested() && !lost.stop_requested()) {
        std::this_thread::sleep_for(5ms);                // prepares a piece of work
        if (Clock::now() >= term.valid_until()) return;  // do not publish it: a pause was too long, others may lead
    }
    if (lost.stop_requested()) return;
    // Stepping down needs a fresh deadline: whatever waits with `stop` would give up at once.
    const auto deadline = std::min(Clock::now() + 2s, term.valid_until());
    hand_over(deadline);
    const auto released = std::move(term).async_unlock().future();
    if (released.wait_until(deadline) != std::future_status::ready) std::cerr << "the lease will end this term\n";
}

int candidate(const char* url, const sigset_t& signals, const std::function<void()>& elected) {
    redlatch::Client redis{url, {.watchdog_timeout = 3s}};  // a loss is noticed within a third of it
    redlatch::RLock leadership{redis, "example:leader"};
    const std::jthread candidacy{[&](const std::stop_token& stop) {
        while (!stop.stop_requested()) try {
                campaign(leadership, stop, elected);
            } catch (const redlatch::Error& error) {
                std::cerr << error.what() << '\n';  // no server for half a minute, for example: goes on trying
                std::this_thread::sleep_for(100ms);
            }
    }};
    int signal = 0;
    ::sigwait(&signals, &signal);  // SIGTERM: the end of the scope requests the stop, and waits for the thread
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
    int pipe[2];
    if (::pipe(pipe) != 0) return 1;
    const auto report = [&] {
        const pid_t me = ::getpid();
        std::cout << "a leader is elected\n" << std::flush;
        if (::write(pipe[1], &me, sizeof me) != sizeof me) std::_Exit(1);
    };
    std::vector<pid_t> candidates;
    while (candidates.size() < 3) {
        const pid_t pid = ::fork();
        if (pid < 0) return 1;
        if (pid == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // it does not outlive its parent
            std::_Exit(candidate(url, signals, report));
        }
        candidates.push_back(pid);
    }
    ::close(pipe[1]);
    const auto next_leader = [&] {
        pid_t pid = 0;
        return ::read(pipe[0], &pid, sizeof pid) == sizeof pid ? pid : 0;
    };
    const auto orderly_end_of = [](pid_t pid) {
        int status = 0;
        return ::kill(pid, SIGTERM) == 0 && ::waitpid(pid, &status, 0) == pid && status == 0;
    };

    const pid_t first = next_leader();
    bool well = first > 0 && orderly_end_of(first);
    const pid_t second = next_leader();
    for (const pid_t other : candidates)  // one that waits
        if (other != first && other != second) well = well && orderly_end_of(other);
    redlatch::Client redis{url};
    redlatch::RLock leadership{redis, "example:leader"};
    well = well && second > 0 && second != first && leadership.force_unlock();  // takes the lock away from its holder
    well = well && next_leader() == second;  // it has noticed that, and was elected again
    well = well && orderly_end_of(second) && !leadership.is_locked();
    std::cout << (well ? "all went in order\n" : "that went wrong\n");
    return well ? 0 : 1;
}
