// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/suspended.hpp"
#include "redlatch/error.hpp"
#include "redlatch/lock/deliveries.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/lock/leases.hpp"
#include "redlatch/lock/lock_core.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/session/queries.hpp"
#include "redlatch/session/release_round.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Marks that a last release or a hand-over is in flight, so that no thread of this process asks the server meanwhile.
// The destructor clears the mark, also after an exception.
class InFlightGuard {
public:
    InFlightGuard(LockCore& core, std::unique_lock<std::mutex>& lock) : core_(core), lock_(lock) {
        if (!core_.kind.shared) core_.releasing = true;
    }
    InFlightGuard(const InFlightGuard&) = delete;
    InFlightGuard& operator=(const InFlightGuard&) = delete;
    ~InFlightGuard() {
        if (!lock_.owns_lock()) lock_.lock();
        if (!core_.kind.shared) core_.releasing = false;
    }

private:
    LockCore& core_;
    std::unique_lock<std::mutex>& lock_;
};

// Releases the holds of one lock, level by level. `lock` holds the mutex of the lock.
class Releases {
public:
    Releases(LockCore& core, Deliveries& deliveries, Leases& leases)
        : core_(core), deliveries_(deliveries), leases_(leases) {}

    static Instant foreground_deadline(const Settings& settings) { return Clock::now() + settings.command_timeout; }

    // Returns that hold if it is still held. If its lease is over, reports the loss and returns null.
    HoldRecord* hold_to_release(std::unique_lock<std::mutex>& lock, const WhichHold& which) {
        HoldRecord* hold = leases_.live_hold(which);
        if (!hold || Clock::now() < hold->valid_until) return hold;
        deliveries_.give_back_later(*hold, Clock::now());
        leases_.lose_now(*hold, "its lease expired");
        deliveries_.deliver(lock);
        return nullptr;
    }

    // Returns the error of unlock() for an owner that holds nothing. Throws Error(errc::not_owner) if it never held the
    // lock.
    std::error_code gone_before(OwnerNumber owner) {
        // In a forked child the caller is most likely a guard of the parent, whose stack is being unwound.
        if (core_.session.lost_levels().take(core_.kind.name, core_.key(), owner) || core_.session.is_fork_child())
            return errc::hold_lost;
        throw Error(errc::not_owner, core_.key(),
                    "only the owner that holds the lock can unlock() it: by default the thread that acquired it");
    }

    // Removes one level. A hold that loses its last level is no longer renewed.
    Leaving leave_level(HoldRecord& hold) {
        Instant until = std::max(hold.valid_until, hold.may_last);
        // A renewal that is in flight may take effect, and its reply no longer finds the hold.
        if (hold.renewing && hold.watched()) until = std::max(until, Clock::now() + hold.renewal_lease(Clock::now()));
        Leaving leaving{hold.id,        hold.count - 1, Milliseconds(0), until,
                        hold.unsettled, hold.settings,  hold.stays_until};
        if (hold.count == 1) {
            if (hold.stays(Clock::now())) leaving.successor = core_.next_number();
            leases_.finish(hold);
            return leaving;
        }
        hold.leave();
        ++hold.changing;
        if (hold.watched()) leaving.lease = hold.renewal_lease(Clock::now());
        return leaving;
    }

    std::error_code release_level(std::unique_lock<std::mutex>& lock, HoldRecord& held) {
        const OwnerNumber owner = held.owner;
        const Leaving leaving = leave_level(held);
        lock.unlock();
        SendTime sent;
        const Attempt last = send(leaving.settings, [&](bool, Instant deadline) {
            sent = SendTime();
            return call_level(leaving, deadline);
        });
        lock.lock();
        if (last.resent || !last.reply.answered()) note_unanswered(owner, leaving);
        return level_released(last.reply, owner, leaving, sent);
    }

    // Sends the last level back to the server. Calls `released(answer, resent)` with the mutex.
    template <class Released>
    std::error_code release_last(std::unique_lock<std::mutex>& lock, HoldRecord& held, Released released) {
        return send_last(lock, leave_level(held), released);
    }

    // Does the same for a hold that is no longer recorded here.
    template <class Released>
    std::error_code send_last(std::unique_lock<std::mutex>& lock, const Leaving& leaving, Released released) {
        Attempt last;
        {
            const InFlightGuard in_flight_guard(core_, lock);
            lock.unlock();
            last = send(leaving.settings,
                        [&](bool again, Instant deadline) { return call_release(leaving.hold, again, deadline); });
        }
        return last_released(lock, last.reply, leaving, last.resent,
                             [&](const ReleaseAnswer& answer) { released(answer, last.resent); });
    }

    // Ends the last level before the lock may be free: it stays taken for the rest of its minimum hold. The waiters of
    // this process learn until when.
    std::error_code leave_early(std::unique_lock<std::mutex>& lock, HoldRecord& held) {
        const Leaving leaving = leave_level(held);
        Attempt last;
        {
            const InFlightGuard in_flight_guard(core_, lock);
            lock.unlock();
            last = send(leaving.settings, [&](bool again, Instant deadline) {
                return leaving.successor != 0 ? call_stay(leaving, deadline)
                                              : call_release(leaving.hold, again, deadline);
            });
        }
        return last_released(lock, last.reply, leaving, last.resent,
                             [&](const ReleaseAnswer&) { core_.task.may_be_free(); });
    }

    // --- for locks over several servers -----------------------------------------------------------------------

    // Releases one level without waiting. Calls `done` with the outcome on any thread. A copy of that may need memory, so
    // it is made when the release will not be forgotten for want of it.
    template <class Done>
    void release_in_background(const WhichHold& which, const Done& done, Receiver receiver) {
        const OwnerNumber owner = which.owner;
        std::unique_lock lock(core_.mutex);
        HoldRecord* hold = hold_to_release(lock, which);
        if (!hold) {
            lock.unlock();
            // Removes one lost level, if there is one.
            core_.session.lost_levels().take(core_.kind.name, core_.key(), owner);
            return done(errc::hold_lost);
        }
        const Leaving leaving = leave_level(*hold);
        ++core_.in_flight;
        try {
            lock.unlock();
            auto answered = [this, keep = core_.keep(), owner, leaving, sent = SendTime(),
                             done = done](const Reply& reply) {
                std::unique_lock relock(core_.mutex);
                core_.end_in_flight();
                if (!reply.answered()) note_unanswered(owner, leaving);
                const std::error_code outcome =
                    leaving.remaining > 0 ? level_released(reply, owner, leaving, sent)
                                          : last_released(relock, reply, leaving, false,
                                                          [&](const ReleaseAnswer&) { core_.task.may_be_free(); });
                relock.unlock();
                done(outcome);
            };
            core_.session.post(leaving.successor != 0
                                   ? stay(leaving)
                                   : core_.protocol.release(leaving.hold, leaving.remaining, leaving.lease),
                               std::move(answered), receiver);
        } catch (...) {
            // Nothing was sent yet. The background sends the last release.
            lock.lock();
            core_.end_in_flight();
            if (leaving.remaining == 0)
                deliveries_.give_back_later(leaving, Clock::now());
            else
                leases_.level_changed(owner, leaving.hold);
            core_.schedule();
            throw;
        }
    }

    // Does the same for callers that do not want to know the outcome. Without memory the background sends the last
    // release.
    void release_later(const WhichHold& which) noexcept try {
        release_in_background(
            which, [](std::error_code) {}, Receiver::background);
    } catch (...) {
    }

    // --- Client::release_all() --------------------------------------------------------------------------------

    // Ends the holds of all owners, and posts their releases until they are answered or the leases are over. For their
    // owners the holds are lost.
    void release_all(const std::shared_ptr<ReleaseRound>& round) {
        std::unique_lock lock(core_.mutex);
        const Instant now = Clock::now();
        for (HoldRecord& hold : core_.holds) {
            if (!hold.live()) continue;
            const std::uint64_t number = hold.id;
            const std::int64_t unsettled = hold.unsettled;
            const Instant give_up =
                std::max({hold.valid_until, hold.may_last, now + core_.session.options().command_timeout});
            // Steps that may run out of memory come first: what is still held here must not be released.
            Outbox::Answered answered = [round](const std::error_code& refusal) { round->finish(1, refusal); };
            core_.outbox.make_room();
            hold.unsettled = 0;
            try {
                leases_.lose(hold, "release_all() gave it back");
            } catch (...) {
                hold.unsettled = unsettled;
                throw;
            }
            round->begin(1);
            core_.outbox.add({number}, unsettled, give_up, now, std::move(answered), hold.stays_until);
        }
        core_.holds.erase_lost();
        core_.schedule();
        deliveries_.deliver(lock);
    }

    // --- force_unlock() ---------------------------------------------------------------------------------------

    // Ends the hold of any owner. Returns true if there was one. Sends two commands: the second names the owners that
    // the first has read, so a late copy of it ends no other hold. Each command is resent until `limit`, but for at
    // most unreachable_timeout.
    bool force_release(const Settings& settings, Instant limit) {
        // The command can only end holds that existed before it was sent.
        std::vector<std::uint64_t> ended;
        {
            const std::lock_guard lock(core_.mutex);
            for (const HoldRecord& hold : core_.holds)
                if (hold.live()) ended.push_back(hold.id);
        }
        const Reply seen = query(core_.session, settings, core_.key(), core_.protocol.holders(), limit);
        const std::vector<std::string_view> owners = owners_in(seen);
        if (!owners.empty()) {
            const Reply reply = query(core_.session, settings, core_.key(), core_.protocol.give_up(owners), limit);
            if (!reply.is_integer()) throw unexpected(reply, core_.key());
        }
        const std::lock_guard lock(core_.mutex);
        for (HoldRecord& hold : core_.holds)
            if (hold.live() && std::find(ended.begin(), ended.end(), hold.id) != ended.end())
                leases_.lose(hold, "force_unlock() ended it");
        core_.holds.erase_lost();
        return !owners.empty();
    }

private:
    // The last sending of a command.
    struct Attempt {
        Reply reply{};
        bool resent = false;  // true if an earlier sending may have taken effect
    };

    // Sends a release until it is answered, or refused for good, or its time is over.
    template <class Call>
    Attempt send(const Settings& settings, Call call) noexcept {
        Attempt last;
        try {
            Retry retry = core_.session.retry(foreground_deadline(settings));
            do {
                last.resent = retry.is_resend();
                last.reply = call(last.resent, retry.deadline());
            } while (retry.again(last.reply));
        } catch (...) {  // no memory: handled as if nothing had been sent
            last.reply = Reply::of(Reply::Kind::not_sent, std::string());
        }
        return last;
    }

    // Returns who holds the key, according to the server.
    std::vector<std::string_view> owners_in(const Reply& reply) const {
        if (reply.is_nil()) return {};
        if (reply.kind == Reply::Kind::text) return {reply.text};
        if (reply.kind != Reply::Kind::array) throw unexpected(reply, core_.key());
        std::vector<std::string_view> owners;
        for (const Reply& owner : reply.elements) {
            if (owner.kind != Reply::Kind::text) throw unexpected(reply, core_.key());
            if (owner.text == "mode")
                throw Error(errc::wrong_type, core_.key(), "a read-write lock uses this key; choose another name");
            owners.push_back(owner.text);
        }
        return owners;
    }

    // The release of a level that is not the last may have prolonged the lease for the remaining ones.
    void note_unanswered(OwnerNumber owner, const Leaving& leaving) {
        if (HoldRecord* hold = leases_.live_hold({owner, leaving.hold})) hold->unanswered(Clock::now() + leaving.lease);
    }

    std::error_code level_released(const Reply& reply, OwnerNumber owner, const Leaving& leaving,
                                   const SendTime& sent) {
        const bool lost = !leases_.level_changed(owner, leaving.hold);
        // A missing reply is harmless: the next command of this hold carries its absolute count.
        if (classify(reply) != ReplyClass::answered) return error_of(reply, core_.key()).code();
        if (lost) return errc::hold_lost;
        HoldRecord* hold = core_.holds.find(owner);
        // Another caller of the owner has released the last level.
        if (!hold || hold->id != leaving.hold || !hold->live()) return {};
        const ReleaseAnswer answer = core_.protocol.read_release(reply);
        if (answer.kind == ReleaseAnswer::Kind::senseless) return errc::protocol_error;
        if (answer.kind != ReleaseAnswer::Kind::still_held) {
            leases_.lose_at_server(*hold);
            return errc::hold_lost;
        }
        if (leaving.lease > Milliseconds(0)) hold->prolong(sent.as_of_now(), leaving.lease);
        core_.schedule();
        return {};
    }

    // Sends the last release. `again`: True if an earlier sending may have taken effect.
    Reply call_release(std::uint64_t hold, bool again, Instant deadline) try {
        const LockProtocol& protocol = core_.protocol;
        if (again) return core_.session.call(protocol.release(hold, 0, Milliseconds(0)), deadline);
        Call call = protocol.first_release(hold);
        Reply reply = core_.session.call(call, deadline);
        while (std::optional<Call> following = protocol.after_release(hold, call, reply)) {
            call = *std::move(following);
            reply = core_.session.call(call, deadline);
        }
        return reply;
    } catch (const std::bad_alloc&) {
        return detail::short_of_memory();
    }

    Call stay(const Leaving& leaving) const {
        return core_.protocol.stay(leaving.hold, leaving.successor, rest_until(leaving.stays_until, Clock::now()));
    }

    // Sends the release of a last level after which the lock stays taken.
    Reply call_stay(const Leaving& leaving, Instant deadline) try {
        return core_.session.call(stay(leaving), deadline);
    } catch (const std::bad_alloc&) {
        return detail::short_of_memory();
    }

    // Sends the release of a level that is not the last.
    Reply call_level(const Leaving& leaving, Instant deadline) try {
        return core_.session.call(core_.protocol.release(leaving.hold, leaving.remaining, leaving.lease), deadline);
    } catch (const std::bad_alloc&) {
        return detail::short_of_memory();
    }

    template <class Released>
    std::error_code last_released(std::unique_lock<std::mutex>& lock, const Reply& reply, const Leaving& leaving,
                                  bool resent, Released released) {
        const ReleaseAnswer answer = leaving.successor != 0 ? read_stay(reply) : core_.protocol.read_release(reply);
        if (classify(reply) != ReplyClass::answered || answer.kind == ReleaseAnswer::Kind::senseless)
            return not_delivered(lock, reply, leaving);
        released(answer);
        if (leaving.successor != 0) deliveries_.end_successor(leaving.successor, leaving.stays_until);
        // A copy of the unanswered acquire command may still arrive.
        if (leaving.unsettled != 0)
            deliveries_.give_back_later(leaving, deliveries_.unsettled_until(leaving.unsettled));
        // A release that was resent and finds nothing was delivered the first time.
        if (answer.kind == ReleaseAnswer::Kind::not_held && !resent) {
            // The server's clock may have jumped.
            core_.session.server_clock().doubt();
            deliveries_.wake_queue(leaving);
            core_.report_loss("the server no longer had this hold at its release");
            return errc::hold_lost;
        }
        return {};
    }

    // Handles a last release that was not confirmed. A final refusal (the key is of another type by now) is a loss; any
    // other release is resent in the background.
    std::error_code not_delivered(std::unique_lock<std::mutex>& lock, const Reply& reply, const Leaving& leaving) {
        if (is_final(reply))
            core_.report_loss(in_quotes(reply.text, 160));
        else
            deliveries_.give_back_later(leaving, Clock::now());
        core_.task.may_be_free();
        core_.schedule();
        deliveries_.deliver(lock);
        return classify(reply) == ReplyClass::answered ? make_error_code(errc::protocol_error)
                                                       : error_of(reply, core_.key()).code();
    }

    LockCore& core_;
    Deliveries& deliveries_;
    Leases& leases_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
