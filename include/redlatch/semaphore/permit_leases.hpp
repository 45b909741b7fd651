// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/protocol/permit_expirable_semaphore.hpp"
#include "redlatch/semaphore/request_deliveries.hpp"
#include "redlatch/semaphore/synchronizer_core.hpp"
#include "redlatch/session/release_round.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The part of a semaphore whose permits have leases: the permits that its watchdog renews.
class PermitLeases {
    using Want = PermitProtocol::Want;

public:
    PermitLeases(SynchronizerCore<PermitProtocol>& core, RequestDeliveries<PermitProtocol>& deliveries)
        : core_(core), deliveries_(deliveries) {}

    // --- called by the public class, without the mutex ----------------------------------------------------------

    // A permit under the watchdog.
    struct Watch {
        PermitId id;
        Milliseconds lease;
        Replication replication;
        Instant valid_until;
        Instant renew_at;
        bool renewing = false;
        Instant renewal_ends{};  // an unanswered renewal can no longer take effect from then on

        // The loss is reported a little before expiry, so that the handler runs while the lease still holds.
        Instant lost_at() const { return valid_until - Milliseconds(2); }
        // Renewals of the same kind share a command.
        bool is_renewed_like(const Watch& other) const {
            return lease == other.lease && replication == other.replication;
        }

        Instant next_deadline() const { return renewing ? lost_at() : std::min(renew_at, lost_at()); }
    };

    // Stops renewing these permits, because they are released or get a lease of their own. Returns those that were
    // renewed.
    std::vector<Watch> unwatch(std::span<const PermitId> ids) {
        const std::lock_guard lock(core_.mutex);
        std::vector<Watch> were;
        std::erase_if(watched_, [&](const Watch& watch) {
            const bool found = std::find(ids.begin(), ids.end(), watch.id) != ids.end();
            if (found) were.push_back(watch);
            return found;
        });
        return were;
    }

    // Does the same once no renewal of these permits can take effect any more, so that a late one cannot prolong what
    // comes next. Waits for the replies, or until an unanswered renewal is void: usually command_timeout.
    std::vector<Watch> unwatch_settled(std::span<const PermitId> ids) {
        std::unique_lock lock(core_.mutex);
        const auto settled_at = [&] {
            Instant at{};
            for (const Watch& watch : watched_)
                if (std::find(ids.begin(), ids.end(), watch.id) != ids.end()) at = std::max(at, watch.renewal_ends);
            return at;
        };
        for (Instant at = settled_at(); at > Clock::now(); at = settled_at()) renewals_.wait_until(lock, at);
        lock.unlock();
        return unwatch(ids);
    }

    // Releases permits without waiting. Without memory for that, they end with their leases, as after a crash: they are
    // no longer renewed in any case.
    void release_later(std::span<const PermitId> ids) noexcept try {
        std::unique_lock lock(core_.mutex);
        std::erase_if(watched_,
                      [&](const Watch& watch) { return std::find(ids.begin(), ids.end(), watch.id) != ids.end(); });
        deliveries_.add(lock, PendingRequest::Kind::change, core_.take_lane(),
                        [this, kept = std::vector<PermitId>(ids.begin(), ids.end())](const RequestId& request_id) {
                            return core_.protocol.release(request_id, kept);
                        });
    } catch (...) {
    }

    // Releases all permits under the watchdog without waiting: see Client::release_all().
    void release_all(const std::shared_ptr<ReleaseRound>& round) {
        std::unique_lock lock(core_.mutex);
        while (!watched_.empty()) {
            Want some;
            const std::size_t count = std::min(watched_.size(), releases_a_call);
            for (std::size_t i = 0; i < count; ++i) some.ids.push_back(watched_[watched_.size() - 1 - i].id);
            round->begin(count);
            for (const PermitId& id : some.ids) {
                core_.session.count_lost_hold();
                tell(id, "release_all() gave it back");
                watched_.pop_back();
            }
            deliveries_.add(
                lock, PendingRequest::Kind::change, core_.take_lane(),
                [this, some](const RequestId& request_id) {
                    return core_.protocol.give_back(request_id, std::span(&some, 1));
                },
                [round, count](const std::error_code& refusal) { round->finish(count, refusal); });
        }
    }

    // Renews these permits again, because they were not released after all.
    void watch_again(const std::vector<Watch>& watches) {
        const std::lock_guard lock(core_.mutex);
        for (Watch watch : watches) {
            watch.renewing = false;
            watched_.push_back(watch);
        }
        core_.task.schedule();
    }

    // --- called by Synchronizer, with the mutex -----------------------------------------------------------------

    bool empty() const { return watched_.empty(); }

    void on_timer(std::unique_lock<std::mutex>& lock, Instant now) {
        lose_if([&](const Watch& w) { return now >= w.lost_at(); }, "its lease was not renewed in time");
        renew_due(lock, now);
    }

    void on_failover() {
        for (Watch& watch : watched_) watch.renew_at = Clock::now();
        core_.task.schedule();
    }

    // Treats permits whose lease was over before the reply came as not served, and gives them back.
    void accept(std::unique_lock<std::mutex>& lock, std::span<Want> wants, Instant begun) {
        const Instant now = Clock::now();
        std::vector<Want> too_late;
        for (Want& want : wants) {
            if (!want.served || want.lease.kind == PermitLease::Kind::forever) continue;
            const Milliseconds lease = want.lease.length;
            const Instant until = valid_until(begun, lease);
            if (now >= until) {
                too_late.push_back(want);
                want.served = false;
            } else if (want.lease.kind == PermitLease::Kind::watched) {
                for (const PermitId& id : want.ids)
                    watched_.push_back({id, lease, want.replication, until, begun + lease / 3});
            }
        }
        if (!watched_.empty()) {
            core_.task.schedule();
            core_.session.start_background();
        }
        if (!too_late.empty()) deliveries_.give_back(lock, std::move(too_late));
    }

    // Drops the record of `want`, which no caller claims any more.
    void discard(const Want& want) {
        for (const PermitId& id : want.ids) std::erase_if(watched_, [&](const Watch& w) { return w.id == id; });
    }

    Instant next_deadline() const {
        Instant at = never;
        for (const Watch& watch : watched_) at = std::min(at, watch.next_deadline());
        return at;
    }

private:
    static constexpr std::size_t releases_a_call = 1000;

    // Renews all permits that are due, and those that are due soon. So permits that were acquired at different times
    // are renewed together from then on.
    void renew_due(std::unique_lock<std::mutex>& lock, Instant now) {
        const auto is_due = [](const Watch& w, Instant until) { return !w.renewing && w.renew_at <= until; };
        Milliseconds longest{0};
        for (const Watch& watch : watched_)
            if (is_due(watch, now)) longest = std::max(longest, watch.lease);
        if (longest == Milliseconds(0)) return;
        const Instant soon = now + longest / 6;
        const std::size_t most = core_.session.options().renewal_batch;
        for (;;) {
            const auto next =
                std::find_if(watched_.begin(), watched_.end(), [&](const Watch& w) { return is_due(w, soon); });
            if (next == watched_.end()) return;
            const Watch kind = *next;
            std::vector<PermitId> batch;
            for (Watch& watch : watched_) {
                if (!is_due(watch, soon) || !watch.is_renewed_like(kind) || batch.size() == most) continue;
                batch.push_back(watch.id);
                watch.renewing = true;
                watch.renewal_ends = Clock::now() + core_.session.options().command_timeout + Milliseconds(1);
            }
            lock.unlock();
            const Instant sent = Clock::now();
            try {
                Call call = core_.protocol.renew(batch, kind.lease, core_.session.wanted_until(core_.key()));
                call.replication = kind.replication;
                core_.session.post(call, [this, keep = core_.keep(), batch, sent](const Reply& reply) {
                    renewed_all(batch, reply, sent);
                });
            } catch (...) {  // no memory: retried after a pause
                renewed_all(batch, Reply::of(Reply::Kind::not_sent, std::string()), sent);
            }
            lock.lock();
        }
    }

    void renewed_all(const std::vector<PermitId>& batch, const Reply& reply, Instant sent) {
        const std::lock_guard lock(core_.mutex);
        core_.session.learn_if_late(core_.key(), sent, reply);
        const bool whole = reply.kind == Reply::Kind::array && reply.elements.size() == batch.size();
        for (std::size_t i = 0; i < batch.size(); ++i) {
            const auto watch =
                std::find_if(watched_.begin(), watched_.end(), [&](const Watch& w) { return w.id == batch[i]; });
            if (watch == watched_.end()) continue;
            watch->renewing = false;
            if (reply.answered() || reply.is_unsent()) watch->renewal_ends = {};
            if (!whole || !reply.elements[i].is_integer() || (reply.elements[i].integer == 1 && !reply.replicated)) {
                watch->renew_at = Clock::now() + std::max(Milliseconds(10), watch->lease / 60);
            } else if (reply.elements[i].integer == 1) {
                core_.session.count_renewal();
                watch->valid_until = std::max(watch->valid_until, valid_until(sent, watch->lease));
                watch->renew_at = sent + watch->lease / 3;
            } else {
                lose_if([&](const Watch& w) { return w.id == batch[i]; }, "the server no longer has this permit");
            }
        }
        renewals_.notify_all();
        core_.task.schedule();
    }

    template <class Condition>
    void lose_if(Condition condition, const char* why) {
        std::erase_if(watched_, [&](const Watch& watch) {
            if (!condition(watch)) return false;
            core_.session.count_lost_hold();
            tell(watch.id, why);
            return true;
        });
    }

    void tell(const PermitId& id, const char* why) noexcept try {
        core_.session.raise(Event::Kind::hold_lost, core_.key(), "permit " + id.text() + ": " + why);
    } catch (...) {
    }

    SynchronizerCore<PermitProtocol>& core_;
    RequestDeliveries<PermitProtocol>& deliveries_;
    std::vector<Watch> watched_;
    std::condition_variable renewals_;  // with the mutex: each reply to a renewal wakes unwatch_settled()
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
