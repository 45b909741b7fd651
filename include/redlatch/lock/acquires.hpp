// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/task.hpp"
#include "redlatch/error.hpp"
#include "redlatch/lock/acquire_attempt.hpp"
#include "redlatch/lock/deliveries.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/lock/leases.hpp"
#include "redlatch/lock/lock_core.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/session/awaiting.hpp"
#include "redlatch/session/lateness.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns true if this request may wait for a grant. One that polls asks anyway. Where replicas or a disk confirm a hold,
// or it has a minimum, the acquire command has to be the waiter's own.
inline bool may_be_granted(const LockRequest& request) {
    return !request.polling && request.settings.require_replicas == 0 && !request.settings.require_fsync &&
           !request.settings.bounds.is_any();
}

// Sends the acquire command of one lock, and applies the replies: it records what was acquired, and undoes what no
// caller wants. `lock` holds the mutex of the lock.
class Acquires {
public:
    Acquires(LockCore& core, Deliveries& deliveries, Leases& leases)
        : core_(core), deliveries_(deliveries), leases_(leases) {}

    // --- first holds ------------------------------------------------------------------------------------------

    // Sends the acquire command for a first hold under a new number. Returns nothing if the caller's stop token or
    // deadline ended the call; otherwise held (and recorded) or blocked. `first`: True before any waiting.
    //
    // With `kept`, the caller keeps waiting under that number if it is blocked, and releases the number itself if there is
    // no reply. `listens`: True if it would hear of a grant under that number.
    Task<std::optional<AcquireAnswer>> ask(std::unique_lock<std::mutex>& lock, const LockRequest& request,
                                           std::uint64_t number, bool first, KeptNumber* kept = nullptr,
                                           bool listens = false) {
        if (auto refusal = leases_.mixed_kinds()) throw *std::move(refusal);
        AcquireAttempt attempt(core_, core_.claim_of(request.owner, number, 1, request.lease, request.settings),
                               request.settings);
        attempt.claim.announced = request.precedence && !request.one_try;
        attempt.claim.first = first;
        attempt.claim.queues = kept != nullptr;
        attempt.claim.listens = listens;
        attempt.claim.polls = request.polling || (!request.one_try && !may_be_granted(request));
        co_await send_acquire(lock, request, attempt, first);
        Asked& asked = attempt.asked;
        asked.kept = kept;
        if (kept) asked.unsettled = kept->unsettled = std::max(kept->unsettled, asked.unsettled);
        if (classify(asked.reply) != ReplyClass::answered) {
            if (asked.unsettled != 0 && !kept) undo(lock, asked, attempt.claim.lease);
            no_answer(request, asked);
            co_return std::nullopt;
        }
        co_return apply_acquire_reply(lock, request.owner, request.lease, asked);
    }

    // Applies the reply to the acquire command for a first hold.
    AcquireAnswer apply_acquire_reply(std::unique_lock<std::mutex>& lock, OwnerNumber owner,
                                      const std::optional<Milliseconds>& wanted, const Asked& asked) {
        const Instant now = Clock::now();
        const Milliseconds lease = core_.lease_of(wanted, asked.settings);
        const AcquireAnswer answer = decode(lock, asked, lease);
        if (answer.kind != AcquireAnswer::Kind::held) {
            // A copy of an unanswered sending may still acquire it.
            if (asked.unsettled != 0 && !asked.kept) undo(lock, asked, lease);
            return answer;
        }
        if (!asked.reply.replicated) {
            undo(lock, asked, lease);
            throw not_confirmed(asked.reply, core_.key());
        }
        // The reply took longer than the lease lasts, or the owner has acquired a hold in another way meanwhile.
        if (now >= redlatch::valid_until(asked.sent, lease) || leases_.live_hold(owner)) {
            undo(lock, asked, lease);
            return AcquireAnswer{AcquireAnswer::Kind::blocked, Milliseconds(0), 0};
        }
        record_or_undo(lock, owner, wanted, asked, answer.token);
        return answer;
    }

    // Releases in the background what was asked for. Frees the mutex meanwhile.
    void undo(std::unique_lock<std::mutex>& lock, const Asked& asked, Milliseconds lease, Instant from = Clock::now()) {
        core_.outbox.make_room();
        if (asked.kept) asked.kept->given_up = true;
        deliveries_.undo_acquire(lock, asked.hold, asked.unsettled, lease, from);
    }

    // --- reentry ----------------------------------------------------------------------------------------------

    // Returns the hold for reenter(); null if the owner holds nothing. Throws if it wants one more level of a lost hold.
    HoldRecord* hold_to_reenter(const LockRequest& request) {
        HoldRecord* hold = leases_.live_hold(request.owner);
        if (hold && request.again_of != 0 && hold->id != request.again_of) hold = nullptr;
        if (hold && !is_reentrant(request.reentry)) hold = unless_over(*hold);
        if (!hold) check_first_hold(request);
        return hold;
    }

    // Acquires one more level for an owner that holds the lock. Returns true if it has one more, false if its stop token
    // or deadline ended the call. Returns nothing if its hold turned out to be lost: then it has to acquire the lock
    // like any other. Without reentry, sends nothing: a try returns false, and a call that would wait throws.
    Task<std::optional<bool>> reenter(std::unique_lock<std::mutex>& lock, const LockRequest& request,
                                      HoldRecord& held) {
        if (!is_reentrant(request.reentry)) {
            if (request.one_try && core_.kind.reentrant) co_return false;
            throw not_reentrant();
        }
        const std::uint64_t id = held.id;
        const std::uint32_t count = held.count + 1;
        if (count > 0x7fff'ffff)
            throw Error(errc::would_deadlock, core_.key(),
                        "its owner has locked it too many times; each lock() needs an unlock()");
        const Settings settings = for_level_of(held, request.settings);
        AcquireAttempt attempt(core_, core_.claim_of(request.owner, id, count, request.lease, settings), settings);
        ++held.changing;
        co_await send_acquire(lock, request, attempt, true);
        const Asked& asked = attempt.asked;
        const bool lost = !leases_.level_changed(request.owner, id);
        note_unanswered_reentry(lock, request.owner, attempt.claim.lease, asked);
        // An unknown outcome is harmless: the next command of this hold carries its absolute count.
        if (classify(asked.reply) != ReplyClass::answered) co_return no_answer(request, asked);
        if (apply_reentry_reply(lock, request.owner, id, request.lease, asked, lost)) co_return true;
        check_first_hold(request);
        co_return std::nullopt;
    }

    // Returns the settings for one more level of a hold. The hold keeps its lease, and its end if it is limited.
    static Settings for_level_of(const HoldRecord& held, Settings settings) {
        settings.watchdog_timeout = held.settings.watchdog_timeout;
        if (held.limited()) {
            HoldBounds& bounds = settings.bounds;
            const Milliseconds most = std::min(Milliseconds(bounds.most), held.time_left(Clock::now()));
            bounds = HoldBounds::of(std::min(Milliseconds(bounds.least), most), most);
        }
        return settings;
    }

    // Applies the reply to a reentry. Returns false if the owner no longer has the hold. `lost`: True if the hold was
    // lost while the command was in flight.
    bool apply_reentry_reply(std::unique_lock<std::mutex>& lock, OwnerNumber owner, std::uint64_t id,
                             const std::optional<Milliseconds>& wanted, const Asked& asked, bool lost) {
        const AcquireAnswer answer = core_.protocol.read_acquire(asked.reply);
        HoldRecord* hold = core_.holds.find(owner);
        if (!hold || hold->id != id || !hold->live()) {
            // If another caller of the owner released the last level, that release ends this level as well.
            if (lost && answer.kind == AcquireAnswer::Kind::held && asked.unsettled == 0)
                undo_reentry(lock, asked, core_.lease_of(wanted, asked.settings));
            return false;
        }
        if (answer.kind != AcquireAnswer::Kind::held) {
            leases_.lose_at_server(*hold);
            return false;
        }
        // The server counts one level more than this process. The next command of this hold carries the absolute count.
        if (!asked.reply.replicated) throw not_confirmed(asked.reply, core_.key());
        hold->enter(asked.sent, wanted, hold->settings.watchdog_timeout, asked.settings.bounds);
        core_.schedule();
        return true;
    }

    // Sees to it that the server does not keep the hold longer than it lasts here because of a sending that got no reply.
    void note_unanswered_reentry(std::unique_lock<std::mutex>& lock, OwnerNumber owner, Milliseconds lease,
                                 const Asked& asked) {
        if (asked.unsettled == 0) return;
        if (HoldRecord* hold = leases_.live_hold({owner, asked.hold}))
            hold->unanswered(Clock::now() + lease);
        else
            undo_reentry(lock, asked, lease);
    }

    // Returns true if an owner with a live hold would deadlock with itself.
    bool refuses_reentry(HoldRecord& hold, Reentry reentry) { return !is_reentrant(reentry) && unless_over(hold); }

    Error not_reentrant() const {
        return {errc::would_deadlock, core_.key(),
                "its owner already holds this lock, which is not reentrant; use an RLock for nested sections"};
    }

    // --- several callers of one Owner -------------------------------------------------------------------------

    // Returns true if another caller of this Owner has acquired the lock. Then one that waits joins it.
    bool can_join(OwnerNumber owner) { return owner.is_of_program() && leases_.live_hold(owner); }

    // Acquires one more level of that hold. Returns the number of the hold; 0 if the caller's stop token or deadline
    // ended the call; nothing if there is no hold to join any more.
    Task<std::optional<std::uint64_t>> join(std::unique_lock<std::mutex>& lock, const LockRequest& request) {
        HoldRecord* const hold = hold_to_reenter(request);
        if (!hold) co_return std::nullopt;
        const std::uint64_t id = hold->id;
        const std::optional<bool> joined = co_await reenter(lock, request, *hold);
        if (!joined) co_return std::nullopt;
        co_return *joined ? id : 0;
    }

private:
    bool is_reentrant(Reentry reentry) const { return core_.kind.reentrant && reentry == Reentry::allowed; }

    // A hold whose lease is over refuses nothing. It is lost: then returns null.
    HoldRecord* unless_over(HoldRecord& hold) {
        if (Clock::now() < hold.valid_until) return &hold;
        leases_.lose_now(hold, "its lease expired");
        return nullptr;
    }

    // The hold was lost while the command was in flight: releases what that acquired, or may have. The owner was notified
    // a little early and was promised that time, so wait for it.
    void undo_reentry(std::unique_lock<std::mutex>& lock, const Asked& asked, Milliseconds lease) {
        undo(lock, asked, lease, Clock::now() + Lateness::longest_notice);
    }

    // Throws if the owner wants one more level of a hold that it no longer has.
    void check_first_hold(const LockRequest& request) const {
        if (request.again) throw Error(errc::hold_lost, core_.key(), "the hold has ended");
    }

    // Sends the acquire command and waits for the reply; sends it again until it is answered, or until the caller's
    // patience ends. `first`: True for the first command of a call.
    Task<void> send_acquire(std::unique_lock<std::mutex>& lock, const LockRequest& request, AcquireAttempt& attempt,
                            bool first) {
        using Next = AcquireAttempt::Next;
        Session& session = core_.session;
        // Start these before there is a hold: supervising a hold must not fail.
        session.start_losses();
        session.start_background();
        const Instant give_up = core_.patience.give_up_at(request, first);
        lock.unlock();
        Retry retry =
            session.retry({give_up, request.stop, request.one_try, request.by, attempt.asked.settings.command_timeout});
        std::optional<Instant> rest;
        do {
            if (retry.is_resend()) attempt.claim.first = false;
            const Instant deadline = retry.deadline();
            try {
                Next next = Next::time;
                do {
                    if (next == Next::time) {
                        attempt.asks_time();
                        auto now = session.known_server_time(core_.key());
                        if (!now)
                            now = co_await server_time(session, request.by, core_.key(), deadline, attempt.asked.reply);
                        if (!now) break;
                        attempt.begin(*now);
                    }
                    next = attempt.replied(co_await ReplyTo(session, request.by, attempt, deadline));
                } while (next == Next::call || (next == Next::time && Clock::now() < deadline));
            } catch (const std::bad_alloc&) {
                attempt.asked.reply = short_of_memory(request.by);
            }
            rest = retry.rest_after(attempt.asked.reply);
            if (rest) co_await Pause(request.by, *rest, request.stop);
        } while (rest && retry.goes_on());
        lock.lock();
        const Asked& asked = attempt.asked;
        if (classify(asked.reply) == ReplyClass::answered)
            core_.patience.answered();
        else
            core_.patience.failed(request, asked.begun, asked.reply);
    }

    // Returns false if the caller's stop token or deadline ended the call; otherwise throws.
    bool no_answer(const LockRequest& request, const Asked& asked) const {
        if (request.stop.stop_requested()) return false;
        if (core_.patience.was_too_short(request, asked.begun, asked.reply, asked.unsettled != 0)) return false;
        throw error_of(asked.reply, core_.key());
    }

    // If recording fails (no memory, no thread), releases the hold and rethrows.
    void record_or_undo(std::unique_lock<std::mutex>& lock, OwnerNumber owner, const std::optional<Milliseconds>& lease,
                        const Asked& asked, std::int64_t token) {
        try {
            leases_.record(owner, asked.hold, asked.sent, lease, token, asked.settings).unsettled = asked.unsettled;
        } catch (...) {
            leases_.forget(owner);
            undo(lock, asked, core_.lease_of(lease, asked.settings));
            throw;
        }
    }

    AcquireAnswer decode(std::unique_lock<std::mutex>& lock, const Asked& asked, Milliseconds lease) {
        try {
            return core_.protocol.read_acquire(asked.reply);
        } catch (...) {
            undo(lock, asked, lease);
            throw;
        }
    }

    LockCore& core_;
    Deliveries& deliveries_;
    Leases& leases_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
