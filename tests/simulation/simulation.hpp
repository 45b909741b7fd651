// SPDX-License-Identifier: MIT
#pragma once

#include "simulation/invariant_checker.hpp"
#include "simulation/late_arrivals.hpp"
#include "simulation/server.hpp"
#include "simulation/transport.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sim {

using Client = redlatch::Client;

// The servers, processes and faults of one seed.
class Simulation {
public:
    explicit Simulation(std::size_t servers);
    ~Simulation();
    Simulation(const Simulation&) = delete;
    Simulation& operator=(const Simulation&) = delete;

    // A process has a client for each server.
    struct Process {
        int id;
        std::vector<std::unique_ptr<Client>> clients;
    };

    Process& start_process();
    Server& server(std::size_t i) { return *servers_[i]; }
    std::size_t servers() const { return servers_.size(); }
    const Faults& faults() const { return faults_; }
    redlatch::Milliseconds watchdog_timeout() const { return watchdog_timeout_; }
    redlatch::Milliseconds command_timeout() const { return command_timeout_; }
    // For the processes that start from now on.
    void set_watchdog_timeout(redlatch::Milliseconds timeout) { watchdog_timeout_ = timeout; }
    Random& random() { return scheduler().random(); }

    // Makes a checker that watches the lock with this key on this server. See InvariantChecker.
    InvariantChecker& guard(const std::string& key, std::size_t server, const InvariantChecker::Bounds& bounds);

    // Starts a thread of the program.
    void start_thread(Process& process, std::function<void()> body);

    // Causes faults until the threads have ended, and then waits until nothing should be left. `kept` are prefixes of
    // the names of keys that may stay, `kept_after_faults` further ones if there were faults.
    void finish(std::vector<std::string> kept, const std::vector<std::string>& kept_after_faults = {});

    // How late anything may be because of threads that stall and messages that are slow.
    Nanos slack() const;
    // The same for operations without a server.
    Nanos local_slack() const;
    // A lease that a thread asks for.
    redlatch::Milliseconds some_lease(Nanos least) {
        return redlatch::Milliseconds(late() ? random().between(20'000, longest_lease / ms)
                                             : random().between(least / ms, 1200));
    }
    // Pauses before the next use. In a seed with late commands, sometimes until nothing is left of the use before.
    void pause() {
        const bool is_long = late() && random().below(3) == 0;
        scheduler().sleep(random().between(0, is_long ? 2 * beyond_marks : 5 * ms));
    }
    // How long a thread may keep what it holds, now and then.
    Nanos long_work() const { return late() ? longest_lease : 1500 * ms; }
    bool late() const { return faults_.lates; }

    // How long it may take after a fault until everything works again.
    Nanos recovery() const { return 15 * second; }
    Nanos wake_up_bound(Nanos poll) const { return faults_.any() ? recovery() : poll + slack(); }

    // Returns whether a failed call needs no other explanation.
    bool excuses_errors() const { return faults_.any() || faults_.slow > 0; }
    bool lost_data() const { return lost_data_; }
    bool crashed(const Process& process) const { return scheduler().has_crashed(process.id); }

    // Where commands come late. Longer than recovery(), so that a hold that nobody has is noticed.
    static constexpr Nanos longest_lease = 100 * second;
    static constexpr Nanos latest_copy = 3 * beyond_marks;

    // The number of servers that may lose their data: a minority, the first ones.
    std::size_t forgetful = 1;
    bool wards_outlive_data = false;

    // Sets the keys again that were set by hand, after a server lost its data.
    std::function<void()> set_anew;

    // Keeps an object of the process alive. A crash leaves it as it is.
    template <class T>
    std::shared_ptr<T> keep(const Process& process, std::shared_ptr<T> object) {
        kept_.emplace_back(process.id, object);
        return object;
    }

private:
    void inject_faults();
    void disturbed();
    void check_end(const std::vector<std::string>& kept);

    Faults faults_;
    redlatch::Milliseconds watchdog_timeout_;
    redlatch::Milliseconds command_timeout_;
    std::vector<std::unique_ptr<Server>> servers_;
    std::vector<std::unique_ptr<Process>> processes_;
    std::vector<std::pair<int, std::shared_ptr<void>>> kept_;
    std::vector<std::pair<std::size_t, std::unique_ptr<InvariantChecker>>> checkers_;
    std::vector<Fiber*> threads_;
    std::vector<Fiber*> finished_;
    bool over_ = false;
    bool lost_data_ = false;
    int crashes_ = 0;
};

// The programs by kind. A seed runs one, which fails by scheduler().fail().
using Program = void (*)();
struct Kind {
    const char* name;
    Program run;
};
const std::vector<Kind>& lock_kinds();
const std::vector<Kind>& quorum_kinds();
const std::vector<Kind>& synchronizer_kinds();
const std::vector<Kind>& around_kinds();
const std::vector<Kind>& meeting_kinds();

}  // namespace sim
