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
class InvariantChecker {
public:
    struct Bounds {
        Nanos wake_up;          // how long the lock may be free while a thread waits, or be taken for nobody
        Nanos after_lease = 0;  // how much longer it may be free if nobody released it, but its last lease ended
        Nanos late_hold = 0;    // how long after its last use a late copy of an acquire may take it for nobody
    };

    InvariantChecker(std::string key, const Bounds& bounds) : key_(std::move(key)), bounds_(bounds) {}

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
        for (const Rest& rest : rests_)
            if (rest.until > s.now() && !(shared && rest.shared))
                s.fail(key_ + " was taken " + std::to_string((rest.until - s.now()) / us) +
                       " us before the end of the minimum of an earlier hold");
        beliefs_[me] = {until, shared};
    }
    void uncertain() { beliefs_.erase(scheduler().self().id); }

    // The running thread releases a hold that has a minimum: nobody else may rely on the lock before its end.
    void rests(bool shared, Nanos until) {
        std::erase_if(rests_, [](const Rest& rest) { return rest.until <= scheduler().now(); });
        if (until > scheduler().now()) rests_.push_back({until, shared});
    }

    // The server lost its data, or a hold was ended by force: the holders could not know.
    void nobody_knows() {
        beliefs_.clear();
        rests_.clear();
        ++upheavals_;
    }
    std::uint64_t upheavals() const { return upheavals_; }

    void waits() { waiting_[scheduler().self().id] = {scheduler().now(), scheduler().self().process}; }
    void waits_no_more() {
        waiting_.erase(scheduler().self().id);
        used_ = scheduler().now();
    }
    void crashed(int process) {
        std::erase_if(waiting_, [&](const auto& w) { return w.second.process == process; });
        std::erase_if(holders_, [&](const auto& h) { return h.second == process; });
    }
    // The running thread was granted the lock, and releases it later, even if it loses it before.
    void holds() {
        nobody_for(scheduler().now());
        holders_[scheduler().self().id] = scheduler().self().process;
    }
    void holds_no_more() {
        holders_.erase(scheduler().self().id);
        used_ = unheld_since_ = scheduler().now();
    }
    void disturbed(Nanos now) { disturbed_ = now; }

    // Notifies of a change of the key on the server.
    void changed(bool exists, Nanos when) {
        if (exists == exists_) return;
        if (!exists) {
            nobody_for(when);
            exists_ = false;
            free_since_ = when;
            ended_by_itself_ = when < scheduler().now();
            return;
        }
        exists_ = true;
        taken_since_ = when;
        const Nanos bound = bounds_.wake_up + (ended_by_itself_ ? bounds_.after_lease : 0);
        for (const auto& [thread, waiting] : waiting_)
            if (const Nanos since = std::max({waiting.since, free_since_, disturbed_}); when - since > bound)
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
    // The server had the lock taken until `when`. Somebody must have held it, or have asked a moment ago.
    void nobody_for(Nanos when) const {
        if (!exists_ || !holders_.empty()) return;
        const Nanos since = std::max({unheld_since_, taken_since_, disturbed_});
        if (when - since > bounds_.wake_up && when - used_ > bounds_.wake_up + bounds_.late_hold)
            scheduler().fail("nobody held " + key_ + ", but it was taken for " + std::to_string((when - since) / ms) +
                             " ms");
    }

    struct Belief {
        Nanos until;
        bool shared;
    };
    struct Rest {
        Nanos until;
        bool shared;
    };
    struct Waiting {
        Nanos since;
        int process;
    };

    const std::string key_;
    const Bounds bounds_;
    std::map<std::uint64_t, Belief> beliefs_;
    std::vector<Rest> rests_;
    std::map<std::uint64_t, Waiting> waiting_;
    std::map<std::uint64_t, int> holders_;  // and their processes
    bool exists_ = false;
    bool ended_by_itself_ = false;  // the last lease ended; nobody released
    Nanos taken_since_ = 0;
    Nanos unheld_since_ = 0;
    Nanos used_ = 0;  // when a thread last asked for it, or released it
    Nanos free_since_ = 0;
    Nanos disturbed_ = 0;
    std::int64_t last_token_ = 0;
    std::uint64_t upheavals_ = 0;
};

}  // namespace sim
