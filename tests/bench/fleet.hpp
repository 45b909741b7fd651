// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <stdexcept>
#include <vector>

#include "placement.hpp"
#include "shared.hpp"
#include "support/process.hpp"
#include "support/socket.hpp"

namespace redlatch::bench {

/// A pipe that all processes of a fleet inherit.
struct Pipe {
    Pipe();
    void put(char what) const;
    char get() const;  // '\\0' if no writing end is left

    test::Fd out, in;
};

/// A gate that opens once, for every process at the same time.
class Gate {
public:
    void open() { pipe_.in.reset(); }
    void wait() const { pipe_.get(); }

private:
    Pipe pipe_;
};

class Fleet;

/// One thread of a fleet, for its body.
class Seat {
public:
    Seat(Fleet& fleet, std::size_t index) : fleet_(fleet), index_(index) {}

    std::size_t index() const { return index_; }  // unique among all processes
    Worker& worker();
    Critical& critical();
    Shared& shared();

    void start();                // call it when everything is prepared: returns when the measurement begins
    bool running() const;        // until the measurement ends
    void wait_for_stop() const;  // the same for a thread without work
    void finish();               // call it when the work is done: returns when the server's counters have been read

private:
    Fleet& fleet_;
    std::size_t index_;
};

/// The threads of one process of a fleet.
class Crew {
public:
    Crew(Fleet& fleet, std::size_t first, std::size_t threads) : fleet_(fleet), first_(first), threads_(threads) {}

    /// Runs the body once in each thread. A crew of one uses the main thread of its process.
    void run(const std::function<void(Seat&)>& body);

private:
    Fleet& fleet_;
    std::size_t first_;
    std::size_t threads_;
};

/// Processes that make load together. Each is forked from a process that has neither threads nor a client, and makes
/// its own. They are killed if the fleet ends before they do. Every wait throws if a worker fails, or after a signal
/// (catch_signals).
class Fleet {
public:
    explicit Fleet(Placement placement = Placement::free) : placement_(placement) {}

    void add(std::size_t threads, const std::function<void(Crew&)>& process);

    void gather();  // returns when every thread has called start()
    void go() { start_.open(); }
    void pause(std::chrono::nanoseconds duration);
    void stop();
    void wait_until_done(std::chrono::nanoseconds patience = std::chrono::seconds{30});  // all have called finish()
    void dismiss();  // lets the processes end, and checks that they succeed

    std::size_t workers() const { return workers_; }
    const Shared& shared() const { return *shared_; }
    std::chrono::nanoseconds cpu_time() const;  // the CPU time of the processes so far

private:
    friend class Seat;
    friend class Crew;

    char listen(std::chrono::nanoseconds patience);
    void expect(char what, std::chrono::nanoseconds patience);

    Placement placement_;
    std::size_t workers_ = 0;
    test::SharedMemory<Shared> shared_;
    Gate start_, stop_, leave_;
    Pipe status_;
    std::vector<test::ChildProcess> processes_;
};

struct Interrupted : std::runtime_error {
    Interrupted() : runtime_error("interrupted") {}
};

/// Makes SIGINT, SIGTERM, SIGHUP and SIGPIPE end the wait of a fleet by Interrupted, so that everything is cleaned up.
void catch_signals();

}  // namespace redlatch::bench
