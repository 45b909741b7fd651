// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/process.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/lock/hold_keeper.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/quorum/member.hpp"
#include "redlatch/quorum/quorum_acquire.hpp"
#include "redlatch/quorum/quorum_core.hpp"
#include "redlatch/quorum/quorum_holds.hpp"
#include "redlatch/quorum/quorum_releases.hpp"
#include "redlatch/quorum/quorum_rules.hpp"
#include "redlatch/quorum/quorum_votes.hpp"
#include "redlatch/session/background_task.hpp"
#include "redlatch/session/settings.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// One lock over several in this process: it is held while `needed` of its members are held. It is made of parts, and
// passes calls and events on to them. The mutex of QuorumCore guards all of them.
class QuorumState final : public BackgroundTask, public HoldKeeper {
public:
    QuorumState(std::vector<std::shared_ptr<QuorumMember>> members, const QuorumRules& rules, const std::string& name,
                bool is_fork_child)
        : core_(*this, std::move(members), rules, name), is_fork_child_(is_fork_child) {}

    // Returns false in a child that was forked since this object was made.
    bool is_of_this_process() const noexcept override { return process_ == this_process(); }

    // Ends the operations under way, reports all holds as lost, and releases those that belong to no thread. Afterwards
    // no other thread calls a member: operations and objects that have a hold may outlive this lock and its members.
    void close() {
        core_.closing.request_stop();
        {
            std::unique_lock lock(core_.mutex);
            holds_.report_losses();
            // Operations that were served before are holds of objects now.
            core_.idle.wait(lock, [this] { return core_.acquiring == 0; });
        }
        for (const OwnerNumber owner : holds_of_no_thread())
            while (release_level_later(owner)) continue;
        {
            std::unique_lock lock(core_.mutex);
            core_.closed = true;
            core_.idle.wait(lock, [this] { return core_.inside == 0; });
        }
        core_.client().timers().forget(*this);
        core_.client().losses().timers().forget(*this);
    }

    Task<bool> acquire(const LockRequest& request) override { return acquire_.acquire(request); }

    // Releases one level: see QuorumReleases::release(). Throws Error(errc::not_owner) and nothing else.
    std::error_code release(const WhichHold& which) override {
        std::unique_lock lock(core_.mutex);
        if (core_.closed) return errc::hold_lost;
        const InsideMembers inside(core_, lock);
        if (const auto outcome = releases_.release(which.owner)) return *outcome;
        if (is_fork_child_) return errc::hold_lost;
        throw Error(errc::not_owner, core_.name,
                    "only the owner that holds the lock can unlock() it: by default the thread that acquired it");
    }

    Task<std::error_code> release_by(WhichHold which, WaitBy by) override {
        if (by == by_thread) co_return release(which);
        std::unique_lock lock(core_.mutex);
        if (core_.closed) co_return errc::hold_lost;
        const InsideMembers inside(core_, lock);
        std::optional<std::error_code> outcome;
        try {
            outcome = co_await releases_.release_by(which.owner, by);
        } catch (const std::bad_alloc&) {
            outcome = releases_.release(which.owner, Clock::now());
        }
        co_return outcome.value_or(errc::hold_lost);
    }

    void release_later(const WhichHold& which) noexcept override { release_level_later(which.owner); }

    std::string name_as_given() const override { return core_.name; }

    HoldFacts facts(OwnerNumber owner) override { return {owner.sort == OwnerNumber::Sort::object ? owner.number : 0}; }
    Settings settings(OwnerNumber) override { return {}; }

    // --- queries without a command ----------------------------------------------------------------------------

    Instant valid_until(const WhichHold& which) override {
        const std::lock_guard lock(core_.mutex);
        return core_.closed ? Instant::min() : holds_.valid_until(which.owner);
    }

    std::stop_token lost(const WhichHold& which) override {
        const std::lock_guard lock(core_.mutex);
        // close() has told those who asked before.
        return core_.closing.stop_requested() ? lost_token(nullptr) : holds_.lost(which.owner);
    }

    // Recomputes the validity of all holds, because members may have changed.
    void look() {
        const std::lock_guard lock(core_.mutex);
        holds_.look(Clock::now());
    }

    // --- background -------------------------------------------------------------------------------------------

    void on_timer(Instant now, Instant horizon, std::vector<Renewal>&) override {
        std::unique_lock lock(core_.mutex);
        if (!core_.closed) holds_.on_timer(lock, now, horizon);
    }

    void expire(Instant now) override {
        const std::lock_guard lock(core_.mutex);
        if (!core_.closed) holds_.look(now);
    }

private:
    // Returns false if the owner holds nothing, or no level could be released.
    bool release_level_later(OwnerNumber owner) noexcept try {
        std::unique_lock lock(core_.mutex);
        if (core_.closed) return false;
        const InsideMembers inside(core_, lock);
        return releases_.release(owner, Clock::now()).has_value();
    } catch (...) {
        return false;
    }

    std::vector<OwnerNumber> holds_of_no_thread() noexcept try {
        const std::lock_guard lock(core_.mutex);
        return holds_.of_no_thread();
    } catch (...) {
        return {};
    }

    QuorumCore core_;
    QuorumVotes votes_{core_};
    QuorumHolds holds_{core_, votes_};
    QuorumReleases releases_{core_, holds_};
    QuorumAcquire acquire_{core_, votes_, holds_, releases_};
    const bool is_fork_child_;
    const ProcessMark process_ = this_process();
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
