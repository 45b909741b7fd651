// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/quorum/member.hpp"
#include "redlatch/quorum/quorum_core.hpp"
#include "redlatch/quorum/quorum_holds.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Releases the members of one lock over several, all at the same time. A thread that waits for the replies sleeps on the
// condition variable of its releases; each reply wakes it.
class QuorumReleases {
public:
    QuorumReleases(QuorumCore& core, QuorumHolds& holds) : core_(core), holds_(holds) {}

    // Releases one level. Returns no error on success, hold_lost if the hold had already ended, unreachable if too few
    // members could be released yet (the background resends the releases). Returns nothing if the owner holds nothing.
    // Without memory the members' holds end all the same, at the latest with their leases. Waits for the replies until
    // `limit` at most.
    std::optional<std::error_code> release(OwnerNumber owner, Instant limit = never) {
        std::unique_lock lock(core_.mutex);
        const auto end = holds_.leave_level(owner);
        if (!end) return std::nullopt;
        const auto& shares = end->shares->of;
        const Releases releases = give_back(
            lock, owner, [&](std::size_t i) { return shares[i].leaving; }, limit);
        give_back(
            lock, owner, [&](std::size_t i) { return shares[i].owed; }, Clock::now());
        if (!end->live) return errc::hold_lost;
        if (releases.lost > 0) holds_.live_hold(owner);  // the remaining levels may be lost, too
        // Others can acquire the lock as soon as too few members are left with this owner.
        if (releases.asked - releases.done <= core_.members.size() - core_.rules.needed) return std::error_code();
        return releases.lost > 0 ? errc::hold_lost : errc::unreachable;
    }

    struct Releases {
        std::size_t asked = 0;
        std::size_t answered = 0;
        std::size_t done = 0;
        std::size_t lost = 0;
    };

    // Releases `how_many(i)` levels of each member i. Returns the outcome once all have replied, or after node_timeout,
    // or at `limit`. Without memory it does not wait for the replies.
    template <class HowMany>
    Releases give_back(std::unique_lock<std::mutex>& lock, OwnerNumber owner, HowMany how_many, Instant limit = never) {
        struct Shared {
            Releases count;
            std::condition_variable changed;
        };
        Releases none;
        for (std::size_t i = 0; i < core_.members.size(); ++i) none.asked += how_many(i);
        if (none.asked == 0) return none;
        lock.unlock();
        std::shared_ptr<Shared> shared;
        std::function<void(std::error_code)> told = [](std::error_code) {};
        try {
            shared = std::make_shared<Shared>();
            shared->count = none;
            told = [this, keep = core_.keep(), shared](std::error_code ec) {
                const std::lock_guard relock(core_.mutex);
                ++shared->count.answered;
                if (!ec) ++shared->count.done;
                if (ec == errc::hold_lost) ++shared->count.lost;
                shared->changed.notify_all();
            };
        } catch (const std::bad_alloc&) {
            shared.reset();
        }
        for (std::size_t i = 0; i < core_.members.size(); ++i) {
            lock.lock();
            std::size_t levels = how_many(i);
            lock.unlock();
            for (; levels > 0; --levels) give_back(i, owner, told);
        }
        const Instant until = std::min(limit, Clock::now() + core_.rules.node_timeout);
        lock.lock();
        if (!shared) return none;
        core_.await(lock, shared->changed, until, [&] { return shared->count.answered == shared->count.asked; });
        return shared->count;
    }

private:
    void give_back(std::size_t member, OwnerNumber owner, const std::function<void(std::error_code)>& told) {
        try {
            core_.members[member]->release_in_background(owner, told, Receiver::poster);
        } catch (const std::exception&) {  // no memory, no thread: the member retries by itself, or its lease ends
            told(make_error_code(std::errc::not_enough_memory));
        }
    }

    QuorumCore& core_;
    QuorumHolds& holds_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
