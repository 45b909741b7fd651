// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/lock/deliveries.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/lock/lock_core.hpp"
#include "redlatch/session/background_task.hpp"
#include "redlatch/session/lateness.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The life of the holds that the threads of this process have on one lock: they are recorded, renewed by the watchdog,
// and lost. All members are called with the mutex of the lock.
class Leases {
public:
    Leases(LockCore& core, Deliveries& deliveries) : core_(core), deliveries_(deliveries) {}

    // --- records ----------------------------------------------------------------------------------------------

    HoldRecord* live_hold(const WhichHold& which) {
        HoldRecord* hold = core_.holds.find(which.owner);
        if (!hold || !hold->live() || !which.is(hold->id)) return nullptr;
        // Its end is nearer now, so its loss is due earlier.
        if (hold->check_suspension() > Clock::duration::zero()) core_.schedule();
        return hold;
    }

    // `first_lease`: that of a grant, if it is not the wanted one. The first renewal gives it the full lease.
    HoldRecord& record(OwnerNumber owner, std::uint64_t id, Instant sent, std::optional<Milliseconds> lease,
                       std::int64_t token, const Settings& settings, std::optional<Milliseconds> first_lease = {}) {
        HoldRecord& hold = core_.holds.start(owner, id);
        hold.token = token;
        hold.settings = settings;
        hold.enter(sent, lease, first_lease.value_or(settings.watchdog_timeout), settings.bounds);
        hold.set_notice(core_.session.losses().notice(), first_lease.value_or(core_.lease_of(lease, settings)));
        core_.key_holds->taken({core_.kind.family, owner, id, !core_.kind.shared});
        // Releasing it must not need memory.
        core_.outbox.make_room();
        core_.session.count_acquisition();
        core_.session.count_hold();
        hold.held_since = sent;
        core_.schedule();
        if (owner.is_of_program()) core_.task.acquired_for(owner);
        return hold;
    }

    void forget(OwnerNumber owner) {
        if (HoldRecord* hold = core_.holds.find(owner)) finish(*hold);
    }

    // Removes the live part of the hold from this process.
    void finish(HoldRecord& hold) {
        count_end(hold);
        core_.key_holds->ended(hold.id);
        core_.holds.finish(hold);
    }

    // Counts the end of a command that adds or releases a level of a hold: see HoldRecord::changing. Returns false if the
    // hold was lost meanwhile. Otherwise the owner still has it, or another caller has released the last level.
    bool level_changed(OwnerNumber owner, std::uint64_t id) {
        if (const auto lost = std::find(lost_in_change_.begin(), lost_in_change_.end(), id);
            lost != lost_in_change_.end()) {
            lost_in_change_.erase(lost);
            return false;
        }
        if (HoldRecord* hold = core_.holds.find(owner); hold && hold->id == id) --hold->changing;
        return true;
    }

    // Returns the error for a first hold if this process holds the key as another kind of lock.
    std::optional<Error> mixed_kinds() const {
        const std::string_view other = core_.key_holds->other_than(core_.kind.family);
        if (other.empty()) return std::nullopt;
        return Error(errc::wrong_type, core_.key(),
                     "this process uses this name for " + std::string(other) + ", so " +
                         std::string(core_.kind.family) + " cannot use it; choose another name");
    }

    // --- queries without a command ----------------------------------------------------------------------------

    Instant valid_until(const WhichHold& which) {
        const HoldRecord* hold = live_hold(which);
        return hold ? hold->valid_until : Instant::min();
    }

    // Returns the fencing token of the owner's hold, for locks that have one; nothing if the owner holds nothing.
    std::optional<std::int64_t> token(OwnerNumber owner) {
        const HoldRecord* hold = core_.holds.find(owner);
        return hold && hold->live() ? std::optional(hold->token) : std::nullopt;
    }

    // Returns the number of the owner's hold, and until when the hold is certain.
    HeldPart part(OwnerNumber owner) {
        const HoldRecord* hold = live_hold(owner);
        return hold ? HeldPart{hold->id, hold->valid_until, hold->count} : HeldPart{};
    }

    std::stop_token lost(const WhichHold& which) { return lost_token(live_hold(which)); }

    // --- the watchdog -----------------------------------------------------------------------------------------

    // Appends the holds to be renewed until `horizon`, and those about which to ask whether the server still has them.
    void add_due(Instant now, Instant horizon, std::vector<Renewal>& due) {
        for (HoldRecord& hold : core_.holds) {
            if (!hold.live()) continue;
            if (hold.renewing || hold.ask_at() > horizon) continue;
            due.push_back({core_.keep(), core_.key(), hold.owner, hold.id, &core_.kind.renewal,
                           core_.protocol.text(hold.id), hold.watched() ? hold.renewal_lease(now) : Milliseconds(1),
                           !hold.watched(), hold.settings.replication()});
            hold.renewing = true;
        }
    }

    // Applies the outcome of a renewal that was sent at `sent`.
    void renewed(std::unique_lock<std::mutex>& lock, const Renewal& renewal, BackgroundTask::Renewed outcome,
                 Instant sent) {
        using Renewed = BackgroundTask::Renewed;
        HoldRecord* hold = core_.holds.find(renewal.owner);
        if (hold && hold->live() && hold->id == renewal.hold) {
            const Milliseconds timeout = hold->settings.watchdog_timeout;
            switch (outcome) {
                case Renewed::yes:
                    if (renewal.asks)
                        hold->checked();
                    else
                        hold->renewed(sent, renewal.lease);
                    if (!renewal.asks) hold->set_notice(core_.session.losses().notice(), renewal.lease);
                    break;
                case Renewed::refused: lose_at_server(*hold); break;
                case Renewed::unknown: hold->renewal_failed(Clock::now(), timeout); break;
            }
            core_.holds.erase_lost();
            core_.schedule();
        } else if (const auto lost = take_lost_in_renewal(renewal.hold); lost && outcome != Renewed::refused) {
            // The hold is lost here, but this renewal has, or may have, prolonged it on the server. Release it, so that it does
            // not block others for another lease. Wait until `from` first: the owner was notified a little early, and was
            // promised that time.
            const Instant from = Clock::now() + Lateness::longest_notice;
            const Milliseconds lease = std::max(renewal.lease, core_.session.options().watchdog_timeout);
            core_.outbox.add({renewal.hold}, 0, from + lease, from, {}, lost->stays_until);
            core_.schedule();
            deliveries_.deliver(lock);
        }
    }

    // The server may be another one: its holds must be verified.
    void doubt_all() {
        for (HoldRecord& hold : core_.holds)
            if (hold.live()) hold.doubt(Clock::now());
        core_.schedule();
    }

    // --- losing -----------------------------------------------------------------------------------------------

    // Reports as lost the holds that are no longer certain.
    void expire(Instant now) {
        for (HoldRecord& hold : core_.holds) {
            if (!hold.live()) continue;
            hold.check_suspension();
            if (now < hold.lost_at()) continue;
            // The server may keep it for longer. Release it, but only at valid_until: its owner is notified now, a little
            // early, and was promised the rest. A limited hold must not last longer because a renewal was on the way.
            if (core_.kind.outlives_lease || hold.limited() || hold.may_last > hold.valid_until)
                deliveries_.give_back_later(hold, hold.valid_until);
            lose(hold, hold.lasts_to_its_end() ? "it has lasted as long as its acquire allows"
                       : hold.watched()        ? "its lease was not renewed in time"
                                               : "its lease expired");
        }
        core_.holds.erase_lost();
        core_.schedule();
        core_.forget_later();
    }

    // Requests the lost() tokens of all holds: the client ends.
    void abandon() noexcept {
        for (HoldRecord& hold : core_.holds)
            if (hold.live() && hold.lost) core_.session.losses().report(std::move(*hold.lost));
    }

    // Ends a hold that is lost. Its levels await their unlock(), which reports the loss. The caller removes the hold
    // from the table, because it may be iterating over it.
    void lose(HoldRecord& hold, const char* why) {
        // Steps that may run out of memory come first: then the hold is not lost yet, and the background retries.
        if (hold.renewing) lost_in_renewal_.push_back({hold.id, hold.stays_until});
        lost_in_change_.insert(lost_in_change_.end(), hold.changing, hold.id);
        // A copy of the unanswered acquire command may still arrive.
        if (hold.unsettled != 0)
            deliveries_.give_back_later(
                hold, std::max(deliveries_.unsettled_until(hold.unsettled), Clock::now() + Lateness::longest_notice));
        core_.session.lost_levels().add(core_.kind.name, core_.key(), hold.owner, hold.count, hold.facts());
        if (hold.lost) core_.session.losses().report(std::move(*hold.lost));
        count_end(hold);
        core_.key_holds->ended(hold.id);
        hold.count = 0;
        hold.lost.reset();
        core_.report_loss(why);
        core_.task.may_be_free();
    }

    // Ends the hold of one owner, and removes it.
    void lose_now(HoldRecord& hold, const char* why) {
        lose(hold, why);
        core_.holds.erase_lost();
    }

    // The server has answered that it no longer has this hold.
    void lose_at_server(HoldRecord& hold) {
        deliveries_.wake_queue(hold);
        lose_now(hold, "the server no longer has this hold");
    }

private:
    // A hold that was lost while a renewal was in flight.
    struct LostInRenewal {
        std::uint64_t hold;
        Instant stays_until;
    };

    std::optional<LostInRenewal> take_lost_in_renewal(std::uint64_t hold) {
        const auto found = std::find_if(lost_in_renewal_.begin(), lost_in_renewal_.end(),
                                        [&](const LostInRenewal& lost) { return lost.hold == hold; });
        if (found == lost_in_renewal_.end()) return std::nullopt;
        const LostInRenewal lost = *found;
        lost_in_renewal_.erase(found);
        return lost;
    }

    void count_end(HoldRecord& hold) noexcept {
        const Instant since = std::exchange(hold.held_since, {});
        if (since != Instant{}) core_.session.count_hold_time(Clock::now() - since);
    }

    LockCore& core_;
    Deliveries& deliveries_;
    std::vector<LostInRenewal> lost_in_renewal_;
    std::vector<std::uint64_t> lost_in_change_;  // the same, once for each command that changes their level
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
