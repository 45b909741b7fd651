// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/quorum/member.hpp"
#include "redlatch/quorum/quorum_core.hpp"
#include "redlatch/quorum/quorum_votes.hpp"
#include "redlatch/quorum/round.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The holds of one lock over several: which members take part in each, whose votes count, and until when it is valid.
//
// A member that did not answer at first, or lost its part of the hold, is asked again at each renewal of the watchdog.
// Its vote counts from its reply on at the earliest, and only if the hold never lacked votes until then.
//
// All members are called with the mutex of the quorum; `lock` holds it.
class QuorumHolds {
public:
    // One member's share of an owner's hold, and from when its vote counts.
    struct Share {
        std::uint32_t levels = 0;  // that the member has to release, including those of lost holds
        std::uint64_t hold = 0;    // the member's hold that votes; another one does not
        Instant votes_from = never;
    };

    // How many levels a member has to release when one level ends: of this hold, and of lost ones. `hold`: the member's
    // hold that it may release. It may have another one by now, which is not this lock's.
    struct Ending {
        std::uint64_t hold = 0;
        std::uint32_t leaving = 0, owed = 0;
    };
    using Endings = std::vector<Ending>;  // one for each member

    struct Shares {
        std::vector<Share> of;       // one for each member
        std::vector<Endings> spare;  // one for each level, because ending it must not need memory
        Instant looked_at{};         // when the validity was last computed
        Instant look_again{};        // when it will most likely have changed
        Instant leases_end{};        // the latest lease end of the levels without the watchdog
        Milliseconds drift{};        // allowance for clock drift over its lease
    };

    // Identifies a member's part of a hold.
    struct Part {
        OwnerNumber owner;
        std::uint64_t hold;
        std::size_t member;
    };

    QuorumHolds(QuorumCore& core, QuorumVotes& votes) : core_(core), votes_(votes) {
        ends_.reserve(core_.members.size());
    }

    // --- queries without a command ----------------------------------------------------------------------------

    HoldRecord* live_hold(OwnerNumber owner) {
        HoldRecord* hold = holds_.find(owner);
        if (hold) look_at(*hold, Clock::now());
        return hold && hold->live() ? hold : nullptr;
    }

    // Returns the hold if it is the one of this number, or whichever it is. Throws if it has ended.
    HoldRecord& live_hold_or_throw(OwnerNumber owner, std::optional<std::uint64_t> number) {
        HoldRecord* const hold = core_.closed ? nullptr : live_hold(owner);
        if (!hold || (number && *number != hold->id)) throw Error(errc::hold_lost, core_.name, "the hold has ended");
        return *hold;
    }

    Instant valid_until(OwnerNumber owner) {
        const HoldRecord* hold = live_hold(owner);
        return hold ? hold->valid_until : Instant::min();
    }

    std::stop_token lost(OwnerNumber owner) { return lost_token(live_hold(owner)); }

    // Returns the owners that are objects or numbered by the program.
    std::vector<OwnerNumber> of_no_thread() {
        std::vector<OwnerNumber> owners;
        for (const HoldRecord& hold : holds_)
            if (hold.owner.sort != OwnerNumber::Sort::thread) owners.push_back(hold.owner);
        return owners;
    }

    // --- acquiring --------------------------------------------------------------------------------------------

    // Records the hold, or one more level of it, once the round has enough votes. Returns false if the acquire took
    // longer than the votes last. `begun`: when the round began. `again`: the hold that gets one more level. Throws if that
    // has ended meanwhile.
    bool accept(const LockRequest& request, std::optional<std::uint64_t> again, QuorumRound& round, Instant begun) {
        if (again) live_hold_or_throw(request.owner, again);
        const Instant now = Clock::now();
        const Milliseconds drift = core_.drift_over(request.lease.value_or(core_.longest_watchdog()));
        const auto votes = [&](std::size_t i) { return round.had(i) && round.votes_from(i) <= now; };
        const Instant end = request.lease ? redlatch::valid_until(begun, *request.lease) - drift : never;
        const Instant until = std::min(end, validity(request.owner, drift, votes));
        if (until <= now || core_.closed) return false;

        HoldRecord* hold = live_hold(request.owner);
        const bool first = !hold;
        // Steps that need memory come first, so that a failure changes nothing.
        Shares& shares = shares_[request.owner];
        shares.of.resize(core_.members.size());
        Endings spare(core_.members.size());
        shares.spare.reserve(shares.spare.size() + 1);
        if (first) hold = &holds_.start(request.owner, ++last_hold_);
        shares.spare.push_back(std::move(spare));
        for (std::size_t i = 0; i < core_.members.size(); ++i) {
            if (!round.had(i)) continue;
            Share& share = shares.of[i];
            const std::uint64_t part = core_.members[i]->part(request.owner).hold;
            const bool goes_on = !first && part == share.hold;
            share.votes_from = goes_on ? std::min(share.votes_from, round.votes_from(i)) : round.votes_from(i);
            share.hold = part;
            ++share.levels;
        }
        shares.looked_at = now;
        shares.drift = first ? drift : std::max(shares.drift, drift);
        if (first) shares.leases_end = {};
        if (request.lease) shares.leases_end = std::max(shares.leases_end, end);
        hold->enter(begun, request.lease, core_.client().settings().watchdog_timeout);
        hold->valid_until = end_of(*hold, until);
        round.over = true;
        round.hold = hold->id;
        schedule();
        return true;
    }

    // Handles the answer of a member that was no part of the hold when it began. Returns true if the member is still
    // wanted.
    bool answered(std::unique_lock<std::mutex>& lock, const Part& part, const TryAnswer& answer) {
        HoldRecord* hold = core_.closed ? nullptr : live_hold(part.owner);
        if (!hold || hold->id != part.hold) return false;
        if (answer.kind != TryAnswer::Kind::held) return answer.kind == TryAnswer::Kind::late;
        Share& share = shares_.at(part.owner).of[part.member];
        const HeldPart given = core_.members[part.member]->part(part.owner);
        ++share.levels;
        if (has(share, given, Clock::now())) return true;  // one more level
        share.hold = given.hold;
        share.votes_from = never;
        ask_for_vote(lock, part);
        return true;
    }

    // Lets the part vote from `trusted_from` on, but not before now.
    void let_vote(const Part& part, Instant trusted_from) {
        HoldRecord* hold = live_hold(part.owner);
        if (!hold || hold->id != part.hold) return;
        Share& share = shares_.at(part.owner).of[part.member];
        share.votes_from = std::min(share.votes_from, std::max(trusted_from, Clock::now()));
        look_at(*hold, Clock::now());
        schedule();
    }

    // --- releasing --------------------------------------------------------------------------------------------

    // What the members have to release for one level of an owner.
    struct LevelEnd {
        bool live;  // False if the hold was lost before
        Endings of;
    };

    // Ends one level. Returns nothing if the owner has none.
    std::optional<LevelEnd> leave_level(OwnerNumber owner) {
        HoldRecord* hold = holds_.find(owner);
        if (!hold) return std::nullopt;
        look_at(*hold, Clock::now());
        const bool live = hold->live();
        const std::uint32_t remaining = hold->count + hold->dead - 1;
        Shares& shares = shares_.at(owner);
        LevelEnd end{live, std::move(shares.spare.back())};
        shares.spare.pop_back();
        for (std::size_t i = 0; i < shares.of.size(); ++i) {
            Share& share = shares.of[i];
            end.of[i].hold = share.hold;
            end.of[i].leaving = share.levels > remaining ? 1 : 0;
            // The member also expects releases of the levels that it lost.
            end.of[i].owed = share.levels > remaining + 1 ? share.levels - remaining - 1 : 0;
            share.levels = std::min(share.levels, remaining);
        }
        if (!live)
            --hold->dead;
        else if (hold->count > 1)
            hold->leave();
        else
            holds_.finish(*hold);
        if (remaining == 0) {
            holds_.erase(owner);
            shares_.erase(owner);
        }
        return end;
    }

    // --- the watchdog -----------------------------------------------------------------------------------------

    // Asks again the members that have no part in a hold, at each renewal.
    void on_timer(std::unique_lock<std::mutex>& lock, Instant now, Instant horizon) {
        std::vector<Part> missing, untrusted;
        for (HoldRecord& hold : holds_) {
            look_at(hold, now);
            if (!hold.live() || !hold.watched() || hold.renew_at > horizon) continue;
            const Milliseconds timeout = core_.client().settings().watchdog_timeout;
            hold.renew_at = now + timeout / 3;
            // The watchdogs of the members renew now, too. Their replies will have come by then.
            Shares& shares = shares_.at(hold.owner);
            shares.look_again = now + look_period();
            for (std::size_t i = 0; i < shares.of.size(); ++i) {
                if (!has(shares.of[i], core_.members[i]->part(hold.owner), now))
                    missing.push_back({hold.owner, hold.id, i});
                else if (shares.of[i].votes_from == never)
                    untrusted.push_back({hold.owner, hold.id, i});
            }
        }
        schedule();
        for (const Part& part : untrusted) ask_for_vote(lock, part);
        const InsideMembers inside(core_, lock);
        for (const Part& p : missing) {
            const auto tell = [this, keep = core_.keep(), p](const TryAnswer& answer) {
                std::unique_lock relock(core_.mutex);
                return answered(relock, p, answer);
            };
            core_.members[p.member]->try_in_background(p.owner, std::nullopt, tell, Receiver::background);
        }
    }

    // Recomputes the validity of all holds, because members may have changed.
    void look(Instant now) {
        for (HoldRecord& hold : holds_) look_at(hold, now);
        schedule();
    }

    // Reports all holds as lost: their supervision ends.
    void report_losses() noexcept {
        for (HoldRecord& hold : holds_) report_loss(hold);
    }

private:
    Milliseconds look_period() const {
        return std::max(Milliseconds(10), core_.client().settings().watchdog_timeout / 60);
    }

    void ask_for_vote(std::unique_lock<std::mutex>& lock, const Part& part) try {
        votes_.ask_trust(lock, part.member, [this, part](Instant trusted_from, const std::optional<Error>& why) {
            if (!why) let_vote(part, trusted_from);
        });
    } catch (const std::bad_alloc&) {  // retried at the next renewal
    }

    // --- validity ---------------------------------------------------------------------------------------------

    // Returns until when enough of the voting members are certainly held. Needs no memory.
    template <class Votes>
    Instant validity(OwnerNumber owner, Milliseconds drift, Votes votes) {
        ends_.clear();
        for (std::size_t i = 0; i < core_.members.size(); ++i)
            if (votes(i)) ends_.push_back(core_.members[i]->part(owner).until);
        if (ends_.size() < core_.rules.needed) return Instant::min();
        const auto last = ends_.begin() + static_cast<std::ptrdiff_t>(core_.rules.needed - 1);
        std::nth_element(ends_.begin(), last, ends_.end(), std::greater<>());
        return *last == Instant::min() ? *last : *last - drift;
    }

    static bool lasts(const HoldRecord& hold, Instant now) {
        return hold.valid_until != Instant::min() && hold.lost_at() > now;
    }

    // Recomputes until when a hold is valid. Votes that came since the last time count only if the hold was valid
    // without them all the time. A lost part votes no more, even if the member is acquired again.
    void look_at(HoldRecord& hold, Instant now) {
        if (!hold.live()) return;
        Shares& shares = shares_.at(hold.owner);
        // The caller may have been held up since it read the clock. Votes that came meanwhile must not be missing.
        now = std::max(now, shares.looked_at);
        shares.leases_end -= hold.check_suspension();
        for (std::size_t i = 0; i < shares.of.size(); ++i)
            if (!has(shares.of[i], core_.members[i]->part(hold.owner), now)) shares.of[i].votes_from = never;
        const auto votes_since = [&](Instant then) {
            return
                [&shares, then](std::size_t i) { return shares.of[i].levels > 0 && shares.of[i].votes_from <= then; };
        };
        hold.valid_until = end_of(hold, validity(hold.owner, shares.drift, votes_since(shares.looked_at)));
        if (!lasts(hold, now)) return lose(hold);
        hold.valid_until = end_of(hold, validity(hold.owner, shares.drift, votes_since(now)));
        shares.looked_at = now;
    }

    // Members may still have longer leases from before. These are not relied upon, because they may hide a restarted
    // server.
    Instant end_of(const HoldRecord& hold, Instant until) const {
        return hold.watched() ? until : std::min(until, shares_.at(hold.owner).leases_end);
    }

    static bool has(const Share& share, const HeldPart& part, Instant now) {
        return part.hold != 0 && part.hold == share.hold && part.until > now;
    }

    // Ends a hold that is lost. Keeps the parts that are left until unlock(), which is still to come.
    void lose(HoldRecord& hold) {
        hold.lose();
        report_loss(hold);
        core_.client().raise(Event::Kind::hold_lost, core_.name, "too few of its members are still held");
    }

    void report_loss(HoldRecord& hold) noexcept {
        if (hold.lost) core_.client().losses().report(std::move(*hold.lost));
        hold.lost.reset();
    }

    void schedule() {
        if (core_.closed) return;
        Instant at = never;
        Instant lost_at = never;
        for (const HoldRecord& hold : holds_) {
            if (!hold.live()) continue;
            at = std::min(at, hold.next_deadline());
            const Shares& shares = shares_.at(hold.owner);
            // A member may lose its part earlier, and tells nobody else.
            lost_at = std::min({lost_at, hold.lost_at(), shares.looked_at + look_period()});
            if (shares.look_again > shares.looked_at) at = std::min(at, shares.look_again);
            for (const Share& share : shares.of)
                if (share.votes_from > shares.looked_at) at = std::min(at, share.votes_from);
        }
        if (at != never) core_.client().timers().schedule(core_.task, at);
        if (lost_at != never) core_.client().losses().timers().schedule(core_.task, lost_at);
    }

    QuorumCore& core_;
    QuorumVotes& votes_;
    HoldTable holds_;
    std::uint64_t last_hold_ = 0;
    std::map<OwnerNumber, Shares> shares_;
    std::vector<Instant> ends_;  // scratch memory of validity(), with room for all members
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
