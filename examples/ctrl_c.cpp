// SPDX-License-Identifier: MIT
//
// Ctrl-C ends a wait. The program then leaves in an orderly way, and nothing of it stays in Redis.

#include <redlatch/redlatch.hpp>

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <stop_token>
#include <thread>

using namespace std::chrono_literals;

namespace {

// [readme]
// Turns SIGINT and SIGTERM into a stop request. A signal handler could not: it may neither request a stop nor notify a
// condition variable. Make it first in main(): threads inherit the blocked signals from the one that makes them.
class StopOnSignal {
public:
    StopOnSignal() {
        ::sigemptyset(&signals_);
        ::sigaddset(&signals_, SIGINT);
        ::sigaddset(&signals_, SIGTERM);
        ::pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
        thread_ = std::jthread([this](const std::stop_token& ended) {
            for (int signal = 0; ::sigwait(&signals_, &signal) == 0 && !ended.stop_requested();)
                if (!stop_.request_stop())
                    std::_Exit(128 + signal);  // the second one: what it holds ends with the lease
        });
    }
    StopOnSignal(const StopOnSignal&) = delete;
    StopOnSignal& operator=(const StopOnSignal&) = delete;
    ~StopOnSignal() {
        thread_.request_stop();
        ::pthread_kill(thread_.native_handle(), SIGTERM);  // ends its sigwait()
    }

    std::stop_token token() const { return stop_.get_token(); }

private:
    ::sigset_t signals_{};
    std::stop_source stop_;
    std::jthread thread_;
};
// [/readme]

}  // namespace

int main() {
    const StopOnSignal ctrl_c;
    const char* env = std::getenv("REDLATCH_URL");
    const char* url = env ? env : "redis://127.0.0.1:6379";
    redlatch::Client redis{url};
    redlatch::RLock migration{redis, "example:ctrl_c"};
    redlatch::Client elsewhere{url};  // stands for another process, which holds the lock
    redlatch::RLock held_elsewhere{elsewhere, "example:ctrl_c"};
    const std::lock_guard other{held_elsewhere};

    const auto start = std::chrono::steady_clock::now();
    const std::jthread user{[] {
        std::this_thread::sleep_for(200ms);
        ::kill(::getpid(), SIGINT);
    }};
    const bool held = migration.lock(ctrl_c.token());  // waits until the lock is free, or Ctrl-C
    const auto waited = std::chrono::round<std::chrono::milliseconds>(std::chrono::steady_clock::now() - start);
    if (held) migration.unlock();
    std::cout << (held ? "got the lock" : "interrupted") << " after " << waited.count() << " ms\n";
    return !held && waited >= 100ms && waited < 5s && redis.stats().waiting == 0 ? 0 : 1;
}
