// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/error.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/lock/outbox.hpp"
#include "redlatch/options.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/session/background_task.hpp"
#include "redlatch/session/key_holds.hpp"
#include "redlatch/session/queries.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// Manages the holds that the threads of this process have on one lock: who holds it, until when, and what is still to
// be released. LockState and FairLockState add the waiting. `Protocol` provides the commands and these properties of
// its lock:
//   family          the kind of lock; two kinds on one key would mistake each other's holds for their own
//   renewal         the script that renews holds of this kind
//   shared          True if many may hold it at a time; then a thread of this process may ask while others hold it
//   reentrant       True if its holder may acquire it once more
//   hands_over      True if one thread of this process can hand its hold over to another
//   outlives_lease  True if the server may keep a hold beyond its lease, so that an expired one has to be released
//   cancel_announcement()  cancels the announcement of a waiting thread, where there is one
//
// Each first hold has a number of its own, by which the server knows its owner. So a late command names a hold that is
// gone. Only this process knows which thread has which hold.
//
// mutex_ guards all members except the constant ones. It is never held during a command, nor while user code runs.
template <class T, class Protocol>
class LeaseManager : public BackgroundTask {
public:
    static constexpr std::string_view kind = Protocol::kind;

    LeaseManager(Session<T>& session, const std::string& key)
        : session_(session), protocol_(session.protocol_context(), key), key_holds_(session.key_holds(key)) {}

    ~LeaseManager() override {
        session_.timers().forget(*this);
        session_.losses().timers().forget(*this);
    }

    const std::string& key() const noexcept { return protocol_.key(); }
    Session<T>& session() const noexcept { return session_; }
    Protocol& protocol() noexcept { return protocol_; }

    bool is_idle() {
        const std::lock_guard lock(mutex_);
        return !holds_.any_live() && pending_.empty() && in_flight_ == 0 && !is_waited_for();
    }

    // --- acquiring, without waiting ---------------------------------------------------------------------------

    // Tries once to acquire the lock for a lock over several servers. Sends the command once. Calls `tell(answer)` on
    // any thread; it returns true if the hold that the answer reports is still wanted. Otherwise the hold is released.
    void try_in_background(OwnerNumber owner, std::optional<Milliseconds> lease,
                           std::function<bool(const TryAnswer&)> tell, Receiver receiver) {
        std::unique_lock lock(mutex_);
        if (contains(trying_, owner)) {
            lock.unlock();
            tell({TryAnswer::Kind::failed});  // an earlier try of this thread has no reply yet
            return;
        }
        Hold* hold = live_hold(owner);
        std::optional<Error> refusal;
        if (hold && refuses_reentry(*hold)) refusal = not_reentrant();
        if (!hold) refusal = mixed_kinds();
        if (refusal) {
            lock.unlock();
            tell({TryAnswer::Kind::failed, 0, std::move(refusal)});
            return;
        }
        hold = live_hold(owner);
        Claim claim =
            hold ? claim_of(owner, hold->id, hold->count + 1, lease) : claim_of(owner, next_number(), 1, lease);
        const std::uint64_t id = hold ? hold->id : 0;
        trying_.push_back(owner);
        ++in_flight_;
        lock.unlock();
        try {
            session_.start_losses();
            session_.with_server_time(
                key(), receiver,
                [self = self(), claim, lease, id, begun = Clock::now(), tell](
                    std::optional<ServerMilliseconds> now, Reply failure, Receiver answers_to) mutable {
                    Asked asked;
                    asked.hold = claim.hold;
                    asked.begun = asked.sent = begun;
                    asked.reply = std::move(failure);
                    self->try_once(claim, lease, id, std::move(asked), now, tell, answers_to);
                });
        } catch (...) {
            // Nothing was sent.
            lock.lock();
            end_try(owner);
            throw;
        }
    }

    // --- releasing --------------------------------------------------------------------------------------------

    // Releases one level. Returns no error on success, hold_lost if the hold had already ended, unreachable if the
    // release could not be delivered yet (the background resends it). Throws Error(errc::not_owner).
    std::error_code release(OwnerNumber owner) try {
        std::unique_lock lock(mutex_);
        Hold* hold = hold_to_release(lock, owner);
        if (!hold) return gone_before(owner);
        return hold->count > 1 ? release_level(lock, *hold) : release_hold(lock, *hold);
    } catch (const std::bad_alloc&) {
        // A hold whose release could not be sent ends with its lease.
        return make_error_code(std::errc::not_enough_memory);
    }

    // Does the same without waiting, for locks over several servers. Calls `done` with the outcome on any thread.
    void release_in_background(OwnerNumber owner, const std::function<void(std::error_code)>& done, Receiver receiver) {
        std::unique_lock lock(mutex_);
        Hold* hold = hold_to_release(lock, owner);
        if (!hold) {
            lock.unlock();
            // Removes one lost level, if there is one.
            session_.lost_levels().take(kind, key(), owner);
            return done(errc::hold_lost);
        }
        const Leaving leaving = leave_level(*hold);
        ++in_flight_;
        try {
            lock.unlock();
            Completion answered = [self = self(), owner, leaving, sent = Clock::now(), done](const Reply& reply) {
                std::unique_lock relock(self->mutex_);
                self->end_in_flight();
                const std::error_code outcome =
                    leaving.remaining > 0 ? self->level_released(reply, owner, leaving, sent)
                                          : self->last_released(relock, reply, leaving, false,
                                                                [&](const ReleaseAnswer&) { self->notify(); });
                relock.unlock();
                done(outcome);
            };
            session_.post(protocol_.release(leaving.hold, leaving.remaining, leaving.lease), std::move(answered),
                          receiver);
        } catch (...) {
            // Nothing was sent yet. The background sends the last release.
            lock.lock();
            end_in_flight();
            if (leaving.remaining == 0) give_back_later(leaving, Clock::now());
            schedule();
            throw;
        }
    }

    // Ends the hold of any owner. Returns true if there was one. Sends two commands: the second names the owners that
    // the first has read, so a late copy of it ends no other hold. Each command is resent until `limit`, but for at
    // most unreachable_timeout.
    bool force_release(Instant limit = never) {
        // The command can only end holds that existed before it was sent.
        std::vector<std::uint64_t> ended;
        {
            const std::lock_guard lock(mutex_);
            for (const Hold& hold : holds_)
                if (hold.live()) ended.push_back(hold.id);
        }
        const Reply seen = query(session_, key(), protocol_.holders(), limit);
        const std::vector<std::string_view> owners = owners_in(seen);
        if (!owners.empty()) {
            const Reply reply = query(session_, key(), protocol_.give_up(owners), limit);
            if (!reply.is_integer()) throw unexpected(reply, key());
        }
        const std::lock_guard lock(mutex_);
        for (Hold& hold : holds_)
            if (hold.live() && contains(ended, hold.id)) lose(hold, "ended by force");
        holds_.erase_lost();
        return !owners.empty();
    }

    // --- queries without a command ----------------------------------------------------------------------------

    Instant valid_until(OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        const Hold* hold = live_hold(owner);
        return hold ? hold->valid_until : Instant::min();
    }

    // Returns the fencing token of the owner's hold, for locks that have one; nothing if the owner holds nothing.
    std::optional<std::int64_t> token(OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        const Hold* hold = holds_.find(owner);
        return hold && hold->live() ? std::optional(hold->token) : std::nullopt;
    }

    // Returns the number of the owner's hold, and until when the hold is certain.
    HeldPart part(OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        const Hold* hold = live_hold(owner);
        return hold ? HeldPart{hold->id, hold->valid_until} : HeldPart{};
    }

    std::stop_token lost(OwnerNumber owner) {
        const std::lock_guard lock(mutex_);
        Hold* hold = live_hold(owner);
        if (!hold) {
            std::stop_source already;
            already.request_stop();
            return already.get_token();
        }
        if (!hold->lost) hold->lost.emplace();
        return hold->lost->get_token();
    }

    // --- background -------------------------------------------------------------------------------------------

    void on_timer(Instant now, Instant horizon, std::vector<Renewal>& due) override {
        std::unique_lock lock(mutex_);
        for (Hold& hold : holds_) {
            if (!hold.live()) continue;
            if (hold.renewing || hold.ask_at() > horizon) continue;
            due.push_back(
                {shared_from_this(), key(), hold.owner, hold.id, &Protocol::renewal, protocol_.text(hold.id)});
            if (!hold.watched()) due.back().lease = Milliseconds(1);
            hold.renewing = true;
        }
        for (std::size_t n = pending_.take_expired(now); n > 0; --n)
            session_.raise(Event::Kind::unlock_not_delivered, key(),
                           "its lease is over, so others are not blocked any more");
        schedule();
        deliver_pending(lock);
        lock.unlock();
        session_.forget_if_unused(*this);
    }

    void expire(Instant now) override {
        const std::lock_guard lock(mutex_);
        for (Hold& hold : holds_) {
            if (!hold.live()) continue;
            hold.check_suspension();
            if (now < hold.lost_at()) continue;
            // Release it only at valid_until. Its owner is notified now, a little early, and was promised the rest.
            if (Protocol::outlives_lease) give_back_later(hold, hold.valid_until);
            lose(hold, hold.watched() ? "it could not be renewed in time" : "its lease ran out");
        }
        holds_.erase_lost();
        schedule();
        forget_later();
    }

    void abandon() noexcept override {
        const std::lock_guard lock(mutex_);
        for (Hold& hold : holds_)
            if (hold.live() && hold.lost) session_.losses().tell(std::move(*hold.lost));
    }

    void on_failover() override {
        const std::lock_guard lock(mutex_);
        for (Hold& hold : holds_)
            if (hold.live()) hold.doubt(Clock::now());
        schedule();
    }

    void renewed(const Renewal& renewal, Renewed outcome, Instant sent) override {
        std::unique_lock lock(mutex_);
        Hold* hold = holds_.find(renewal.owner);
        if (hold && hold->live() && hold->id == renewal.hold) {
            const Milliseconds timeout = session_.options().watchdog_timeout;
            switch (outcome) {
                case Renewed::yes:
                    if (renewal.lease)
                        hold->checked();
                    else
                        hold->renewed(sent, timeout);
                    if (!renewal.lease) hold->set_notice(session_.losses().notice(), timeout);
                    break;
                case Renewed::refused: lose(*hold, "the server says that it is not held any more"); break;
                case Renewed::unknown: hold->renewal_failed(Clock::now(), timeout); break;
            }
            holds_.erase_lost();
            schedule();
        } else if (std::erase(lost_in_renewal_, renewal.hold) > 0 && outcome == Renewed::yes) {
            // The hold is lost here, but this renewal still prolonged it on the server. Release it, so that it does not
            // block others for another lease. Its owner was notified a little early and was promised that time, so wait
            // for it.
            const Instant now = Clock::now();
            pending_.add({renewal.hold}, 0, now + session_.options().watchdog_timeout, now + Lateness::longest_notice);
            schedule();
            deliver_pending(lock);
        }
    }

protected:
    // --- what the waiting part overrides; called with mutex_ held ------------------------------------------------

    // Returns true if threads wait for the lock, or for a release or hand-over in their name.
    virtual bool is_waited_for() const = 0;

    // Called when the lock may be free for a thread of this process, for a reason that the server does not publish.
    virtual void notify() {}

    // Releases the last level of a hold: to the server, or by a hand-over.
    virtual std::error_code release_hold(std::unique_lock<std::mutex>& lock, Hold& hold) {
        return release_last(lock, hold, [](const ReleaseAnswer&, bool) {});
    }

    // ------------------------------------------------------------------------------------------------------------

    struct Asked {
        Reply reply;
        Instant begun;
        Instant sent;                // time of the last sending, which the reply answers
        std::int64_t unsettled = 0;  // server time until which an unanswered sending may take effect; 0 for none
        std::uint64_t hold = 0;      // the number that was asked for
    };

    // Returns who holds the key, according to the server.
    std::vector<std::string_view> owners_in(const Reply& reply) const {
        if (reply.is_nil()) return {};
        if (reply.kind == Reply::Kind::text) return {reply.text};
        if (reply.kind != Reply::Kind::array) throw unexpected(reply, key());
        std::vector<std::string_view> owners;
        for (const Reply& owner : reply.elements) {
            if (owner.kind != Reply::Kind::text) throw unexpected(reply, key());
            if (owner.text == "mode")
                throw Error(errc::wrong_type, key(), "the key holds a read-write lock; choose another name");
            owners.push_back(owner.text);
        }
        return owners;
    }

    std::uint64_t next_number() { return session_.next_request(); }

    std::shared_ptr<LeaseManager> self() { return std::static_pointer_cast<LeaseManager>(shared_from_this()); }

    Hold* live_hold(OwnerNumber owner) {
        Hold* hold = holds_.find(owner);
        if (!hold || !hold->live()) return nullptr;
        // Its end is nearer now, so its loss is due earlier.
        if (hold->check_suspension()) schedule();
        return hold;
    }

    Claim claim_of(OwnerNumber owner, std::uint64_t number, std::uint32_t count,
                   const std::optional<Milliseconds>& lease) const {
        Claim claim{owner, number, count, lease_of(lease)};
        if constexpr (Protocol::shared) claim.writer = key_holds_->writer_of(owner);
        return claim;
    }

    // Returns the error for a first hold if this process holds the key as another kind of lock.
    std::optional<Error> mixed_kinds() const {
        const std::string_view other = key_holds_->other_than(Protocol::family);
        if (other.empty()) return std::nullopt;
        return Error(errc::wrong_type, key(),
                     "this process holds it as a " + std::string(other) + ", so it cannot be a " +
                         std::string(Protocol::family) + "; choose another name");
    }

    // --- what is in flight in the background ----------------------------------------------------------------------

    void end_in_flight() {
        --in_flight_;
        forget_later();
    }

    // Lets the session drop the state when no one uses it any more. That is not urgent.
    void forget_later() { session_.timers().schedule(*this, Clock::now() + Milliseconds(1000)); }

    void end_try(OwnerNumber owner) {
        if (const auto mine = std::find(trying_.begin(), trying_.end(), owner); mine != trying_.end())
            trying_.erase(mine);
        end_in_flight();
    }

    template <class Value>
    static bool contains(const std::vector<Value>& values, Value value) {
        return std::find(values.begin(), values.end(), value) != values.end();
    }

    // Continues try_in_background() once the server's clock has been read. `now`: nothing if that failed.
    void try_once(Claim claim, const std::optional<Milliseconds>& lease, std::uint64_t id, Asked asked,
                  std::optional<ServerMilliseconds> now, const std::function<bool(const TryAnswer&)>& tell,
                  Receiver receiver) noexcept {
        if (!now) return tried(claim.owner, lease, id, asked, tell);
        claim.until = *now + session_.options().command_timeout.count();
        asked.sent = Clock::now();
        try {
            Completion done = [self = self(), owner = claim.owner, lease, id, asked, until = claim.until,
                               tell](Reply reply) mutable {
                asked.reply = std::move(reply);
                self->session_.learn_if_late(self->key(), asked.sent, asked.reply);
                if (!asked.reply.answered() && !asked.reply.is_unsent()) asked.unsettled = until;
                self->tried(owner, lease, id, asked, tell);
            };
            claim.first = false;  // a posted call has no successor
            session_.post(protocol_.acquire(claim), std::move(done), receiver);
        } catch (...) {  // nothing was sent
            asked.reply = Reply::of(Reply::Kind::not_sent, std::string());
            tried(claim.owner, lease, id, asked, tell);
        }
    }

    // Handles the reply of try_in_background(). `id`: the hold that one level was asked for; 0 for a first hold.
    void tried(OwnerNumber owner, const std::optional<Milliseconds>& lease, std::uint64_t id, const Asked& asked,
               const std::function<bool(const TryAnswer&)>& tell) {
        std::unique_lock lock(mutex_);
        TryAnswer answer{TryAnswer::Kind::failed};
        bool wanted = false;
        try {
            answer = answer_of_try(lock, owner, lease, id, asked);
            lock.unlock();
            wanted = tell(answer);
        } catch (...) {  // no memory: `tell` has not accepted the hold
        }
        if (!lock.owns_lock()) lock.lock();
        end_try(owner);
        lock.unlock();
        if (answer.kind == TryAnswer::Kind::held && !wanted)
            release_in_background(
                owner, [](std::error_code) {}, Receiver::background);
    }

    TryAnswer answer_of_try(std::unique_lock<std::mutex>& lock, OwnerNumber owner,
                            const std::optional<Milliseconds>& lease, std::uint64_t id, const Asked& asked) {
        using Kind = TryAnswer::Kind;
        try {
            if (classify(asked.reply) != ReplyClass::answered) {
                if (asked.unsettled != 0 && id == 0) undo_acquire(lock, asked, lease_of(lease));
                return {Kind::failed, 0, error_of(asked.reply, key())};
            }
            const bool held = id == 0 ? apply_acquire_reply(lock, owner, lease, asked).kind == AcquireAnswer::Kind::held
                                      : apply_reentry_reply(lock, owner, id, lease, asked);
            if (!held) return {Kind::refused};
            return {Kind::held, holds_.find(owner)->id};
        } catch (const Error& error) {
            return {Kind::failed, 0, error};
        }
    }

    Milliseconds lease_of(const std::optional<Milliseconds>& lease) const {
        return lease ? *lease : session_.options().watchdog_timeout;
    }

    // --- acquire command --------------------------------------------------------------------------------------

    // `first`: True for the first command of a call.
    Instant give_up_at(const LockRequest& request, bool first) const {
        const Instant now = Clock::now();
        const ClientOptions& options = session_.options();
        const Milliseconds one_try =
            std::max(Milliseconds(100), std::min(options.command_timeout, options.unreachable_timeout));
        if (request.one_try) return now + one_try;
        // Waiting threads share the time for which a server was unreachable, but each gets a full try.
        const Instant give_up = deadline_after(failing_since_.value_or(now), options.unreachable_timeout);
        const Instant deadline = std::min(request.deadline, std::max(give_up, now + Milliseconds(100)));
        return first ? std::max(deadline, now + std::min(one_try, Session<T>::honest_try)) : deadline;
    }

    // Sends a call, and the calls that have to follow it: `next(sent, reply)`, as long as it returns one.
    template <class Next>
    Reply call_through(Call call, Instant deadline, const Next& next) {
        Reply reply = session_.call(call, deadline);
        while (std::optional<Call> following = next(std::as_const(call), std::as_const(reply))) {
            call = *std::move(following);
            reply = session_.call(call, deadline);
        }
        return reply;
    }

    Reply call_acquire(const Claim& claim, Instant deadline) {
        if constexpr (requires(const Call& call, const Reply& reply) { protocol_.after_acquire(claim, call, reply); })
            return call_through(protocol_.acquire(claim), deadline, [&](const Call& sent, const Reply& reply) {
                return protocol_.after_acquire(claim, sent, reply);
            });
        else
            return session_.call(protocol_.acquire(claim), deadline);
    }

    Asked send_acquire(std::unique_lock<std::mutex>& lock, const LockRequest& request, Claim claim, bool first) {
        // Start these before there is a hold: supervising a hold must not fail.
        session_.start_losses();
        session_.start_background();
        const Instant give_up = give_up_at(request, first);
        Asked asked;
        asked.hold = claim.hold;
        asked.begun = Clock::now();
        lock.unlock();
        const auto send_once = [&](Instant deadline, bool again) {
            if (again) claim.first = false;
            return session_.call_wanted(key(), deadline, [&](ServerMilliseconds until) {
                claim.until = until;
                claim.lease_end = session_.lease_end(until, claim.lease);
                const SendTime sent;
                Reply reply = call_acquire(claim, deadline);
                asked.sent = sent.as_of_now();
                // The call fixes the end of the lease by the server's clock, of which we have an estimate only.
                if constexpr (requires { Protocol::fixes_lease_end; }) asked.sent -= session_.clock_error();
                if (!reply.answered() && !reply.is_unsent()) asked.unsettled = std::max(asked.unsettled, until);
                return reply;
            });
        };
        asked.reply = session_.call_with_retry(give_up, request.stop, send_once, request.one_try);
        lock.lock();
        if (classify(asked.reply) == ReplyClass::answered)
            failing_since_.reset();
        else if (!failing_since_ && session_.is_away(asked.reply, asked.begun))
            failing_since_ = asked.begun;
        return asked;
    }

    // Returns false if the caller's stop token or deadline ended the call; otherwise throws.
    bool no_answer(const LockRequest& request, const Asked& asked) const {
        if (request.stop.stop_requested()) return false;
        // A server that got less than command_timeout counts as slow, not as unreachable.
        const Instant now = Clock::now();
        const bool perhaps_slow = asked.unsettled != 0 || asked.reply.kind == Reply::Kind::no_time;
        if (now >= request.deadline && perhaps_slow && now - asked.begun < session_.options().command_timeout)
            return false;
        throw error_of(asked.reply, key());
    }

    // Sends the acquire command for a first hold. Returns nothing if the caller's stop token or deadline ended the
    // call; otherwise held (and recorded) or blocked. `first`: True before any waiting.
    std::optional<AcquireAnswer> ask(std::unique_lock<std::mutex>& lock, const LockRequest& request, bool first) {
        return ask(lock, request, next_number(), first);
    }

    // Does the same under a given number. With `waiting`, the caller keeps waiting under that number if it is blocked,
    // and releases the number itself if there is no reply. `*waiting` keeps the server time until which an unanswered
    // sending may take effect.
    std::optional<AcquireAnswer> ask(std::unique_lock<std::mutex>& lock, const LockRequest& request,
                                     std::uint64_t number, bool first, std::int64_t* waiting = nullptr) {
        if (auto refusal = mixed_kinds()) throw *std::move(refusal);
        Claim claim = claim_of(request.owner, number, 1, request.lease);
        claim.announced = request.precedence && !request.one_try;
        claim.first = first;
        claim.queues = waiting != nullptr;
        Asked asked = send_acquire(lock, request, claim, first);
        if (waiting) asked.unsettled = *waiting = std::max(*waiting, asked.unsettled);
        if (classify(asked.reply) != ReplyClass::answered) {
            if (asked.unsettled != 0 && !waiting) undo_acquire(lock, asked, claim.lease);
            no_answer(request, asked);
            return std::nullopt;
        }
        return apply_acquire_reply(lock, request.owner, request.lease, asked, waiting != nullptr);
    }

    // Applies the reply to the acquire command for a first hold.
    AcquireAnswer apply_acquire_reply(std::unique_lock<std::mutex>& lock, OwnerNumber owner,
                                      const std::optional<Milliseconds>& wanted, const Asked& asked,
                                      bool waits_on = false) {
        const Instant now = Clock::now();
        const Milliseconds lease = lease_of(wanted);
        const AcquireAnswer answer = decode(lock, asked, lease);
        if (answer.kind != AcquireAnswer::Kind::held) {
            // A copy of an unanswered sending may still acquire it.
            if (asked.unsettled != 0 && !waits_on) undo_acquire(lock, asked, lease);
            return answer;
        }
        if (!asked.reply.replicated) {
            undo_acquire(lock, asked, lease);
            throw not_replicated(key());
        }
        // The reply took longer than the lease lasts, or the thread has acquired a hold in another way meanwhile.
        if (now >= redlatch::valid_until(asked.sent, lease) || live_hold(owner)) {
            undo_acquire(lock, asked, lease);
            return AcquireAnswer{AcquireAnswer::Kind::blocked, Milliseconds(0), 0};
        }
        record_or_undo(lock, owner, wanted, asked, answer.token);
        return answer;
    }

    // If recording fails (no memory, no thread), releases the hold and rethrows.
    void record_or_undo(std::unique_lock<std::mutex>& lock, OwnerNumber owner, const std::optional<Milliseconds>& lease,
                        const Asked& asked, std::int64_t token) {
        try {
            record(owner, asked.hold, asked.sent, lease, token).unsettled = asked.unsettled;
        } catch (...) {
            forget(owner);
            undo_acquire(lock, asked, lease_of(lease));
            throw;
        }
    }

    void forget(OwnerNumber owner) {
        if (Hold* hold = holds_.find(owner)) finish(*hold);
    }

    // Removes the live part of the hold from this process.
    void finish(Hold& hold) {
        key_holds_->ended(hold.id);
        holds_.finish(hold);
    }

    AcquireAnswer decode(std::unique_lock<std::mutex>& lock, const Asked& asked, Milliseconds lease) {
        try {
            return protocol_.read_acquire(asked.reply, key());
        } catch (...) {
            undo_acquire(lock, asked, lease);
            throw;
        }
    }

    Hold& record(OwnerNumber owner, std::uint64_t id, Instant sent, std::optional<Milliseconds> lease,
                 std::int64_t token) {
        Hold& hold = holds_.start(owner, id);
        hold.token = token;
        hold.enter(sent, lease, session_.options().watchdog_timeout);
        hold.set_notice(session_.losses().notice(), lease_of(lease));
        key_holds_->taken({Protocol::family, owner, id, !Protocol::shared});
        // Releasing it must not need memory.
        pending_.make_room();
        session_.count_acquisition();
        schedule();
        return hold;
    }

    // Acquires one more level for a thread that holds the lock. Returns true if it has one more, false if its stop
    // token or deadline ended the call. Returns nothing if the thread holds nothing, perhaps because its hold turned
    // out to be lost: then it has to acquire the lock like any other thread.
    std::optional<bool> reenter(std::unique_lock<std::mutex>& lock, const LockRequest& request) {
        Hold* hold = live_hold(request.owner);
        if (hold && refuses_reentry(*hold)) throw not_reentrant();
        hold = live_hold(request.owner);
        if (!hold) return std::nullopt;
        const std::uint64_t id = hold->id;
        const std::uint32_t count = hold->count + 1;
        if (count > 0x7fff'ffff)
            throw Error(errc::would_deadlock, key(), "locked more often by one thread than can be counted");
        const Claim claim = claim_of(request.owner, id, count, request.lease);
        const Asked asked = send_acquire(lock, request, claim, true);
        if (hold = live_hold(request.owner); hold && hold->id == id && asked.unsettled != 0) hold->doubtful = true;
        // An unknown outcome is harmless: the next command of this hold carries its absolute count.
        if (classify(asked.reply) != ReplyClass::answered) return no_answer(request, asked);
        if (apply_reentry_reply(lock, request.owner, id, request.lease, asked)) return true;
        return std::nullopt;
    }

    // Applies the reply to a reentry. Returns false if the hold is lost.
    bool apply_reentry_reply(std::unique_lock<std::mutex>& lock, OwnerNumber owner, std::uint64_t id,
                             const std::optional<Milliseconds>& wanted, const Asked& asked) {
        const AcquireAnswer answer = protocol_.read_acquire(asked.reply, key());
        Hold* hold = holds_.find(owner);
        if (!hold || hold->id != id || !hold->live()) {
            // The hold was lost while the command was in flight: release what it acquired. The owner was notified a
            // little early and was promised that time, so wait for it.
            if (answer.kind == AcquireAnswer::Kind::held)
                undo_acquire(lock, asked, lease_of(wanted), Clock::now() + Lateness::longest_notice);
            return false;
        }
        if (answer.kind != AcquireAnswer::Kind::held) {
            lose(*hold, "the server says that it is not held any more");
            holds_.erase_lost();
            return false;
        }
        // The server counts one level more than this process. The next command of this hold carries the absolute count.
        if (!asked.reply.replicated) throw not_replicated(key());
        hold->enter(asked.sent, wanted, session_.options().watchdog_timeout);
        schedule();
        return true;
    }

    // Returns true if the thread would deadlock with itself. A hold whose lease is over refuses nothing; it is lost.
    bool refuses_reentry(Hold& hold) {
        if (Protocol::reentrant || !hold.live()) return false;
        if (Clock::now() < hold.valid_until) return true;
        lose(hold, "its lease ran out");
        holds_.erase_lost();
        return false;
    }

    Error not_reentrant() const {
        return {errc::would_deadlock, key(),
                "this thread holds it already, and it is not reentrant; an RLock is, where sections nest"};
    }

    // --- releasing: the ways ----------------------------------------------------------------------------------

    Instant foreground_deadline() const { return Clock::now() + session_.options().command_timeout; }

    // A level that is being released.
    struct Leaving {
        std::uint64_t hold;
        std::uint32_t remaining;
        Milliseconds lease;      // for the remaining levels: the watchdog's, or 0 if none of them is under the watchdog
        Instant until;           // when the lease is over
        std::int64_t unsettled;  // of the hold
    };

    // Removes one level. A hold that loses its last level is no longer renewed.
    Leaving leave_level(Hold& hold) {
        Leaving leaving{hold.id, hold.count - 1, Milliseconds(0), hold.valid_until, hold.unsettled};
        if (hold.count == 1) {
            finish(hold);
            return leaving;
        }
        hold.leave();
        if (hold.watched()) leaving.lease = session_.options().watchdog_timeout;
        return leaving;
    }

    // Returns the owner's hold if it is still held. If its lease is over, reports the loss and returns null.
    Hold* hold_to_release(std::unique_lock<std::mutex>& lock, OwnerNumber owner) {
        Hold* hold = live_hold(owner);
        if (!hold || Clock::now() < hold->valid_until) return hold;
        give_back_later(*hold, Clock::now());
        lose(*hold, "its lease ran out");
        holds_.erase_lost();
        deliver_pending(lock);
        return nullptr;
    }

    // Returns the error of unlock() for an owner that holds nothing. Throws Error(errc::not_owner) if it never held the
    // lock.
    std::error_code gone_before(OwnerNumber owner) {
        // In a forked child the caller is most likely a guard of the parent, whose stack is being unwound.
        if (session_.lost_levels().take(kind, key(), owner) || session_.is_fork_child()) return errc::hold_lost;
        throw Error(errc::not_owner, key(), "unlock() by a thread that does not hold the lock");
    }

    std::error_code release_level(std::unique_lock<std::mutex>& lock, Hold& held) {
        const OwnerNumber owner = held.owner;
        const Leaving leaving = leave_level(held);
        Instant sent{};
        bool unknown = false;
        lock.unlock();
        const Reply reply = session_.call_with_retry(foreground_deadline(), {}, [&](Instant deadline, bool again) {
            sent = Clock::now();
            unknown = again;
            return session_.call(protocol_.release(leaving.hold, leaving.remaining, leaving.lease), deadline);
        });
        lock.lock();
        if (Hold* hold = live_hold(owner); hold && hold->id == leaving.hold)
            hold->doubtful |= unknown || !reply.answered();
        return level_released(reply, owner, leaving, sent);
    }

    std::error_code level_released(const Reply& reply, OwnerNumber owner, const Leaving& leaving, Instant sent) {
        // A missing reply is harmless: the next command of this hold carries its absolute count.
        if (classify(reply) != ReplyClass::answered) return error_of(reply, key()).code();
        Hold* hold = holds_.find(owner);
        if (!hold || hold->id != leaving.hold || !hold->live()) return errc::hold_lost;
        const ReleaseAnswer answer = protocol_.read_release(reply);
        if (answer.kind == ReleaseAnswer::Kind::senseless) return errc::protocol_error;
        if (answer.kind != ReleaseAnswer::Kind::still_held) {
            lose(*hold, "the server says that it is not held any more");
            holds_.erase_lost();
            return errc::hold_lost;
        }
        if (leaving.lease > Milliseconds(0))
            hold->valid_until = std::max(hold->valid_until, redlatch::valid_until(sent, leaving.lease));
        schedule();
        return {};
    }

    // Marks that a last release or a hand-over is in flight, so that no thread of this process asks the server
    // meanwhile. The destructor clears the mark, also after an exception.
    class InFlightGuard {
    public:
        InFlightGuard(LeaseManager& keeper, std::unique_lock<std::mutex>& lock) : keeper_(keeper), lock_(lock) {
            if (!Protocol::shared) keeper_.releasing_ = true;
        }
        InFlightGuard(const InFlightGuard&) = delete;
        InFlightGuard& operator=(const InFlightGuard&) = delete;
        ~InFlightGuard() {
            if (!lock_.owns_lock()) lock_.lock();
            if (!Protocol::shared) keeper_.releasing_ = false;
        }

    private:
        LeaseManager& keeper_;
        std::unique_lock<std::mutex>& lock_;
    };

    // Sends the last release. `again`: True if an earlier sending may have taken effect.
    Reply call_release(std::uint64_t hold, bool again, Instant deadline) {
        if constexpr (requires { protocol_.first_release(hold); })
            if (!again)
                return call_through(protocol_.first_release(hold), deadline, [&](const Call& sent, const Reply& reply) {
                    return protocol_.after_release(hold, sent, reply);
                });
        return session_.call(protocol_.release(hold, 0, Milliseconds(0)), deadline);
    }

    // Sends the last level back to the server. Calls `released(answer, resent)` with mutex_ held.
    template <class Released>
    std::error_code release_last(std::unique_lock<std::mutex>& lock, Hold& held, Released released) {
        return send_last(lock, leave_level(held), released);
    }

    // Does the same for a hold that is no longer recorded here.
    template <class Released>
    std::error_code send_last(std::unique_lock<std::mutex>& lock, const Leaving& leaving, Released released) {
        bool resent = false;
        Reply reply;
        try {
            const InFlightGuard in_flight_guard(*this, lock);
            lock.unlock();
            reply = session_.call_with_retry(foreground_deadline(), {}, [&](Instant deadline, bool again) {
                resent = again;
                return call_release(leaving.hold, again, deadline);
            });
        } catch (...) {  // no memory: handled as if nothing had been sent
            reply = Reply::of(Reply::Kind::not_sent, std::string());
        }
        return last_released(lock, reply, leaving, resent,
                             [&](const ReleaseAnswer& answer) { released(answer, resent); });
    }

    template <class Released>
    std::error_code last_released(std::unique_lock<std::mutex>& lock, const Reply& reply, const Leaving& leaving,
                                  bool resent, Released released) {
        const ReleaseAnswer answer = protocol_.read_release(reply);
        if (classify(reply) != ReplyClass::answered || answer.kind == ReleaseAnswer::Kind::senseless)
            return not_delivered(lock, reply, leaving);
        released(answer);
        // A copy of the unanswered acquire command may still arrive.
        if (leaving.unsettled != 0) give_back_later(leaving, unsettled_until(leaving.unsettled));
        // A release that was resent and finds nothing was delivered the first time.
        if (answer.kind == ReleaseAnswer::Kind::not_held && !resent) {
            // The server's clock may have jumped.
            session_.server_clock().doubt();
            report_loss("the server says that it was not held any more");
            return errc::hold_lost;
        }
        return {};
    }

    // Handles a last release that was not confirmed. A final refusal (the key is of another type by now) is a loss; any
    // other release is resent in the background.
    std::error_code not_delivered(std::unique_lock<std::mutex>& lock, const Reply& reply, const Leaving& leaving) {
        if (is_final(reply))
            report_loss(in_quotes(reply.text, 160));
        else
            give_back_later(leaving, Clock::now());
        notify();
        schedule();
        deliver_pending(lock);
        return classify(reply) == ReplyClass::answered ? make_error_code(errc::protocol_error)
                                                       : error_of(reply, key()).code();
    }

    // --- what is still to be released -------------------------------------------------------------------------

    // Returns when the server's clock is most likely past `unsettled`.
    Instant unsettled_until(std::int64_t unsettled) const {
        const Instant now = Clock::now();
        const auto server_now = session_.server_clock().roughly_at(session_.transport().route(key()), now);
        return now + Milliseconds(server_now ? std::clamp<std::int64_t>(unsettled - *server_now + 2, 0, 3'600'000) : 0);
    }

    // Releases in the background a number of unknown outcome, or a hold that no caller wants.
    void undo_acquire(std::unique_lock<std::mutex>& lock, const Asked& asked, Milliseconds lease,
                      Instant from = Clock::now()) {
        pending_.add({asked.hold}, asked.unsettled, from + lease + session_.options().command_timeout, from);
        schedule();
        // This thread sends it, so that it follows the acquire command on the same connection.
        deliver_pending(lock);
        cancel_announcement(lock);
    }

    // Withdraws the announcement that keeps others away for the waiting threads of this process.
    void cancel_announcement(std::unique_lock<std::mutex>& lock) {
        if constexpr (requires { protocol_.cancel_announcement(); }) {
            lock.unlock();
            if (const auto call = protocol_.cancel_announcement()) session_.post(*call, [](const Reply&) {});
            lock.lock();
        }
    }

    void give_back_later(const Hold& hold, Instant from) {
        pending_.add({hold.id}, hold.unsettled, Clock::now() + session_.options().watchdog_timeout, from);
        schedule();
    }

    void give_back_later(const Leaving& leaving, Instant from) {
        const Instant over = std::max(leaving.until, from + session_.options().command_timeout);
        pending_.add({leaving.hold}, leaving.unsettled, leaving.unsettled != 0 ? over : leaving.until, from);
        schedule();
    }

    void deliver_pending(std::unique_lock<std::mutex>& lock) {
        const std::vector<Outbox::Item> due = pending_.take_due(Clock::now());
        if (due.empty()) return;
        lock.unlock();
        for (const auto& item : due) {
            const std::uint64_t hold = item.unwanted.hold;
            try {
                const auto owner = protocol_.text(hold), successor = protocol_.text(item.unwanted.successor);
                const std::array<std::string_view, 2> owners{owner, successor};
                session_.post(protocol_.give_up(std::span(owners).first(item.unwanted.successor == 0 ? 1 : 2)),
                              [self = self(), hold](const Reply& reply) { self->delivered(hold, reply); });
            } catch (...) {  // no memory, no thread: retried after a pause
                delivered(hold, Reply::of(Reply::Kind::not_sent, std::string()));
            }
        }
        lock.lock();
    }

    void delivered(std::uint64_t hold, const Reply& reply) {
        const std::lock_guard lock(mutex_);
        if (classify(reply) == ReplyClass::answered && reply.is_integer())
            pending_.answered(hold, reply.integer, Clock::now());
        else if (is_final(reply))
            pending_.forget(hold);
        else
            pending_.failed(hold, Clock::now());
        // The session may drop the state now.
        if (pending_.empty()) session_.timers().schedule(*this, Clock::now());
        notify();
        schedule();
    }

    // --- losing -----------------------------------------------------------------------------------------------

    // Ends a hold that is lost. Its levels await their unlock(), which reports the loss. The caller removes the hold
    // from holds_, because it may be iterating over them.
    void lose(Hold& hold, const char* why) {
        // Steps that may run out of memory come first: then the hold is not lost yet, and the background retries.
        if (hold.renewing) lost_in_renewal_.push_back(hold.id);
        // A copy of the unanswered acquire command may still arrive.
        if (hold.unsettled != 0)
            give_back_later(hold, std::max(unsettled_until(hold.unsettled), Clock::now() + Lateness::longest_notice));
        session_.lost_levels().add(kind, key(), hold.owner, hold.count);
        if (hold.lost) session_.losses().tell(std::move(*hold.lost));
        key_holds_->ended(hold.id);
        hold.count = 0;
        hold.lost.reset();
        report_loss(why);
        notify();
    }

    void report_loss(std::string_view why) noexcept {
        session_.count_lost_hold();
        session_.raise(Event::Kind::hold_lost, key(), why);
    }

    void schedule() {
        Instant at = pending_.next_deadline();
        Instant lost_at = never;
        for (const Hold& hold : holds_) {
            if (!hold.live()) continue;
            at = std::min(at, hold.next_deadline());
            lost_at = std::min(lost_at, hold.lost_at());
        }
        if (at != never) session_.timers().schedule(*this, at);
        if (lost_at != never) session_.losses().timers().schedule(*this, lost_at);
    }

    Session<T>& session_;
    Protocol protocol_;
    const std::shared_ptr<KeyHolds> key_holds_;

    std::mutex mutex_;
    HoldTable holds_;
    Outbox pending_;
    std::optional<Instant> failing_since_;  // since then no server has replied
    bool releasing_ = false;                // True while a last release or a hand-over is in flight

private:
    std::size_t in_flight_ = 0;                   // tries and releases in flight in the background
    std::vector<OwnerNumber> trying_;             // owners of the tries among them
    std::vector<std::uint64_t> lost_in_renewal_;  // holds that were lost while a renewal was in flight
};

}  // namespace v0_1
}  // namespace redlatch
