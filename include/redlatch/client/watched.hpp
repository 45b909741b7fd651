// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/core/deadline.hpp"
#include "redlatch/core/ids.hpp"
#include "redlatch/scripts/script.hpp"
#include "redlatch/transport/reply.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {

class Watched;

// One hold that the watchdog shall renew.
struct Renewal {
    std::shared_ptr<Watched> of;
    std::string key;
    OwnerNumber owner;
    std::uint64_t hold;  // which of the owner's holds, so that a late answer meets no later one
    const Script*
        script;       // KEYS: locks; ARGV: lease, then a field for each; answer: for each 1 = renewed, 0 = not held
    OwnerText field;  // the owner, as the hold is called there
    std::optional<Milliseconds> lease =
        std::nullopt;  // none: the watchdog's. A shorter one than is left changes nothing
};

// When Timers will look at whom.
using TimerEntries = std::set<std::pair<Instant, Watched*>>;

// What the background thread knows of a primitive's local state: something that has times at which it wants to be
// looked at, and a channel that it listens to. All members are called on the background thread (renewed() on any),
// with no lock held.
class Watched : public std::enable_shared_from_this<Watched> {
public:
    virtual ~Watched() = default;

    // The time it was scheduled for has come, or will before `horizon`. Holds that are to be renewed until then are
    // appended to `due`; it says itself when it wants to be looked at again.
    virtual void tick(Instant now, Instant horizon, std::vector<Renewal>& due) = 0;

    // The answer to a renewal that was sent at `sent`.
    enum class Renewed { yes, refused, unknown };
    virtual void renewed(const Renewal& renewal, Renewed outcome, Instant sent) = 0;

    virtual void subscribed() = 0;
    virtual void subscription_refused(const Reply& why) = 0;
    virtual void message(std::string_view payload) = 0;
    virtual void disconnected() = 0;

    // The server is another one now: what is held is to be asked for.
    virtual void moved() {}

private:
    friend class Timers;
    std::atomic<Instant> scheduled_{never};  // when Timers will look; written under the mutex there
    // Its entry while it has no time there: made with it, so that to schedule it needs no memory.
    TimerEntries::node_type entry_ = [this] {
        TimerEntries one{{never, this}};
        return one.extract(one.begin());
    }();
};

}  // namespace redlatch
