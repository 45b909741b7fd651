// SPDX-License-Identifier: MIT
#pragma once

#include "simulation/scheduler.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace sim {

// Watches one lock from outside: which threads could be certain of it until when, since when it has been free, and
// which threads wait. All times are those of the simulation, whatever the clocks of the servers show.
class Ward {
public:
    Ward(std::string key, Nanos wake_up_bound) : key_(std::move(key)), bound_(wake_up_bound) {}

    const std::string& key() const { return key_; }

    // The running thread may rely on the lock until then, exclusively or shared.
    void certain(bool shared, Nanos until) {
        Scheduler& s = scheduler();
        const std::uint64_t me = s.self().id;
        for (const auto& [other, belief] : beliefs_)
            if (other != me && belief.until > s.now() && !(shared && belief.shared))
                s.fail("two holders of " + key_ + ": thread " + std::to_string(other) + " until " +
                       std::to_string(belief.until / us) + ", thread " + std::to_string(me) + " until " +
                       std::to_string(until / us));
        beliefs_[me] = {until, shared};
    }
    void uncertain() { beliefs_.erase(scheduler().self().id); }

    // The server lost its data, or a hold was ended by force: the holders could not know.
    void nobody_knows() {
        beliefs_.clear();
        ++upheavals_;
    }
    std::uint64_t upheavals() const { return upheavals_; }

    void waits() { waiting_[scheduler().self().id] = {scheduler().now(), scheduler().self().process}; }
    void waits_no_more() { waiting_.erase(scheduler().self().id); }
    void crashed(int process) {
        std::erase_if(waiting_, [&](const auto& w) { return w.second.process == process; });
    }
    void disturbed(Nanos now) { disturbed_ = now; }

    // Notifies of a change of the key on the server.
    void changed(bool exists, Nanos when) {
        if (exists == exists_) return;
        exists_ = exists;
        if (!exists) {
            free_since_ = when;
            return;
        }
        for (const auto& [thread, waiting] : waiting_)
            if (const Nanos since = std::max({waiting.since, free_since_, disturbed_}); when - since > bound_)
                scheduler().fail("lost wake-up: " + key_ + " was free for " + std::to_string((when - since) / ms) +
                                 " ms while thread " + std::to_string(thread) + " waited");
    }

    // Takes the fencing token of a hold that began after those of all earlier calls.
    void token(std::int64_t number) {
        if (number <= last_token_)
            scheduler().fail("the fencing token " + std::to_string(number) + " is not above " +
                             std::to_string(last_token_));
        last_token_ = number;
    }

    // The data that the lock guards: not atomic, and read and written at different times.
    std::int64_t guarded = 0;
    std::int64_t entries = 0;

private:
    struct Belief {
        Nanos until;
        bool shared;
    };
    struct Waiting {
        Nanos since;
        int process;
    };

    const std::string key_;
    const Nanos bound_;
    std::map<std::uint64_t, Belief> beliefs_;
    std::map<std::uint64_t, Waiting> waiting_;
    bool exists_ = false;
    Nanos free_since_ = 0;
    Nanos disturbed_ = 0;
    std::int64_t last_token_ = 0;
    std::uint64_t upheavals_ = 0;
};

}  // namespace sim
