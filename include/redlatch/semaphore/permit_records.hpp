// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/permit_expirable_semaphore.hpp"
#include "redlatch/session/losses.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
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

    // `needed`: how long it takes to report all losses.
    Instant lost_at(Clock::duration needed) const {
        return lost || valid_until == never ? never : valid_until - notice_of(needed, lease);
    }
    Instant next_deadline() const { return lost || renewing ? never : ask_at; }

    bool is_of(const PermitHolder& object) const noexcept { return holder.get() == &object; }
    bool is_unwatched() const noexcept { return lost || !watched; }

    void renewed(Instant sent) {
        valid_until = std::max(valid_until, redlatch::valid_until(sent, lease));
        ask_at = sent + lease / 3;
    }

    PermitRenewal renewal() const {
        return watched ? PermitRenewal{true, lease, replication} : PermitRenewal{false, Milliseconds(1), replication};
    }

    void come_nearer(Clock::duration by) {
        if (valid_until != never) valid_until -= by;
        if (ask_at != never) ask_at -= by;
    }
};

// Permits that were removed from the watchdog.
struct UnwatchedPermits {
    std::vector<PermitRecord> watches;
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

// Returns the permits that are due until then, in batches of at most `most`, and marks their renewals as in flight until
// `ends`.
inline std::vector<PermitBatch> take_due(std::vector<PermitRecord>& records, Instant until, std::size_t most,
                                         Instant ends) {
    const auto is_due = [until](const PermitRecord& watch) { return watch.next_deadline() <= until; };
    std::vector<PermitBatch> batches;
    for (const PermitRecord& watch : records) {
        if (!is_due(watch)) continue;
        const PermitRenewal kind = watch.renewal();
        // The latest batch of a kind is the one that is not full.
        auto open =
            std::find_if(batches.rbegin(), batches.rend(), [&](const PermitBatch& b) { return b.kind == kind; });
        if (open == batches.rend() || open->ids.size() == most) {
            batches.push_back({kind, {}});
            open = batches.rbegin();
        }
        open->ids.push_back(watch.id);
    }
    // From here on nothing needs memory.
    for (PermitRecord& watch : records) {
        if (!is_due(watch)) continue;
        watch.renewing = true;
        watch.renewal_ends = ends;
    }
    return batches;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
