// SPDX-License-Identifier: MIT
#pragma once

#include "simulation/random.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include <ucontext.h>

namespace sim {

// A thread of the simulated program. It runs until it waits, or until the random generator lets another one run first.
struct Fiber {
    std::uint64_t id = 0;
    int process = 0;
    std::function<void()> body;
    bool ended = false;
    bool crashed = false;
    bool waiting = false;
    bool notified = false;     // wake() ended the wait, not the time
    const void* on = nullptr;  // the object that it waits for
    const char* what = "";     // the same in words
    Nanos until = forever;
    char* stack = nullptr;
    ucontext_t context{};
    bool receives = false;              // it is the thread that renews and receives for a client
    std::uint64_t replies_awaited = 0;  // commands of its own for which it waited
    // State of the C++ runtime, which knows only one thread: the exceptions being thrown and caught.
    void* caught = nullptr;
    unsigned uncaught = 0;
};

// How much the threads of a seed are interleaved.
struct Interleaving {
    unsigned switches = 0;  // per mille of the points at which another thread could run
    unsigned stalls = 0;    // per mille of those that put the thread to sleep for a while
    Nanos longest_stall = 0;
};

// Runs one seed: fibers, events at instants, and the clock, which advances when no fiber can run. All in one thread of
// the system, so nothing here needs a mutex.
class Scheduler {
public:
    Scheduler(std::uint64_t seed, bool trace);
    ~Scheduler();
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;

    // The scheduler of the running seed; null between two seeds.
    static Scheduler* current() { return current_; }

    // Runs `program` and everything that it starts. Returns the first failure, or an empty text.
    std::string run(std::function<void()> program);

    Fiber* spawn(int process, std::function<void()> body);
    Fiber& self() { return *running_; }
    bool in_fiber() const { return running_ != nullptr; }

    // Waits until wake(on) or the time. Returns whether it was woken.
    bool wait(const void* on, Nanos until, const char* what);
    void wake_one(const void* on);
    void wake_all(const void* on);
    void join(Fiber& fiber);
    void sleep(Nanos time) { wait(nullptr, now_ + time, "sleep"); }
    void yield();
    void may_switch();

    // Runs an event at an instant, between two turns of the fibers.
    void at(Nanos when, std::function<void()> event);

    // Counts the points at which another fiber can run first, and the turns of the fibers.
    std::uint64_t steps() const { return steps_; }

    // Starts a fiber when this step is reached, before any other fiber goes on. Of two for the same step the second runs
    // when the first one stops.
    void at_step(std::uint64_t step, int process, std::function<void()> body);
    // Forgets the fibers whose steps have not been reached.
    void drop_steps() { forced_.clear(); }

    // Stops all fibers of this process for good.
    void crash(int process);
    bool has_crashed(int process) const;
    bool has_any_crashed() const { return !crashed_.empty(); }

    // Reports a failure and ends the seed.
    [[noreturn]] void fail(const std::string& what);

    Nanos now() const { return now_; }
    Random& random() { return random_; }
    Interleaving& interleaving() { return interleaving_; }
    std::uint64_t turns() const { return turns_; }

    bool tracing() const { return trace_; }
    void trace(const std::string& line);

private:
    struct Event {
        Nanos when;
        std::uint64_t number;
        std::function<void()> what;
        bool operator>(const Event& other) const {
            return when != other.when ? when > other.when : number > other.number;
        }
    };

    struct Forced {
        std::uint64_t step;
        int process;
        std::function<void()> body;
    };

    static void enter();
    bool next_step();
    Fiber* choose();
    void resume(Fiber& fiber);
    void to_scheduler();
    bool advance();
    std::string stuck() const;

    static Scheduler* current_;

    Random random_;
    Interleaving interleaving_;
    const bool trace_;
    Nanos now_ = 1000 * second;
    std::uint64_t turns_ = 0;
    std::uint64_t steps_ = 0;
    std::uint64_t events_so_far_ = 0;
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
    std::vector<std::unique_ptr<Fiber>> fibers_;
    std::vector<Fiber*> alive_;
    std::vector<int> crashed_;
    std::vector<Forced> forced_;
    std::deque<Fiber*> first_in_line_;
    Fiber* running_ = nullptr;
    ucontext_t main_{};
    std::string failure_;
    bool failed_ = false;
};

inline Scheduler& scheduler() { return *Scheduler::current(); }

}  // namespace sim
