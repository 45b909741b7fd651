// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/error.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/lock/outbox.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/lock_protocol.hpp"
#include "redlatch/session/key_holds.hpp"
#include "redlatch/session/named_state.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/session/settings.hpp"
#include "redlatch/wait/patience.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The state of a lock, as its parts see it.
class LockTask : public NamedState {
public:
    // Called with the mutex of the lock when the lock may be free for a thread of this process, for a reason that the
    // server does not publish.
    virtual void may_be_free() = 0;

    // Called with the mutex of the lock when an Owner has a new hold: its other callers that wait get a level of it.
    virtual void acquired_for(OwnerNumber owner) = 0;
};

// What the parts of one lock in this process share.
//
// Each first hold has a number of its own, by which the server knows its owner. So a late command names a hold that is
// gone. Only this process knows which thread has which hold.
//
// mutex guards all members except the constant ones, and the parts. It is never held during a command, nor while user
// code runs.
struct LockCore {
    LockCore(LockTask& state, Session& of, std::unique_ptr<LockProtocol> by)
        : task(state), session(of), owned_protocol(std::move(by)), key_holds(of.key_holds(key())) {}

    const std::string& key() const noexcept { return protocol.key(); }
    std::uint64_t next_number() { return session.next_request() | (protocol.may_not_queue() ? grants_nothing : 0); }

    // Keeps the lock's state alive, for completions.
    std::shared_ptr<BackgroundTask> keep() { return task.shared_from_this(); }

    // Returns the lease of a level: its own, or the watchdog's, within the bounds of its acquire.
    static Milliseconds lease_of(const std::optional<Milliseconds>& lease, const Settings& settings) {
        return settings.bounds.lease_of(lease, settings.watchdog_timeout);
    }

    Claim claim_of(OwnerNumber owner, std::uint64_t number, std::uint32_t count,
                   const std::optional<Milliseconds>& lease, const Settings& settings) const {
        Claim claim{owner, number, count, lease_of(lease, settings)};
        if (kind.shared) claim.writer = key_holds->writer_of(owner);
        return claim;
    }

    void report_loss(std::string_view why) noexcept {
        session.count_lost_hold();
        session.raise(Event::Kind::hold_lost, key(), why);
    }

    // Sets the times at which the background serves the lock.
    void schedule() {
        Instant at = outbox.next_deadline();
        Instant lost_at = never;
        for (const HoldRecord& hold : holds) {
            if (!hold.live()) continue;
            at = std::min(at, hold.next_deadline());
            lost_at = std::min(lost_at, hold.lost_at());
        }
        if (at != never) session.timers().schedule(task, at);
        if (lost_at != never) session.losses().timers().schedule(task, lost_at);
    }

    // Lets the session drop the state when no one uses it any more. That is not urgent.
    void forget_later() { session.timers().schedule(task, Clock::now() + Milliseconds(1000)); }

    void end_in_flight() {
        --in_flight;
        forget_later();
    }

    LockTask& task;
    Session& session;
    const std::unique_ptr<LockProtocol> owned_protocol;
    LockProtocol& protocol = *owned_protocol;
    const LockKind& kind = protocol.kind;
    const std::shared_ptr<KeyHolds> key_holds;

    std::mutex mutex;
    HoldTable holds;
    Outbox outbox;
    Patience patience;
    bool releasing = false;     // true while a last release or a hand-over is in flight
    bool reads_clock = false;   // true if the background has to read the server's clock, for the next grant
    std::size_t in_flight = 0;  // tries and releases in flight in the background
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
