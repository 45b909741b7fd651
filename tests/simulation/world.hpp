// SPDX-License-Identifier: MIT
#pragma once

#include "simulation/server.hpp"
#include "simulation/transport.hpp"
#include "simulation/ward.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace sim {

using Client = redlatch::Client<Transport>;

// The servers, processes and misfortunes of one seed.
class World {
public:
    explicit World(std::size_t servers);
    ~World();
    World(const World&) = delete;
    World& operator=(const World&) = delete;

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
    Random& random() { return scheduler().random(); }

    // Tells how a lock of this key fares. `server`: whose key it is.
    Ward& guard(const std::string& key, std::size_t server, Nanos wake_up_bound);

    // A thread of the program.
    void start_thread(Process& process, std::function<void()> body);

    // Waits for the threads, with the misfortunes, and then until nothing should be left. `kept`: beginnings of the
    // names of keys that may stay; `kept_after_faults`: if anything broke.
    void finish(std::vector<std::string> kept, const std::vector<std::string>& kept_after_faults = {});

    // How long anything may be late: threads that stall, messages that are slow.
    Nanos slack() const;
    // The same for what needs no server.
    Nanos local_slack() const;
    // How long it may take after a fault until all is well again.
    Nanos recovery() const { return 15 * second; }
    Nanos wake_up_bound(Nanos poll) const { return faults_.any() ? recovery() : poll + slack(); }

    // Whether a failed call needs no other explanation.
    bool excuses_errors() const { return faults_.any() || faults_.slow > 0; }
    bool lost_data() const { return lost_data_; }
    bool crashed(const Process& process) const { return scheduler().has_crashed(process.id); }

    // Any server's data, but for the last ones, may be lost: a minority.
    std::size_t forgetful = 1;
    bool wards_outlive_data = false;

    // Puts back what somebody had set by hand, after a server lost its data.
    std::function<void()> set_anew;

    // Objects that the process made, which a crash leaves as they are.
    template <class T>
    std::shared_ptr<T> keep(const Process& process, std::shared_ptr<T> object) {
        kept_.emplace_back(process.id, object);
        return object;
    }

private:
    void misfortune();
    void check_end(const std::vector<std::string>& kept);

    Faults faults_;
    redlatch::Milliseconds watchdog_timeout_;
    redlatch::Milliseconds command_timeout_;
    std::vector<std::unique_ptr<Server>> servers_;
    std::vector<std::unique_ptr<Process>> processes_;
    std::vector<std::pair<int, std::shared_ptr<void>>> kept_;
    std::vector<std::pair<std::size_t, std::unique_ptr<Ward>>> wards_;
    std::vector<Fiber*> threads_;
    std::vector<Fiber*> finished_;
    bool over_ = false;
    bool lost_data_ = false;
    int crashes_ = 0;
};

// The programs of a seed, by kind; they fail by scheduler().fail().
using Program = void (*)();
struct Kind {
    const char* name;
    Program run;
};
const std::vector<Kind>& lock_kinds();
const std::vector<Kind>& quorum_kinds();
const std::vector<Kind>& synchronizer_kinds();

}  // namespace sim
