// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/base/wait_on.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/permit_expirable_semaphore.hpp"
#include "redlatch/semaphore/permit_records.hpp"
#include "redlatch/semaphore/synchronizer_core.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The renewals of a semaphore's permits, and the queries about those with a lease of their own. The mutex of the core guards
// all members.
class PermitRenewals {
public:
    PermitRenewals(CoreOf<PermitProtocol>& core, PermitRecords& records) : core_(core), records_(records) {}

    // Renews all permits that are due, and those that are due soon. So permits that were acquired at different times
    // are renewed together from then on. About those with a lease of their own it asks by a renewal that prolongs
    // nothing.
    void ask_due(std::unique_lock<std::mutex>& lock, Instant now) {
        Milliseconds longest{0};
        for (const PermitRecord& permit : records_)
            if (permit.next_deadline() <= now) longest = std::max(longest, permit.renewal().lease);
        if (longest == Milliseconds(0)) return;
        // All are chosen before any is sent: one that cannot be sent is due again at once, which must not delay others.
        for (const PermitBatch& due :
             records_.take_due(now + longest / 6, core_.session.options().renewal_batch, renewal_ends())) {
            const Instant ends = renewal_ends();
            for (const PermitId& id : due.ids)
                if (PermitRecord* const permit = records_.find(id)) permit->renewal_ends = ends;
            lock.unlock();
            const SendTime sent;
            try {
                Call call = core_.protocol.renew(due.ids, due.kind.lease, core_.session.wanted_until(core_.key()));
                call.replication = due.kind.replication;
                core_.session.post(call, [this, keep = core_.keep(), ids = due.ids, renews = due.kind.prolongs,
                                          sent](const Reply& reply) {
                    core_.session.learn_if_late(core_.key(), sent, reply);
                    renewed_all(ids, renews, reply, sent);
                });
            } catch (...) {  // no memory: retried after a pause
                renewed_all(due.ids, due.kind.prolongs, Reply::of(Reply::Kind::not_sent, std::string()), sent);
            }
            lock.lock();
        }
    }

    // Waits until no other change of this permit's lease, and no renewal that may still take effect, is in flight.
    void wait_until_settled(std::unique_lock<std::mutex>& lock, const PermitId& id) {
        const auto settled_at = [&] {
            PermitRecord* const permit = records_.find(id);
            return !permit ? Instant{} : permit->changing ? never : permit->renewal_ends;
        };
        for (Instant at = settled_at(); at > Clock::now(); at = settled_at()) wait_on(settled_, lock, at);
    }

    void change_ended() noexcept { settled_.notify_all(); }

private:
    // Returns when a renewal that is sent now is void.
    Instant renewal_ends() const { return Clock::now() + core_.session.options().command_timeout + Milliseconds(1); }

    // `renews`: False if it was only a query. By now a permit may no longer be under the watchdog.
    void renewed_all(const std::vector<PermitId>& batch, bool renews, const Reply& reply, const SendTime& sent) {
        const std::lock_guard lock(core_.mutex);
        records_.check_suspension();
        const Instant sent_at = sent.as_of_now();
        const bool whole = reply.kind == Reply::Kind::array && reply.elements.size() == batch.size();
        for (std::size_t i = 0; i < batch.size(); ++i) {
            PermitRecord* const permit = records_.find(batch[i]);
            if (!permit) continue;
            permit->renewing = false;
            if (reply.answered() || reply.is_unsent())
                permit->renewal_ends = permit->unanswered_ends;
            else
                permit->unanswered_ends = permit->renewal_ends;
            if (!whole || !reply.elements[i].is_integer() || (reply.elements[i].integer == 1 && !reply.replicated)) {
                if (permit->watched == renews) permit->ask_at = Clock::now() + pause_after(*permit);
            } else if (reply.elements[i].integer != 1) {
                records_.lose(*permit, "the server no longer has this permit");
            } else if (renews) {
                core_.session.count_renewal();
                if (permit->watched) permit->renewed(sent_at);
            } else if (!permit->watched) {
                permit->ask_at = never;
            }
        }
        records_.erase_lost();
        settled_.notify_all();
        core_.task.schedule();
    }

    // Returns how long to wait with the next renewal or query if one was not answered.
    Milliseconds pause_after(const PermitRecord& permit) const {
        if (permit.watched) return renewal_pause(permit.lease, permit.valid_until - Clock::now());
        return renewal_pause(core_.session.options().watchdog_timeout);
    }

    CoreOf<PermitProtocol>& core_;
    PermitRecords& records_;
    std::condition_variable
        settled_;  // with the mutex: replies to renewals and ends of changes wake wait_until_settled()
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
