// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
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
inline namespace v0_1 {

class BackgroundTask;

// One hold that the watchdog shall renew.
struct Renewal {
    std::shared_ptr<BackgroundTask> of;
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
using TimerEntries = std::set<std::pair<Instant, BackgroundTask*>>;

// The place of a BackgroundTask in one Timers.
class TimerSlot {
public:
    explicit TimerSlot(BackgroundTask& owner) {
        TimerEntries one{{never, &owner}};
        entry_ = one.extract(one.begin());
    }

private:
    friend class Timers;
    std::atomic<Instant> scheduled_{never};  // when Timers will look; written under the mutex there
    TimerEntries::node_type entry_;  // while it has no time there: made here, so that to schedule needs no memory
};

// What the threads of a client know of a primitive's local state: something that has times at which it wants to be
// looked at, and a channel that it listens to. All members but expire() are called on the background thread (renewed()
// on any), with no lock held.
class BackgroundTask : public std::enable_shared_from_this<BackgroundTask> {
public:
    virtual ~BackgroundTask() = default;

    // The time it was scheduled for has come, or will before `horizon`. Holds that are to be renewed until then are
    // appended to `due`; it says itself when it wants to be looked at again.
    virtual void tick(Instant now, Instant horizon, std::vector<Renewal>& due) = 0;

    // The time has come for which it was scheduled in Losses::timers(): what it cannot vouch for any more is lost. On
    // the thread that tells losses, with no lock held. It waits for nothing that waits for a server, and schedules
    // itself for later instants only. When it throws, for want of memory, it is called again in a moment.
    virtual void expire(Instant /* now */) {}

    // The client ends, and all that is held with it: the last moment to tell that it is lost. The background thread has
    // ended.
    virtual void abandon() noexcept {}

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
    TimerSlot care_{*this};
    TimerSlot loss_{*this};
};

}  // namespace v0_1
}  // namespace redlatch
