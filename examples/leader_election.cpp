// SPDX-License-Identifier: MIT
//
// Leader election: one of several processes leads. It steps down on SIGTERM, and stops at once when it has lost the lock.
// Either way a candidate takes over. Here two candidates are child processes, and main() is their operator.

#include <redlatch/redlatch.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <future>
#include <iostream>
#include <stop_token>
#include <thread>
#include <utility>

using namespace std::chrono_literals;

namespace {

using Clock = std::chrono::steady_clock;

void elected(int news) {
    const pid_t me = ::getpid();
    std::cout << "a leader is elected\n" << std::flush;
    if (::write(news, &me, sizeof me) != sizeof me) std::_Exit(1);
}

// Stands for what a leader must leave in order, such as a last entry in its journal.
void hand_over(Clock::time_point deadline) {
    if (Clock::now() < deadline) std::cout << "the leader hands over\n" << std::flush;
}

// [readme]
void campaign(redlatch::RLock& leadership, const std::stop_token& stop, int news) {
    redlatch::Hold term = leadership.hold(stop);  // waits; empty if the stop came first
    if (!term) return;
    elected(news);
    const std::stop_token lost = term.lost();
    while (!stop.stop_requested() && !lost.stop_requested()) {
        std::this_thread::sleep_for(5ms);               // prepares a piece of work
        if (Clock::now() >= term.valid_until()) break;  // a pause was too long: somebody else may lead
    }
    // Stepping down needs a fresh deadline: a call with `stop` would give up at once. A lost term ends without work.
    const auto deadline = std::min(Clock::now() + 2s, term.valid_until());
    if (!lost.stop_requested()) hand_over(deadline);
    const auto released = std::move(term).async_unlock().future();
    if (released.wait_until(deadline) != std::future_status::ready) std::cerr << "the lease will end this term\n";
}

int candidate(const char* url, const sigset_t& signals, int news) {
    redlatch::Client redis{url, {.watchdog_timeout = 900ms}};  // a loss is noticed within a third of it
    redlatch::RLock leadership{redis, "example:leader"};
    const std::jthread candidacy{[&](const std::stop_token& stop) {
        while (!stop.stop_requested()) try {
                campaign(leadership, stop, news);
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
    for (int i = 0; i < 2; ++i)
        if (::fork() == 0) std::_Exit(candidate(url, signals, pipe[1]));
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
    redlatch::Client redis{url};
    redlatch::RLock leadership{redis, "example:leader"};
    well = well && second > 0 && second != first && leadership.force_unlock();  // takes the lock away from its holder
    well = well && next_leader() == second;  // it has noticed that, and was elected again
    well = well && orderly_end_of(second) && !leadership.is_locked();
    std::cout << (well ? "two leaders stepped down\n" : "that went wrong\n");
    return well ? 0 : 1;
}
