// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/suspended.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/permit_expirable_semaphore.hpp"
#include "redlatch/protocol/permit_lease.hpp"
#include "redlatch/protocol/request_marks.hpp"
#include "redlatch/semaphore/permit_records.hpp"
#include "redlatch/semaphore/permit_renewals.hpp"
#include "redlatch/semaphore/request_deliveries.hpp"
#include "redlatch/semaphore/synchronizer_core.hpp"
#include "redlatch/session/losses.hpp"
#include "redlatch/session/release_round.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The part of a semaphore whose permits have leases: it records them for the watchdog, and reports losses. On record are
// the permits under the watchdog and all permits of objects.
class PermitLeases {
    using Want = PermitProtocol::Want;

public:
    PermitLeases(CoreOf<PermitProtocol>& core, RequestDeliveries& deliveries) : core_(core), deliveries_(deliveries) {}

    // --- called by the public class, without the mutex ----------------------------------------------------------

    // Stops renewing these permits, because they are released or get a lease of their own. Returns those that were on
    // record. Permits of objects stay on record: they may expire meanwhile.
    UnwatchedPermits unwatch(std::span<const PermitId> ids) {
        const std::lock_guard lock(core_.mutex);
        return take_off(ids);
    }

    // Does the same for a call that changes a lease, when no other one is in flight and no late renewal can prolong the new
    // lease. Waits for the replies, or until a renewal is void: usually command_timeout. change_ended() has to follow.
    UnwatchedPermits begin_change(const PermitId& id) {
        std::unique_lock lock(core_.mutex);
        renewals_.wait_until_settled(lock, id);
        UnwatchedPermits were = take_off(std::span(&id, 1));
        if (PermitRecord* const permit = records_.find(id)) permit->changing = true;
        return were;
    }

    void change_ended(const PermitId& id) noexcept {
        const std::lock_guard lock(core_.mutex);
        if (PermitRecord* const permit = records_.find(id)) permit->changing = false;
        renewals_.change_ended();
    }

    // A late copy of a call that got no answer may still give the permit this lease.
    void doubt_lease(const PermitId& id, const PermitLease& lease) {
        if (lease.kind != PermitLease::Kind::limited) return;
        const std::lock_guard lock(core_.mutex);
        records_.check_suspension();
        const Milliseconds wanted = RequestMarks::longest_ttl(core_.session.options()) / 2;
        if (PermitRecord* const permit = records_.find(id))
            permit->doubt(lease.length, deadline_after(Clock::now(), wanted));
    }

    // Renews these permits again, because they were not released after all. `restores_validity`: True if they are valid
    // for as long as before.
    void watch_again(const UnwatchedPermits& were, bool restores_validity) {
        const std::lock_guard lock(core_.mutex);
        records_.check_suspension();
        const Clock::duration slept = records_.suspended() - were.suspended;
        for (PermitRecord was : were.permits) {
            was.renewing = was.changing = false;
            was.come_nearer(slept);
            // The lease may be shorter than before by now.
            if (!restores_validity && was.watched) was.ask_at = Clock::now();
            if (!was.holder) {
                records_.add(was);
            } else if (PermitRecord* const permit = records_.find(was.id)) {
                permit->watched = was.watched;
                permit->ask_at = std::min(permit->ask_at, was.ask_at);  // a failover may have made it due
                permit->lease = was.lease;
                if (restores_validity) permit->valid_until = was.valid_until;
            }
        }
        core_.task.schedule();
    }

    // Reports to their objects that these permits are gone.
    void lose(std::span<const PermitId> ids, const char* why) {
        const std::lock_guard lock(core_.mutex);
        records_.lose_if([among = AmongPermits(ids)](const PermitRecord& permit) mutable { return among(permit.id); },
                         why);
    }

    // Records a lease of its own that a permit gets by a command sent at `sent`. While the command is in flight
    // (`in_flight`), the permit is certain only as long as both leases are.
    void change_lease(const PermitId& id, const SendTime& sent, const PermitLease& lease, bool in_flight) {
        const std::lock_guard lock(core_.mutex);
        records_.check_suspension();
        PermitRecord* const permit = records_.find(id);
        if (!permit) return;
        const Instant until = end_of(lease, sent);
        permit->valid_until = in_flight ? std::min(permit->valid_until, until) : until;
        if (lease.kind == PermitLease::Kind::limited) permit->lease = lease.length;
        core_.task.schedule();
    }

    // Releases permits without waiting. Without memory for that, they end with their leases, as after a crash: they are
    // no longer renewed in any case.
    void release_later(std::span<const PermitId> ids) noexcept try {
        std::unique_lock lock(core_.mutex);
        AmongPermits among(ids);
        records_.lose_if([&](const PermitRecord& permit) { return permit.holder && among(permit.id); }, released_by_id);
        records_.erase_if([&](const PermitRecord& permit) { return !permit.holder && among(permit.id); });
        deliveries_.add(lock, PendingRequest::Kind::change, core_.take_lane(),
                        [this, kept = std::vector<PermitId>(ids.begin(), ids.end())](const RequestId& request_id) {
                            return core_.protocol.release(request_id, kept);
                        });
    } catch (...) {
    }

    // Releases all permits under the watchdog without waiting: see Client::release_all().
    void release_all(const std::shared_ptr<ReleaseRound>& round) {
        std::unique_lock lock(core_.mutex);
        for (;;) {
            Want some;
            for (const PermitRecord& permit : records_)
                if (permit.watched && !permit.lost && some.ids.size() < releases_a_call) some.ids.push_back(permit.id);
            const std::size_t count = some.ids.size();
            if (count == 0) return;
            round->begin(count);
            std::size_t left = count;
            records_.lose_if([&](const PermitRecord& permit) { return permit.watched && left > 0 && left-- > 0; },
                             "release_all() gave it back");
            deliveries_.add(
                lock, PendingRequest::Kind::change, core_.take_lane(),
                [this, some](const RequestId& request_id) {
                    return core_.protocol.give_back(request_id, std::span(&some, 1));
                },
                [round, count](const std::error_code& refusal) { round->finish(count, refusal); });
        }
    }

    // --- for objects that hold permits, without the mutex -------------------------------------------------------

    // Returns until when all permits of the object are certain; Instant::min() if one is lost.
    Instant valid_until(const PermitHolder& holder) {
        const std::lock_guard lock(core_.mutex);
        if (records_.check_suspension()) core_.task.schedule();
        Instant until = never;
        for (const PermitRecord& permit : records_)
            if (permit.is_of(holder)) until = std::min(until, permit.lost ? Instant::min() : permit.valid_until);
        return until;
    }

    // Returns the token that is requested when one of the object's permits is lost.
    std::stop_token lost(PermitHolder& holder) {
        const std::lock_guard lock(core_.mutex);
        if (records_.check_suspension()) core_.task.schedule();
        if (records_.has_lost(holder)) return requested_token();
        if (!holder.lost) holder.lost.emplace();
        return holder.lost->get_token();
    }

    // Gives these permits to another object.
    void split(std::span<const PermitId> ids, const std::shared_ptr<PermitHolder>& to) noexcept {
        const std::lock_guard lock(core_.mutex);
        AmongPermits among(ids);
        for (PermitRecord& permit : records_)
            if (among(permit.id)) permit.holder = to;
    }

    // Gives all permits of one object to another. The tokens of both speak for these permits from then on.
    void merge(PermitHolder& from, const std::shared_ptr<PermitHolder>& to) noexcept {
        const std::lock_guard lock(core_.mutex);
        for (PermitRecord& permit : records_)
            if (permit.holder.get() == &from) permit.holder = to;
        if (std::optional<LossSource> lost = std::exchange(from.lost, std::nullopt)) {
            if (to->lost)
                to->lost->merge(*std::move(lost));
            else
                to->lost = std::move(lost);
        }
        if (records_.has_lost(*to)) records_.report_loss(*to);
    }

    // Removes the permits of an object from the record: it gives them back. Its tokens are not requested any more.
    void forget(const PermitHolder& holder) noexcept {
        const std::lock_guard lock(core_.mutex);
        records_.erase_if([&](const PermitRecord& permit) { return permit.is_of(holder); });
        if (records_.empty()) core_.forget_later();
    }

    // The object hands its permits over to whoever has their ids. Those under the watchdog stay on record.
    void detach(const PermitHolder& holder) noexcept {
        const std::lock_guard lock(core_.mutex);
        records_.erase_if([&](const PermitRecord& permit) { return permit.is_of(holder) && permit.is_unwatched(); });
        for (PermitRecord& permit : records_)
            if (permit.is_of(holder)) permit.holder.reset();
        if (records_.empty()) core_.forget_later();
    }

    // Gives back those of the permits that the server still has, without waiting. Without memory for that, they end
    // with their leases. The caller has removed them from the record.
    void give_back_later(std::vector<PermitId> ids) noexcept try {
        std::vector<Want> wants(1);
        wants.front().ids = std::move(ids);
        std::unique_lock lock(core_.mutex);
        deliveries_.give_back(lock, core_.protocol, std::move(wants));
    } catch (...) {
    }

    // --- called by Synchronizer, with the mutex -----------------------------------------------------------------

    bool empty() const { return records_.empty(); }

    // Starts what reporting a loss needs. Call it before there is anything to lose.
    void prepare() { core_.session.start_losses(); }

    void on_timer(std::unique_lock<std::mutex>& lock, Instant now) { renewals_.ask_due(lock, now); }

    // Reports as lost the permits that are no longer certain.
    void expire(Instant now) {
        records_.check_suspension();
        const auto is_over = [now, needed = notice()](const PermitRecord& permit) {
            return now >= permit.lost_at(needed);
        };
        const bool unrenewed =
            records_.lose_if([&](const PermitRecord& permit) { return permit.watched && is_over(permit); },
                             "its lease was not renewed in time");
        const bool expired = records_.lose_if(is_over, "its lease expired");
        core_.task.schedule();
        if (unrenewed || expired) core_.forget_later();
    }

    void on_failover() {
        for (PermitRecord& permit : records_) permit.ask_at = Clock::now();
        core_.task.schedule();
    }

    // Records what was acquired by a request that was first sent at `sent`. Treats permits whose lease was over before
    // the reply came as not served, and gives them back.
    void accept(std::unique_lock<std::mutex>& lock, std::span<Want> wants, const SendTime& sent) {
        const Instant now = Clock::now();
        records_.check_suspension();
        std::vector<Want> too_late;
        for (Want& want : wants) {
            if (!want.served) continue;
            const Instant until = end_of(want.lease, sent);
            if (now >= until) {
                too_late.push_back(want);
                want.served = false;
            } else {
                record(want, until, sent.as_of_now() + want.lease.length / 3);
            }
        }
        look_after_records();
        if (!too_late.empty()) deliveries_.give_back(lock, core_.protocol, std::move(too_late));
    }

    // Does the same for permits that another client has taken for `want`. Returns false if they are not certain: then they
    // are to be given back. The lease counts from the instant of the grant, not from the receipt of the message, which
    // may have been on its way for long.
    bool accept(Want& want, const PermitGrant& grant) noexcept try {
        records_.check_suspension();
        const Instant now = Clock::now();
        const std::optional<Instant> granted =
            core_.session.server_clock().instant_of(core_.session.transport().route(core_.key()), grant.at, now);
        if (!granted) {
            // The next grant is to count: the clock may have jumped, and in a cluster no other reading vouches for the node
            // of this slot.
            reads_clock_ = true;
            core_.session.timers().schedule(core_.task, now);
            return false;
        }
        const Instant since = *granted, until = redlatch::valid_until(since, grant.lease);
        if (now >= until) return false;
        record(want, until, since + grant.lease / 3);
        look_after_records();
        want.served = true;
        return true;
    } catch (...) {
        discard(want);
        return false;
    }

    // Returns true if the server's clock has to be read.
    bool reads_clock() noexcept { return std::exchange(reads_clock_, false); }

    // Returns true if a caller of this process has these permits.
    bool holds(const PermitGrant& grant) {
        return std::any_of(grant.ids.begin(), grant.ids.end(), [&](const PermitId& id) { return records_.find(id); });
    }

    // Returns true if the lease of a grant lasts on, most likely, for a while.
    bool lasts(const PermitGrant& grant) const {
        const auto server_now =
            core_.session.server_clock().roughly_at(core_.session.transport().route(core_.key()), Clock::now());
        return server_now && *server_now + 500 < grant.at + grant.lease.count();
    }

    // Drops the record of `want`, which no caller claims any more.
    void discard(const Want& want) {
        AmongPermits among(want.ids);
        records_.erase_if([&](const PermitRecord& permit) { return among(permit.id); });
    }

    // Returns when the background has to renew or query a permit.
    Instant next_deadline() const {
        Instant at = never;
        for (const PermitRecord& permit : records_) at = std::min(at, permit.next_deadline());
        return at;
    }

    // Returns when the next loss is due.
    Instant next_loss() const {
        const Clock::duration needed = notice();
        Instant at = never;
        for (const PermitRecord& permit : records_) at = std::min(at, permit.lost_at(needed));
        return at;
    }

    static constexpr const char* released_by_id = "it was released by its id";

private:
    static constexpr std::size_t releases_a_call = 1000;

    // Records the permits that a want has got, if they are to be renewed, or an object has to learn of their loss.
    void record(const Want& want, Instant until, Instant renew_at) {
        const bool watched = want.lease.kind == PermitLease::Kind::watched;
        if (!watched && !want.holder) return;
        if (!watched) renew_at = never;
        for (const PermitId& id : want.ids)
            records_.add({id, until, renew_at, watched, want.lease.length, want.replication, want.holder});
    }

    void look_after_records() {
        if (records_.empty()) return;
        core_.task.schedule();
        core_.session.start_background();
    }

    // Removes permits from the watchdog, and those of no object from the record. Without memory it changes nothing.
    UnwatchedPermits take_off(std::span<const PermitId> ids) {
        records_.check_suspension();
        UnwatchedPermits were{{}, records_.suspended()};
        were.permits.reserve(records_.size());
        AmongPermits among(ids);
        for (PermitRecord& permit : records_) {
            if (permit.lost || !among(permit.id)) continue;
            were.permits.push_back(permit);
            permit.watched = false;
            permit.ask_at = never;
        }
        records_.erase_if([&](const PermitRecord& permit) { return !permit.holder && among(permit.id); });
        return were;
    }

    Clock::duration notice() const { return core_.session.losses().notice(records_.size()); }
    static Instant end_of(const PermitLease& lease, const SendTime& sent) {
        return lease.kind == PermitLease::Kind::forever ? never : redlatch::valid_until(sent.as_of_now(), lease.length);
    }

    CoreOf<PermitProtocol>& core_;
    RequestDeliveries& deliveries_;
    PermitRecords records_{core_};
    PermitRenewals renewals_{core_, records_};
    bool reads_clock_ = false;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
