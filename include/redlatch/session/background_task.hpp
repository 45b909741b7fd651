// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/protocol/call.hpp"
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
inline namespace REDLATCH_ABI {
namespace detail {

class BackgroundTask;

// One hold that the watchdog is to renew.
struct Renewal {
    std::shared_ptr<BackgroundTask> of;
    std::string key;
    OwnerNumber owner;
    std::uint64_t hold;    // which of the owner's holds, so that a late reply never applies to a later hold
    const Script* script;  // see scripts::rlock_renew
    OwnerText field;       // the name of the hold on the server
    Milliseconds lease;    // never shortens the one that it has
    bool asks = false;     // true if it only asks whether the server still has the hold
    std::optional<Replication> replication{};  // none: that of the client
    std::size_t position = 0;                  // among those that are due at a time
};

// The times at which Timers serves each task.
using TimerEntries = std::set<std::pair<Instant, BackgroundTask*>>;

// The entry of a BackgroundTask in one Timers.
class TimerSlot {
public:
    explicit TimerSlot(BackgroundTask& owner) {
        TimerEntries one{{never, &owner}};
        entry_ = one.extract(one.begin());
    }

private:
    friend class Timers;
    std::atomic<Instant> scheduled_{never};  // when Timers serves it; written under the mutex of Timers
    TimerEntries::node_type entry_;          // while it has no time: made here, so that scheduling allocates nothing
};

// The interface through which the threads of a client serve a primitive's local state: it has times at which it needs
// attention, and channels that it listens to. No lock is held during a call. The calling thread is:
//   - the background thread for on_timer() and on_failover()
//   - for subscribed(), subscription_refused(), message() and disconnected() the background thread, or a waiting thread
//     that receives messages itself (Session::watch())
//   - any thread for renewed()
//   - the thread of Losses for expire()
//   - the thread that destroys the session for abandon()
class BackgroundTask : public std::enable_shared_from_this<BackgroundTask> {
public:
    virtual ~BackgroundTask() = default;

    // Called when the scheduled time has come, or will come before `horizon`. Appends the holds to be renewed until
    // then to `due`, and schedules its own next time.
    virtual void on_timer(Instant now, Instant horizon, std::vector<Renewal>& due) = 0;

    // Called on the thread that reports losses, when the time scheduled in Losses::timers() has come. Reports as lost
    // the holds that are no longer certain. No lock is held. It must not wait for anything that waits for a server, and
    // schedules itself only for later instants. If it throws for lack of memory, it is called again in a moment.
    virtual void expire(Instant /* now */) {}

    // Called when the client ends, after the background thread has ended: the last moment to report its holds as lost.
    virtual void abandon() noexcept {}

    // The outcome of a renewal that was sent at `sent`.
    enum class Renewed { yes, refused, unknown };
    virtual void renewed(const Renewal& /* renewal */, Renewed /* outcome */, Instant /* sent */) {}

    // The events of a channel that it listens to.
    virtual void subscribed(const std::string& /* channel */) {}
    virtual void subscription_refused(const std::string& /* channel */, const Reply& /* why */) {}
    virtual void message(const std::string& /* channel */, std::string_view /* payload */) {}
    virtual void disconnected(const std::string& /* channel */) {}

    // A key that it has registered in TrackedKeys may have changed. On the same threads, perhaps on two at a time.
    virtual void key_changed() {}

    // Called after a failover: its holds must be verified on the new server.
    virtual void on_failover() {}

private:
    friend class Timers;
    TimerSlot care_{*this};
    TimerSlot loss_{*this};
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
