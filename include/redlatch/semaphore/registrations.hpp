// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/suspended.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/permit_id.hpp"
#include "redlatch/semaphore/synchronizer_core.hpp"
#include "redlatch/session/release_round.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The part of a synchronizer whose callers register on the server: an arrival at a barrier, a waiter of a condition variable.
// A registration ends with its lease unless this process renews it. This part keeps the leases under the watchdog, and drops
// from its record what the server no longer has. `Protocol` has renew(ids, lease, until), whose reply has 1 for each id that
// was renewed and 0 for the others.
template <class Protocol>
class Registrations {
public:
    template <class Deliveries>
    Registrations(CoreOf<Protocol>& core, Deliveries&) : core_(core) {}

    // --- called by the public class, without the mutex ----------------------------------------------------------

    // Makes room, so that record() cannot fail. Starts the thread that renews.
    void make_room() {
        core_.session.start_background();
        const std::lock_guard lock(core_.mutex);
        records_.reserve(records_.size() + 1);
    }

    // Renews this from now on. It was registered by a command that was sent at `sent`.
    void record(const PermitId& id, Milliseconds lease, Instant sent) {
        const std::lock_guard lock(core_.mutex);
        records_.push_back({id, lease, sent + lease / 3});
        core_.task.schedule();
    }

    // Renews it no longer.
    void forget(const PermitId& id) noexcept {
        const std::lock_guard lock(core_.mutex);
        std::erase_if(records_, [&](const Record& record) { return record.id == id; });
        if (records_.empty()) core_.forget_later();
    }

    // --- called by Synchronizer, with the mutex; what the leases of permits need besides is nothing here -----------

    bool empty() const { return records_.empty(); }
    void release_all(const std::shared_ptr<ReleaseRound>&) {}
    Instant next_loss() const { return never; }
    void prepare() {}
    template <class Want>
    void discard(const Want&) {}
    void expire(Instant) {}
    bool reads_clock() { return false; }

    Instant next_deadline() const {
        Instant at = never;
        for (const Record& record : records_)
            if (!record.renewing) at = std::min(at, record.renew_at);
        return at;
    }

    void on_timer(std::unique_lock<std::mutex>& lock, Instant now) {
        for (;;) {
            std::vector<PermitId> ids;
            Milliseconds lease{0};
            for (Record& record : records_) {
                if (record.renewing || record.renew_at > now || ids.size() == core_.session.options().renewal_batch ||
                    (!ids.empty() && record.lease != lease))
                    continue;
                ids.push_back(record.id);
                lease = record.lease;
                record.renewing = true;
            }
            if (ids.empty()) return;
            lock.unlock();
            renew(std::move(ids), lease);
            lock.lock();
        }
    }

    // The new server may not have all of them.
    void on_failover() {
        for (Record& record : records_) record.renew_at = Clock::now();
        core_.task.schedule();
    }

private:
    struct Record {
        PermitId id;
        Milliseconds lease;
        Instant renew_at;
        bool renewing = false;  // True if a renewal is in flight
    };

    void renew(std::vector<PermitId> ids, Milliseconds lease) {
        const SendTime sent;
        try {
            const Call call = core_.protocol.renew(ids, lease, core_.session.wanted_until(core_.key()));
            core_.session.post(call, [this, keep = core_.keep(), ids, sent](const Reply& reply) {
                core_.session.learn_if_late(core_.key(), sent, reply);
                renewed(ids, reply, sent.as_of_now());
            });
        } catch (...) {  // no memory: tried again after a pause
            renewed(ids, Reply::of(Reply::Kind::not_sent, std::string()), sent.at());
        }
    }

    void renewed(const std::vector<PermitId>& ids, const Reply& reply, Instant sent) {
        std::unique_lock lock(core_.mutex);
        const bool whole = reply.kind == Reply::Kind::array && reply.elements.size() == ids.size();
        bool is_any_gone = false;
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const auto record =
                std::find_if(records_.begin(), records_.end(), [&](const Record& one) { return one.id == ids[i]; });
            if (record == records_.end()) continue;
            record->renewing = false;
            if (!whole || !reply.elements[i].is_integer()) {
                record->renew_at = Clock::now() + renewal_pause(record->lease);
            } else if (reply.elements[i].integer != 1) {
                records_.erase(record);
                is_any_gone = true;
            } else {
                core_.session.count_renewal();
                record->renew_at = sent + record->lease / 3;
            }
        }
        if (records_.empty()) core_.forget_later();
        core_.task.schedule();
        lock.unlock();
        // Who waits for it asks what has become of it.
        if (is_any_gone) core_.task.message(core_.protocol.channel(), {});
    }

    CoreOf<Protocol>& core_;
    std::vector<Record> records_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
