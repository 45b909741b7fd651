// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/lock/acquire_attempt.hpp"
#include "redlatch/lock/acquires.hpp"
#include "redlatch/lock/lock_parts.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Tries to acquire a lock without a thread that waits for the reply, for locks over several servers: completions drive
// the attempt.
class BackgroundTries {
public:
    // Takes an answer on any thread. Returns true if the lock is still wanted. Otherwise a hold is released, and a
    // command that came too late is not sent again.
    using OnAnswer = std::function<bool(const TryAnswer&)>;

    explicit BackgroundTries(LockParts& parts) : parts_(parts), core_(parts.core) {}

    // Tries once to acquire the lock, or one more level of it.
    void begin(OwnerNumber owner, std::optional<Milliseconds> lease, Settings settings, Reentry reentry,
               OnAnswer on_answer, Receiver receiver) {
        std::unique_lock lock(core_.mutex);
        if (!owner.is_of_program() && is_trying(owner)) {
            lock.unlock();
            on_answer({TryAnswer::Kind::failed});  // an earlier try of this caller has no reply yet
            return;
        }
        if (auto refusal = refusal_for(owner, reentry)) {
            lock.unlock();
            on_answer({TryAnswer::Kind::failed, 0, std::move(refusal)});
            return;
        }
        HoldRecord* hold = parts_.leases.live_hold(owner);
        if (hold) settings = Acquires::for_level_of(*hold, settings);
        Claim claim = hold ? core_.claim_of(owner, hold->id, hold->count + 1, lease, settings)
                           : core_.claim_of(owner, core_.next_number(), 1, lease, settings);
        claim.polls = true;   // such a lock queues nowhere
        claim.first = false;  // the plain command of a Mutex would cost a second round trip if it is refused
        trying_.push_back(owner);
        ++core_.in_flight;
        const std::uint64_t reentered = hold ? hold->id : 0;
        if (hold) ++hold->changing;
        lock.unlock();
        try {
            core_.session.start_losses();
            ask_time(std::make_shared<Try>(*this, claim, settings, lease, reentered, std::move(on_answer)), receiver);
        } catch (...) {
            // Nothing was sent.
            lock.lock();
            if (reentered != 0) parts_.leases.level_changed(owner, reentered);
            end(owner);
            throw;
        }
    }

private:
    // A try in flight. It keeps the lock's state alive.
    struct Try {
        Try(BackgroundTries& tries, const Claim& claim, const Settings& settings,
            const std::optional<Milliseconds>& wanted, std::uint64_t hold, OnAnswer&& to)
            : keep(tries.core_.keep()),
              attempt(tries.core_, claim, settings),
              lease(wanted),
              reentered(hold),
              on_answer(std::move(to)) {}

        const std::shared_ptr<BackgroundTask> keep;
        AcquireAttempt attempt;
        const std::optional<Milliseconds> lease;
        const std::uint64_t reentered;  // the hold that gets one more level; 0 for a first hold
        const OnAnswer on_answer;
    };
    using TryPtr = std::shared_ptr<Try>;

    bool is_trying(OwnerNumber owner) const {
        return std::find(trying_.begin(), trying_.end(), owner) != trying_.end();
    }

    std::optional<Error> refusal_for(OwnerNumber owner, Reentry reentry) {
        HoldRecord* const hold = parts_.leases.live_hold(owner);
        if (!hold) return parts_.leases.mixed_kinds();
        if (parts_.acquires.refuses_reentry(*hold, reentry)) return parts_.acquires.not_reentrant();
        return std::nullopt;
    }

    void end(OwnerNumber owner) {
        if (const auto mine = std::find(trying_.begin(), trying_.end(), owner); mine != trying_.end())
            trying_.erase(mine);
        core_.end_in_flight();
    }

    // --- driving the attempt ----------------------------------------------------------------------------------

    void ask_time(TryPtr one, Receiver receiver) {
        one->attempt.asks_time();
        core_.session.with_server_time(core_.key(), receiver,
                                       [this, one = std::move(one)](const std::optional<ServerMilliseconds>& now,
                                                                    Reply failure, Receiver answers_to) {
                                           if (now) {
                                               one->attempt.begin(*now);
                                               send(one, answers_to);
                                           } else {
                                               one->attempt.asked.reply = std::move(failure);
                                               finish(*one);
                                           }
                                       });
    }

    void send(const TryPtr& one, Receiver receiver) noexcept {
        try {
            core_.session.post(
                one->attempt.call(), [this, one](Reply reply) { go_on(one, one->attempt.replied(std::move(reply))); },
                receiver);
        } catch (...) {
            not_sent(*one);
        }
    }

    void go_on(const TryPtr& one, AcquireAttempt::Next next) noexcept {
        if (next == AcquireAttempt::Next::call) return send(one, Receiver::background);
        if (next == AcquireAttempt::Next::done) return finish(*one);
        try {
            if (!one->on_answer({TryAnswer::Kind::late})) return finish(*one);
            ask_time(one, Receiver::background);
        } catch (...) {
            not_sent(*one);
        }
    }

    void not_sent(Try& one) {
        one.attempt.asked.reply = Reply::of(Reply::Kind::not_sent, std::string());
        finish(one);
    }

    // --- the outcome ------------------------------------------------------------------------------------------

    void finish(const Try& one) {
        const OwnerNumber owner = one.attempt.claim.owner;
        std::unique_lock lock(core_.mutex);
        TryAnswer answer{TryAnswer::Kind::failed};
        bool wanted = false;
        try {
            answer = answer_of(lock, one);
            lock.unlock();
            wanted = one.on_answer(answer);
        } catch (...) {  // no memory: `on_answer` has not accepted the hold
        }
        if (lock.owns_lock()) lock.unlock();
        // Before the end of this try: the next one of this caller must not find a hold that nobody wants.
        if (answer.kind == TryAnswer::Kind::held && !wanted) parts_.releases.release_later({owner, answer.hold});
        lock.lock();
        end(owner);
    }

    TryAnswer answer_of(std::unique_lock<std::mutex>& lock, const Try& one) {
        using Kind = TryAnswer::Kind;
        Acquires& acquires = parts_.acquires;
        const Asked& asked = one.attempt.asked;
        const OwnerNumber owner = one.attempt.claim.owner;
        const Milliseconds lease = core_.lease_of(one.lease, asked.settings);
        const bool lost = one.reentered != 0 && !parts_.leases.level_changed(owner, one.reentered);
        try {
            if (one.reentered != 0) acquires.note_unanswered_reentry(lock, owner, lease, asked);
            if (classify(asked.reply) != ReplyClass::answered) {
                if (asked.unsettled != 0 && one.reentered == 0) acquires.undo(lock, asked, lease);
                return {Kind::failed, 0, error_of(asked.reply, core_.key()), asked.reply.is_error()};
            }
            const bool held =
                one.reentered == 0
                    ? acquires.apply_acquire_reply(lock, owner, one.lease, asked).kind == AcquireAnswer::Kind::held
                    : acquires.apply_reentry_reply(lock, owner, one.reentered, one.lease, asked, lost);
            if (!held) return {Kind::refused};
            return {Kind::held, core_.holds.find(owner)->id};
        } catch (const Error& error) {
            return {Kind::failed, 0, error};
        }
    }

    LockParts& parts_;
    LockCore& core_;
    std::vector<OwnerNumber> trying_;  // owners of the tries in flight
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
