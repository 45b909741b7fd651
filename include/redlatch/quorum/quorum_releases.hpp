// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/quorum/member.hpp"
#include "redlatch/quorum/quorum_core.hpp"
#include "redlatch/quorum/quorum_holds.hpp"
#include "redlatch/session/continuations.hpp"

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
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

// Releases the members of one lock over several, all at the same time. A caller that waits for the replies sleeps in the
// slot of its releases; each reply wakes it.
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
        const Sent leaving = send(lock, owner, by_thread, end->of, &QuorumHolds::Ending::leaving);
        const Outcome outcome = wait_for(lock, leaving, limit);
        const Sent owed = send(lock, owner, by_thread, end->of, &QuorumHolds::Ending::owed);
        wait_for(lock, owed, Clock::now());
        return result(owner, end->live, leaving, outcome);
    }

    // Does the same, and waits for the replies without a thread. Throws std::bad_alloc only if it has released nothing.
    Task<std::optional<std::error_code>> release_by(OwnerNumber owner, WaitBy by) {
        std::unique_lock lock(core_.mutex);
        const auto end = holds_.leave_level(owner);
        if (!end) co_return std::nullopt;
        const Sent leaving = send(lock, owner, by, end->of, &QuorumHolds::Ending::leaving);
        send(lock, owner, by, end->of, &QuorumHolds::Ending::owed);
        Outcome replies;
        try {
            replies = co_await outcome(lock, leaving, by, never);
        } catch (const std::bad_alloc&) {  // it does not wait
        }
        co_return result(owner, end->live, leaving, replies);
    }

    struct Outcome {
        std::size_t answered = 0;
        std::size_t done = 0;
        std::size_t lost = 0;
    };

    // Releases that were sent, and what has become of them so far.
    struct Sent {
        struct Replies {
            explicit Replies(WaitBy by) : changed(by) {}

            Outcome outcome;
            WaitSlot changed;
        };

        std::size_t asked = 0;
        std::shared_ptr<Replies> replies;  // null if there is nothing to wait for, or no memory to wait
    };

    // Releases `how_many(i)` levels of each member i. `by`: how the caller waits for the replies. `of`: the members' holds
    // to release; without it those that they have.
    template <class HowMany>
    Sent send(std::unique_lock<std::mutex>& lock, OwnerNumber owner, WaitBy by, HowMany how_many,
              const QuorumHolds::Endings* of = nullptr) {
        Sent sent;
        for (std::size_t i = 0; i < core_.members.size(); ++i) sent.asked += how_many(i);
        if (sent.asked == 0) return sent;
        lock.unlock();
        const Told told = counting(sent, by);
        for (std::size_t i = 0; i < core_.members.size(); ++i) {
            lock.lock();
            std::size_t levels = how_many(i);
            lock.unlock();
            for (; levels > 0; --levels)
                release(i, {owner, of ? std::optional((*of)[i].hold) : std::nullopt}, by, told);
        }
        lock.lock();
        return sent;
    }

    // Releases the leaving or the owed levels of the holds that end.
    Sent send(std::unique_lock<std::mutex>& lock, OwnerNumber owner, WaitBy by, const QuorumHolds::Endings& of,
              std::uint32_t QuorumHolds::Ending::*levels) {
        return send(
            lock, owner, by, [&](std::size_t i) { return of[i].*levels; }, &of);
    }

    // Releases one level of these members, and does not wait for the replies.
    template <class Which>
    void give_back(std::unique_lock<std::mutex>& lock, OwnerNumber owner, WaitBy by, Which which) {
        send(lock, owner, by, which);
        if (by == by_thread) core_.stop_attending();
    }

    // Waits until all have replied, for node_timeout at most, and until `limit` at most.
    Task<Outcome> outcome(std::unique_lock<std::mutex>& lock, Sent sent, WaitBy by, Instant limit) {
        if (!sent.replies) co_return Outcome{};
        const Instant until = std::min(limit, Clock::now() + core_.rules.node_timeout);
        const Outcome& outcome = sent.replies->outcome;
        co_await core_.await(lock, sent.replies->changed, by, until, [&] { return outcome.answered == sent.asked; });
        co_return outcome;
    }

private:
    using Told = std::function<void(std::error_code)>;

    // Returns what counts the replies to `sent`. Without memory it counts nothing, and the caller does not wait.
    Told counting(Sent& sent, WaitBy by) {
        try {
            sent.replies = std::make_shared<Sent::Replies>(by);
            return [this, keep = core_.keep(), replies = sent.replies](std::error_code ec) {
                const std::lock_guard relock(core_.mutex);
                Outcome& outcome = replies->outcome;
                ++outcome.answered;
                if (!ec) ++outcome.done;
                if (ec == errc::hold_lost) ++outcome.lost;
                replies->changed.wake();
            };
        } catch (const std::bad_alloc&) {
            sent.replies.reset();
            return [](std::error_code) {};
        }
    }

    std::error_code result(OwnerNumber owner, bool was_live, const Sent& leaving, const Outcome& outcome) {
        if (!was_live) return errc::hold_lost;
        if (outcome.lost > 0) holds_.live_hold(owner);  // the remaining levels may be lost, too
        // Others can acquire the lock as soon as too few members are left with this owner.
        if (leaving.asked - outcome.done <= core_.members.size() - core_.rules.needed) return std::error_code();
        return outcome.lost > 0 ? errc::hold_lost : errc::unreachable;
    }

    // Without memory it does not wait.
    Outcome wait_for(std::unique_lock<std::mutex>& lock, const Sent& sent, Instant limit) try {
        return outcome(lock, sent, by_thread, limit).run();
    } catch (const std::bad_alloc&) {
        return {};
    }

    void release(std::size_t member, const WhichHold& which, WaitBy by, const Told& told) {
        try {
            core_.members[member]->release_in_background(which, told,
                                                         by == by_thread ? Receiver::poster : Receiver::background);
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
