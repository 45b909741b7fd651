// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/task.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/lock/grant.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/lock/lock_parts.hpp"
#include "redlatch/lock/lock_queue.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/protocol/message_words.hpp"
#include "redlatch/wait/lock_request.hpp"
#include "redlatch/wait/subscription.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The place of this process in the queue of a lock on the server, and the messages to it: see scripts/lock_queue.hpp. One
// caller at a time uses it: the representative of the local waiters, or a caller's first try while there are none. The place
// stays when another waiter becomes the representative, so the process keeps its position.
//
// The mutex of the lock guards all members.
class QueuePlace {
public:
    // `asked(answered)` is called with the mutex when a question has ended, so another caller may ask. Those who waited
    // for the answer have to, if there was none.
    QueuePlace(LockParts& parts, std::function<void(bool)> asked)
        : parts_(parts),
          asked_(std::move(asked)),
          core_(parts.core),
          subscription_(core_.session, core_.task,
                        core_.protocol.queues() ? core_.protocol.grants_channel() : std::string()) {}

    // Returns true if this request may wait at a place.
    bool is_for(const LockRequest& request) const {
        return core_.protocol.queues() && !refused_ && may_be_granted(request);
    }

    // Returns true if this process has a place, or may have one.
    bool is_taken() const noexcept { return number_ != 0; }

    // Returns true if this is the number of the hold that the place is for.
    bool is_of(std::uint64_t hold) const noexcept { return number_ == hold; }

    // --- asking -----------------------------------------------------------------------------------------------

    // Returns true while a caller asks under the number of the place. Then no other one does.
    bool is_asking() const noexcept { return asking_; }

    // Returns true if the server has to be asked, because the place is for another lease than this request's.
    bool has_other_lease(const LockRequest& request) const {
        return number_ != 0 && core_.lease_of(request.lease, request.settings) != lease_;
    }

    // Asks for the lock, or for a place. `hold`: the number that is asked for. See Acquires::ask().
    Task<std::optional<AcquireAnswer>> ask(std::unique_lock<std::mutex>& lock, const LockRequest& request, bool first,
                                           std::uint64_t& hold) {
        if (number_ == 0) number_ = core_.next_number();
        hold = number_;
        lease_ = core_.lease_of(request.lease, request.settings);
        longest_ = std::max(longest_, lease_);
        ask_at_ = never;
        asking_ = true;
        std::optional<AcquireAnswer> answer;
        try {
            answer = co_await parts_.acquires.ask(lock, request, hold, first, &kept_);
        } catch (...) {
            if (!lock.owns_lock()) lock.lock();
            asking_ = false;
            if (kept_.given_up) leave();  // what the number may hold is released
            asked_(false);
            throw;
        }
        asking_ = false;
        asked_(answer.has_value());
        if (answer && answer->kind == AcquireAnswer::Kind::held) {
            // An earlier command, for another waiter, may have given it a longer lease.
            if (HoldRecord* held = parts_.leases.live_hold(request.owner); held && longest_ > lease_)
                held->unanswered(Clock::now() + longest_);
            forget();
        } else if (kept_.given_up) {
            leave();  // the reply came too late, so the number is released
        }
        co_return answer;
    }

    // Leaves the queue, and gives back what the number was granted. Frees the mutex meanwhile. Called by waiters that have
    // the lock, too, so it does not throw: without memory for the release the place stays until another waiter leaves, or
    // until it ends by itself.
    void give_up(std::unique_lock<std::mutex>& lock) noexcept try {
        if (number_ == 0 || asking_) return;
        core_.outbox.make_room();
        const std::uint64_t number = number_;
        const std::int64_t unsettled = kept_.unsettled;
        const Milliseconds longest = longest_;
        leave();
        parts_.deliveries.undo_acquire(lock, number, unsettled, longest);
    } catch (...) {  // what could not be sent now, the background sends
        if (!lock.owns_lock()) lock.lock();
    }

    // --- what the server tells ----------------------------------------------------------------------------------

    const std::string& channel() const noexcept { return subscription_.channel(); }
    Subscription& subscription() noexcept { return subscription_; }
    const Subscription& subscription() const noexcept { return subscription_; }

    // The user has no right to listen to this channel. From now on the waiters of this process do without a place. A process
    // that does not listen is granted nothing, so leaving the queue is not urgent.
    void refused() {
        subscription_.refused();
        refused_ = true;
        if (number_ != 0 && !asking_) {
            const Instant now = Clock::now();
            core_.outbox.add({number_}, kept_.unsettled, now + longest_, now);
            core_.schedule();
            leave();
        }
    }

    // Returns when the representative has to ask, according to a message since the last question.
    Instant ask_at() const noexcept { return ask_at_; }

    // Called when the representative asks without the place. That also serves a message that told the place to ask by now.
    void asks_elsewhere() noexcept {
        if (ask_at_ <= Clock::now()) ask_at_ = never;
    }

    // "grant <number> <time> <lease> [<token>]" or "look <ms>". Others mean nothing.
    void message(std::string_view payload) {
        const std::string_view what = next_word(payload);
        if (what == "grant") {
            if (const std::optional<Grant> grant = Grant::in(payload, number_)) grant_ = grant;
            const auto number = next_number<std::uint64_t>(payload);
            // It may have replaced the place of today.
            if (number && give_back(*number) && number_ != 0) ask_at_ = Clock::now();
        } else if (what == "look" && number_ == 0) {  // those without a place rely on the messages to all
            // Once, because the place of another number may be meant.
            if (!std::exchange(looked_at_left_, true)) give_back(left_.back());
        } else if (what == "look") {
            const auto in = next_number<std::int64_t>(payload);
            // One ms more: the key exists until the end of its last millisecond.
            if (in && is_plausible(*in))
                ask_at_ = std::min(ask_at_, deadline_after(Clock::now(), Milliseconds(*in) + Milliseconds(1)));
        }
    }

    enum class Entry {
        none,     // there is no grant
        entered,  // the waiter has the lock
        ask,      // the server has to be asked, because it is not certain that the hold lasts
    };

    // Lets the representative enter by a grant.
    Entry enter(LockWaiter& me) {
        if (!grant_) return Entry::none;
        const Grant grant = *std::exchange(grant_, std::nullopt);
        const LockRequest& request = me.request;
        const std::optional<Instant> since = granted_since(parts_, grant, request);
        if (!since || !is_for(request) || (core_.kind.queue && core_.kind.queue->fenced && !is_token(grant.token)))
            return Entry::ask;
        try {
            record_grant(parts_, grant, request, number_, *since, kept_.unsettled, longest_);
        } catch (...) {
            grant_ = grant;  // for the next representative
            throw;
        }
        core_.protocol.granted();
        me.hold = number_;
        me.phase = Waiter::Phase::served;
        forget();
        return Entry::entered;
    }

private:
    // The server may still have a place for a number that this process has released: a late copy of the question made it,
    // or the server lost the release. It would grant the lock to nobody. Releases that number again, and returns true, if it
    // is one of the last. A number that has held the lock is none of them: only its own release may end it.
    bool give_back(std::uint64_t number) {
        if (number == 0 || std::find(left_.begin(), left_.end(), number) == left_.end()) return false;
        const Instant now = Clock::now();
        if (!core_.outbox.send_again(number, now))
            core_.outbox.add({number}, 0, now + core_.session.options().command_timeout, now);
        core_.schedule();
        return true;
    }

    // Forgets the place of a number that is being released and has never held the lock.
    void leave() {
        std::rotate(left_.begin(), left_.begin() + 1, left_.end());
        left_.back() = number_;
        looked_at_left_ = false;
        forget();
    }

    void forget() {
        number_ = 0;
        kept_ = {};
        lease_ = longest_ = Milliseconds(0);
        ask_at_ = never;
        grant_.reset();
    }

    LockParts& parts_;
    const std::function<void(bool)> asked_;
    LockCore& core_;
    Subscription subscription_;
    std::uint64_t number_ = 0;             // of the hold that the place is for; 0 without a place
    KeptNumber kept_;                      // what became of it
    std::array<std::uint64_t, 4> left_{};  // the last numbers that were released without a hold, the latest at the end
    Milliseconds lease_{};                 // that the last command asked for
    Milliseconds longest_{};               // that any command asked for
    std::optional<Grant> grant_;
    Instant ask_at_ = never;
    bool asking_ = false;
    bool looked_at_left_ = false;  // True if the last number of left_ was released once more because of a "look"
    bool refused_ = false;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
