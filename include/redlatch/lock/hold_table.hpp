// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/suspended.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/session/losses.hpp"
#include "redlatch/session/settings.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The hold of one owner on one lock. Reentry stacks levels: each has its own lease or is under the watchdog. The
// watchdog renews the hold as long as one level under the watchdog remains. The hold lasts as long as its longest
// lease.
struct HoldRecord {
    OwnerNumber owner = 0;
    std::uint64_t id = 0;            // new for each hold; identifies its owner to the server
    std::int64_t unsettled = 0;      // server time until which a late copy may acquire the lock for this hold
    std::uint32_t count = 0;         // levels; 0 if the hold is lost
    std::uint32_t dead = 0;          // levels of lost holds whose unlock() is still to come
    std::uint32_t watched_from = 0;  // the lowest level under the watchdog; 0 for none
    std::uint32_t changing = 0;      // commands in flight that add or release a level, but not the last one
    std::int64_t token = 0;          // the fencing token, for locks that have one
    Instant valid_until{};
    Clock::duration notice = Milliseconds(2);
    Instant renew_at{};
    Instant check_at = never;  // for a hold without the watchdog: when to query whether the server still has it
    Instant held_since{};      // when it was acquired, while it counts as held in Stats
    Instant ends_at = never;   // when it ends at the latest: see Lease::at_most()
    Instant stays_until = Instant::min();  // the lock is not free before: see Lease::at_least(); min: no minimum
    Instant may_last = Instant::min();  // end of the longest lease that an unanswered command may have given; min: none
    bool renewing = false;              // True if a renewal, or the query of check_at, is in flight
    std::optional<LossSource> lost;     // created when lost() is first called

    Settings settings{};  // of the object that acquired the first level; unused for a lock over several

    Clock::duration suspended{};  // the machine's suspended time when valid_until was computed: HoldTable::start()

    // Brings the end of the lease and the next renewal nearer by the time for which the machine was suspended since the
    // last call, and returns that time: the steady clock stands still meanwhile, but the lease does not.
    Clock::duration check_suspension() noexcept {
        const Clock::duration grown = suspended_since(suspended);
        suspended += grown;
        if (renew_at != never) renew_at -= grown;
        if (valid_until != Instant::min()) valid_until -= grown;
        if (ends_at != never) ends_at -= grown;
        if (stays_until != Instant::min()) stays_until -= grown;
        return grown;
    }

    HoldFacts facts() const noexcept { return {id, token}; }
    bool live() const noexcept { return count > 0; }
    bool watched() const noexcept { return watched_from > 0; }
    bool doubtful() const noexcept { return may_last != Instant::min(); }

    bool limited() const noexcept { return ends_at != never; }

    // Adds one level, which the server confirmed for a command sent at `sent`. `now`: when its reply was there.
    void enter(Instant sent, const std::optional<Milliseconds>& lease, Milliseconds watchdog_timeout,
               const HoldBounds& bounds = {}, Instant now = Clock::now()) {
        if (live()) check_suspension();
        ++count;
        if (bounds.is_limited()) ends_at = std::min(ends_at, sent + bounds.most);
        const Milliseconds granted = bounds.lease_of(lease, watchdog_timeout);
        if (!lease && !watched()) {
            watched_from = count;
            renew_at = next_renewal(sent, granted, watchdog_timeout);
        }
        valid_until = std::min(std::max(valid_until, redlatch::valid_until(sent, granted)), ends_at);
        // The server has acquired it before the reply was there. Its clock may run slower than ours: see valid_until().
        if (bounds.least > Milliseconds(0))
            stays_until = std::max(
                stays_until, now + bounds.least + std::chrono::duration_cast<Clock::duration>(bounds.least) / 500);
    }

    // Returns the lease for a renewal: no longer than until the hold has to end.
    Milliseconds renewal_lease(Instant now) const noexcept {
        return limited() ? std::min(settings.watchdog_timeout, time_left(now)) : settings.watchdog_timeout;
    }

    // Returns how long the hold may still last if it is limited; at least 1 ms.
    Milliseconds time_left(Instant now) const noexcept {
        return std::max(Milliseconds(1), std::chrono::duration_cast<Milliseconds>(ends_at - now));
    }

    // Returns true if the watchdog has renewed the hold for the last time.
    bool lasts_to_its_end() const noexcept { return watched() && renew_at == never; }

    // Returns true if the lock is not free for others when this hold ends now.
    bool stays(Instant now) const noexcept { return now < stays_until; }

    // Removes one level.
    void leave() {
        if (watched_from == count) watched_from = 0;
        --count;
    }

    // Records that a command sent at `sent` has given the hold a lease.
    void prolong(Instant sent, Milliseconds lease) {
        check_suspension();
        valid_until = std::min(std::max(valid_until, redlatch::valid_until(sent, lease)), ends_at);
    }

    void renewed(Instant sent, Milliseconds lease) {
        prolong(sent, lease);
        renewing = false;
        renew_at = next_renewal(sent, lease, lease);
    }

    // Records that the server still has the hold. Its lease is unchanged.
    void checked() {
        renewing = false;
        check_at = never;
    }

    // Records a renewal or a query without a reply. It is sent again soon.
    void renewal_failed(Instant now, Milliseconds watchdog_timeout) {
        renewing = false;
        unanswered(now + watchdog_timeout);
        if (watched())
            renew_at = now + renewal_pause(watchdog_timeout, valid_until - now);
        else
            check_at = now + renewal_pause(watchdog_timeout);
    }

    // Records that a command got no reply, which may have given the hold a lease until then.
    void unanswered(Instant until) noexcept { may_last = std::max(may_last, until); }

    // Schedules a renewal or query at once, because the server may have lost the hold.
    void doubt(Instant now) { (watched() ? renew_at : check_at) = now; }
    Instant ask_at() const noexcept { return watched() ? renew_at : check_at; }

    // Ends the hold. Its levels become `dead` until their unlock(), which reports the loss.
    void lose() {
        dead += count;
        count = 0;
        watched_from = 0;
        renewing = false;
    }

    // Sets how long before expiry the loss is reported: see notice_of().
    void set_notice(Clock::duration needed, Milliseconds lease) noexcept { notice = notice_of(needed, lease); }
    Instant lost_at() const noexcept { return valid_until - notice; }

    // Returns when to renew a lease that was given by a command sent at `sent`; never if it lasts until the hold has to
    // end. The lease of a limited hold is rounded down, and a command takes its time.
    Instant next_renewal(Instant sent, Milliseconds lease, Milliseconds watchdog_timeout) const noexcept {
        return limited() && sent + lease + Milliseconds(2) >= ends_at ? never : sent + watchdog_timeout / 3;
    }

    // Returns when the background has to handle this hold.
    Instant next_deadline() const noexcept { return renewing ? never : ask_at(); }
};

// Returns the token that is requested when the hold is lost; one that is requested already if there is no hold.
inline std::stop_token lost_token(HoldRecord* hold) {
    if (!hold) return requested_token();
    if (!hold->lost) hold->lost.emplace();
    return hold->lost->get_token();
}

// One owner's hold, as seen from outside: its number, 0 for none, until when it is certain, and its levels.
struct HeldPart {
    std::uint64_t hold = 0;
    Instant until = Instant::min();
    std::uint32_t levels = 0;
};

// The holds of one lock in this process. A flat vector: most locks have at most one holder, and the vector does not
// allocate again once it has grown.
class HoldTable {
public:
    HoldRecord* find(OwnerNumber owner) {
        const auto found =
            std::find_if(holds_.begin(), holds_.end(), [&](const HoldRecord& h) { return h.owner == owner; });
        return found == holds_.end() ? nullptr : &*found;
    }

    // Returns the owner's record with a new hold in it. Creates the record if there is none.
    HoldRecord& start(OwnerNumber owner, std::uint64_t id) {
        HoldRecord* hold = find(owner);
        if (!hold) {
            holds_.emplace_back();
            hold = &holds_.back();
            hold->owner = owner;
        }
        hold->id = id;
        hold->unsettled = 0;
        hold->changing = 0;
        hold->valid_until = {};
        hold->suspended = suspended();
        hold->check_at = never;
        hold->held_since = {};
        hold->ends_at = never;
        hold->stays_until = Instant::min();
        hold->may_last = Instant::min();
        hold->renewing = false;
        hold->lost.reset();
        return *hold;
    }

    void erase(OwnerNumber owner) {
        std::erase_if(holds_, [&](const HoldRecord& h) { return h.owner == owner; });
    }

    // Removes lost holds, except those with levels that are still to be unlocked.
    void erase_lost() {
        std::erase_if(holds_, [](const HoldRecord& h) { return !h.live() && h.dead == 0; });
    }

    // Removes the live part of a released hold. Keeps the record if it has lost levels.
    void finish(HoldRecord& hold) {
        hold.count = 0;
        hold.watched_from = 0;
        hold.lost.reset();
        if (hold.dead == 0) erase(hold.owner);
    }

    // Returns until when a thread of this process certainly holds the lock; a time in the past if none does.
    Instant held_until() const {
        Instant until{};
        for (const HoldRecord& h : holds_)
            if (h.live()) until = std::max(until, h.valid_until);
        return until;
    }

    bool any_live() const {
        return std::any_of(holds_.begin(), holds_.end(), [](const HoldRecord& h) { return h.live(); });
    }

    auto begin() { return holds_.begin(); }
    auto end() { return holds_.end(); }

private:
    std::vector<HoldRecord> holds_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
