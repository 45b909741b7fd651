// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/suspended.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/permit_expirable_semaphore.hpp"
#include "redlatch/semaphore/synchronizer_core.hpp"
#include "redlatch/session/losses.hpp"
#include "redlatch/session/session.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// An object that holds permits: see Permits. The mutex of the semaphore guards it.
struct PermitHolder {
    std::optional<LossSource> lost;  // created when lost() is first called
};

// How a permit is renewed. Those of one kind share a command.
struct PermitRenewal {
    bool prolongs;  // False if the renewal only asks whether the server still has the permit
    Milliseconds lease;
    Replication replication;

    friend bool operator==(const PermitRenewal&, const PermitRenewal&) = default;
};

// A permit on record.
struct PermitRecord {
    PermitId id;
    Instant valid_until;                   // never: without a lease
    Instant ask_at;                        // when to renew it, or to query whether the server still has it
    bool watched;                          // under the watchdog
    Milliseconds lease;                    // unused without a lease
    Replication replication;               // of its renewals
    std::shared_ptr<PermitHolder> holder;  // null if the program has only the id
    bool renewing = false;                 // True if a renewal or a query is in flight
    bool lost = false;                     // then it stays on record until its object gives it back
    Instant renewal_ends{};                // the last renewal can no longer take effect from then on
    Instant unanswered_ends{};             // the same of the last one without a reply
    bool changing = false;                 // True while a call gives it a lease of its own
    Milliseconds doubtful_lease{};         // a late copy of such a call may still give it this lease
    Instant doubtful_until{};              // until then

    // `needed`: how long it takes to report all losses.
    Instant lost_at(Clock::duration needed) const {
        return lost || valid_until == never ? never : valid_until - notice_of(needed, lease);
    }
    Instant next_deadline() const { return lost || renewing ? never : ask_at; }

    bool is_of(const PermitHolder& object) const noexcept { return holder.get() == &object; }
    bool is_unwatched() const noexcept { return lost || !watched; }

    void renewed(Instant sent) {
        const Milliseconds certain = sent < doubtful_until ? std::min(lease, doubtful_lease) : lease;
        valid_until = std::max(valid_until, redlatch::valid_until(sent, certain));
        ask_at = sent + (certain < lease ? std::max(certain / 3, Milliseconds(10)) : lease / 3);
    }

    // A late copy of a call without an answer may shorten the lease until then.
    void doubt(Milliseconds shorter, Instant until) {
        doubtful_lease = Clock::now() < doubtful_until ? std::min(doubtful_lease, shorter) : shorter;
        doubtful_until = std::max(doubtful_until, until);
    }

    PermitRenewal renewal() const {
        return watched ? PermitRenewal{true, lease, replication} : PermitRenewal{false, Milliseconds(1), replication};
    }

    void come_nearer(Clock::duration by) {
        if (valid_until != never) valid_until -= by;
        if (ask_at != never) ask_at -= by;
        if (doubtful_until != Instant{}) doubtful_until -= by;
    }
};

// Permits that were removed from the watchdog.
struct UnwatchedPermits {
    std::vector<PermitRecord> permits;
    Clock::duration suspended;  // what their deadlines were computed with
};

// Tells whether an id is among some. The search begins behind the last one found, because ids and records usually
// have the same order, and there may be thousands.
class AmongPermits {
public:
    explicit AmongPermits(std::span<const PermitId> ids) : ids_(ids) {}

    bool operator()(const PermitId& id) {
        for (std::size_t i = 0; i < ids_.size(); ++i) {
            const std::size_t at = next_ < ids_.size() ? next_ : 0;
            next_ = at + 1;
            if (ids_[at] == id) return true;
        }
        return false;
    }

private:
    const std::span<const PermitId> ids_;
    std::size_t next_ = 0;
};

// Permits that one call renews.
struct PermitBatch {
    PermitRenewal kind;
    std::vector<PermitId> ids;
};

// The permits on record of one semaphore in this process. The mutex of SynchronizerCore guards it.
class PermitRecords {
public:
    explicit PermitRecords(const SynchronizerCore& core) : session_(core.session), key_(core.key()) {}

    auto begin() noexcept { return records_.begin(); }
    auto begin() const noexcept { return records_.begin(); }
    auto end() noexcept { return records_.end(); }
    auto end() const noexcept { return records_.end(); }
    bool empty() const noexcept { return records_.empty(); }
    std::size_t size() const noexcept { return records_.size(); }
    void add(PermitRecord record) { records_.push_back(std::move(record)); }
    template <class Condition>
    void erase_if(Condition condition) {
        std::erase_if(records_, condition);
    }

    // Returns the permits that are due until then, in batches of at most `most`, and marks their renewals as in flight until
    // `ends`.
    std::vector<PermitBatch> take_due(Instant until, std::size_t most, Instant ends) {
        const auto is_due = [until](const PermitRecord& permit) { return permit.next_deadline() <= until; };
        std::vector<PermitBatch> batches;
        for (const PermitRecord& permit : records_) {
            if (!is_due(permit)) continue;
            const PermitRenewal kind = permit.renewal();
            // The latest batch of a kind is the one that is not full.
            auto open =
                std::find_if(batches.rbegin(), batches.rend(), [&](const PermitBatch& b) { return b.kind == kind; });
            if (open == batches.rend() || open->ids.size() == most) {
                batches.push_back({kind, {}});
                open = batches.rbegin();
            }
            open->ids.push_back(permit.id);
        }
        // From here on nothing needs memory.
        for (PermitRecord& permit : records_) {
            if (!is_due(permit)) continue;
            permit.renewing = true;
            permit.renewal_ends = ends;
        }
        return batches;
    }

    // Begins behind the last one found, for the same reason.
    PermitRecord* find(const PermitId& id) {
        for (std::size_t i = 0; i < records_.size(); ++i) {
            const std::size_t at = find_next_ < records_.size() ? find_next_ : 0;
            find_next_ = at + 1;
            if (PermitRecord& permit = records_[at]; !permit.lost && permit.id == id) return &permit;
        }
        return nullptr;
    }

    // Brings all deadlines nearer by the time for which the machine was suspended since the last call: the steady clock
    // stands still meanwhile, but the leases do not. Returns true if there was any.
    bool check_suspension() noexcept {
        const Clock::duration grown = suspended_since(suspended_);
        if (grown == Clock::duration::zero()) return false;
        suspended_ += grown;
        for (PermitRecord& permit : records_) permit.come_nearer(grown);
        return true;
    }

    bool has_lost(const PermitHolder& holder) const noexcept {
        return std::any_of(records_.begin(), records_.end(),
                           [&](const PermitRecord& permit) { return permit.lost && permit.is_of(holder); });
    }

    void report_loss(PermitHolder& holder) noexcept {
        if (holder.lost) session_.losses().report(std::move(*holder.lost));
        holder.lost.reset();
    }

    // Needs no memory but for the event. The caller removes the permit from the record if no object has it.
    void lose(PermitRecord& permit, const char* why) noexcept {
        permit.lost = true;
        if (permit.holder) report_loss(*permit.holder);
        session_.count_lost_hold();
        report(permit.id, why);
    }

    // Returns true if there were such permits.
    template <class Condition>
    bool lose_if(Condition condition, const char* why) {
        bool some = false;
        for (PermitRecord& permit : records_) {
            if (permit.lost || !condition(permit)) continue;
            lose(permit, why);
            some = true;
        }
        erase_lost();
        return some;
    }

    void erase_lost() {
        std::erase_if(records_, [](const PermitRecord& permit) { return permit.lost && !permit.holder; });
    }

    // For how long the machine had been suspended when the deadlines were computed.
    Clock::duration suspended() const noexcept { return suspended_; }

private:
    void report(const PermitId& id, const char* why) noexcept try {
        session_.raise(Event::Kind::hold_lost, key_, "permit " + id.text() + ": " + why);
    } catch (...) {
    }

    Session& session_;
    const std::string& key_;
    std::vector<PermitRecord> records_;
    std::size_t find_next_ = 0;  // where find() begins
    Clock::duration suspended_ = detail::suspended();
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
