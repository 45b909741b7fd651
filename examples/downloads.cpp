// SPDX-License-Identifier: MIT
//
// At most five downloads at a time, in all processes together. Permits with leases: those of a process that dies come
// back by themselves.

#include <redlatch/redlatch.hpp>

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <stop_token>
#include <thread>
#include <vector>

using namespace std::chrono_literals;

namespace {

constexpr int at_most = 5;
// A killed process blocks its permits for so long. The default of 30 s does for most services.
const redlatch::ClientOptions options{.watchdog_timeout = 3s};

// [readme]
template <class Fetch>
void download(redlatch::PermitExpirableSemaphore& slots, Fetch fetch) {
    const redlatch::Permits slot = slots.hold(1);  // waits; the end of the scope gives it back, also by an exception
    fetch(slot.lost());                            // should stop when that is requested: others may be six by then
}
// [/readme]

// Another process: it is killed in the middle of two downloads.
void doomed(const char* url, int ready) {
    redlatch::Client redis{url, options};
    redlatch::PermitExpirableSemaphore slots{redis, "example:downloads"};
    slots.set_permits(at_most);
    const redlatch::Permits two = slots.hold(2);
    if (::write(ready, "x", 1) == 1) ::pause();
    std::_Exit(1);
}

}  // namespace

int main() {
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    int pipe[2];
    if (::pipe(pipe) != 0) return 1;
    const pid_t other = ::fork();
    if (other < 0) return 1;
    if (other == 0) doomed(url, pipe[1]);
    char ready = 0;
    if (::read(pipe[0], &ready, 1) != 1) return 1;
    ::kill(other, SIGKILL);
    ::waitpid(other, nullptr, 0);

    redlatch::Client redis{url, options};
    redlatch::PermitExpirableSemaphore slots{redis, "example:downloads"};
    slots.set_permits(at_most);  // every process sets it at its start, so a new number needs no more than a restart
    std::cout << slots.available_permits() << " permits after the crash\n";
    const bool two_missing = slots.available_permits() == at_most - 2;

    std::atomic<int> now{0}, most{0}, done{0};
    std::vector<std::jthread> workers;
    for (int i = 0; i < 20; ++i)
        workers.emplace_back([&] {
            download(slots, [&](const std::stop_token& lost) {
                const int others = now++;
                for (int before = most; before <= others && !most.compare_exchange_weak(before, others + 1);) continue;
                std::this_thread::sleep_for(50ms);
                --now;
                if (!lost.stop_requested()) ++done;
            });
        });
    workers.clear();  // joins them
    const bool all_back = slots.try_hold_for(20s, at_most).count() == at_most;
    std::cout << done << " downloads, " << most << " at a time at most; " << (all_back ? "all" : "not all")
              << " permits came back\n";
    return two_missing && done == 20 && most <= at_most && all_back ? 0 : 1;
}
