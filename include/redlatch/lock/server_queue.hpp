// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/suspended.hpp"
#include "redlatch/base/task.hpp"
#include "redlatch/error.hpp"
#include "redlatch/lock/grant.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/lock/lock_parts.hpp"
#include "redlatch/lock/turn_queue.hpp"
#include "redlatch/protocol/fair_lock.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/session/subscriptions.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/wait/lock_request.hpp"
#include "redlatch/wait/wait_queue.hpp"
#include "redlatch/wait/waiter.hpp"
#include "redlatch/wait/waiting_room.hpp"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// One caller that stands in the server's queue, and what it knows from its last command.
struct FairWaiter : Waiter {
    using Waiter::Waiter;

    OwnerNumber owner = 0;
    const LockRequest* request = nullptr;
    std::uint64_t id = 0;      // of the slot in the queue, and of the hold
    KeptNumber kept;           // what became of the id
    bool grantable = false;    // True if a release may have granted the lock to its id, beside the hold that it has
    bool was_granted = false;  // True if it has entered by that grant
    bool joined = false;       // True if it has a level of a hold that another caller of its owner acquired
    Instant ask_again{};       // unless an event comes earlier
};

// Lets the waiting threads of all processes stand in one queue on the server, each for itself. No thread asks on behalf
// of another, and there is no local hand-over: either would let a thread pass others that came before it.
//
// A waiting thread has a ticket here (its channel, and a waiting room for it alone) and a slot in the server's queue. The
// slot lasts for FairProtocol::slot(), by default 5 s at most, unless it is refreshed. The background thread refreshes the
// slots of all waiters of this process together; the reply shows which waiters have lost theirs. A release grants the lock
// to the head of the queue, if that waiter can be granted it: see scripts/fair_lock.hpp. Otherwise the server notifies the
// head when the lock is free:
//   at a release,
//   when a waiter before it leaves,
//   at every refresh, in case such a message was lost.
//
// The mutex of the lock guards all members.
class ServerQueue final : public TurnQueue {
public:
    explicit ServerQueue(LockParts& parts)
        : parts_(parts), core_(parts.core), protocol_(static_cast<const FairProtocol&>(core_.protocol)) {}

    bool is_waited_for() const override { return waiting_ > 0; }

    // --- acquiring --------------------------------------------------------------------------------------------

    // Returns true if held, false if the deadline passes or a stop is requested. Throws Error.
    Task<bool> acquire(const LockRequest& request) override {
        if (request.stop.stop_requested()) co_return false;
        std::unique_lock lock(core_.mutex);
        if (waiting_ == 0) core_.patience.answered();
        if (HoldRecord* hold = parts_.acquires.hold_to_reenter(request)) {
            const std::optional<bool> reentered = co_await parts_.acquires.reenter(lock, request, *hold);
            if (reentered) co_return *reentered;
        }
        if (request.one_try) {
            const auto answer = co_await parts_.acquires.ask(lock, request, core_.next_number(), true);
            if (answer && answer->kind == AcquireAnswer::Kind::held) co_return true;
            if (!parts_.acquires.can_join(request.owner)) co_return false;
            co_return (co_await parts_.acquires.join(lock, request)).value_or(0) != 0;
        }
        for (;;) {
            // Checked before anything is sent, so a refusal leaves nothing to release.
            if (auto refusal = parts_.leases.mixed_kinds()) throw *std::move(refusal);
            FairWaiter me(request.by);
            me.owner = request.owner;
            me.request = &request;
            me.id = spare_id();
            // A waiter that is still subscribed from an earlier wait misses no message between the command and the
            // sleep.
            const auto warm = tickets_.find(me.id);
            const std::uint64_t generation = warm == tickets_.end() ? 0 : warm->second.room.queue.generation();
            if (warm != tickets_.end()) warm->second.forget_news();
            const bool answered = co_await ask_at_first(lock, request, me);
            if (!answered) co_return false;
            if (me.is_served()) co_return true;
            const bool held = co_await wait(lock, request, me, generation);
            if (held) co_return true;
            if (!me.kept.given_up || request.stop.stop_requested() || Clock::now() >= request.deadline) co_return false;
        }
    }

    // --- the waiter's state machine; called by the waiting room -------------------------------------------------

    void joined(FairWaiter& me) { tickets_.at(me.id).room.listen(); }

    NextStep next(FairWaiter& me, Instant now) {
        if (me.is_served()) return {NextStep::Kind::served};
        if (me.error) std::rethrow_exception(me.error);
        if (me.kept.given_up) return {NextStep::Kind::leave};
        if (parts_.acquires.can_join(me.owner)) return {NextStep::Kind::ask};
        Ticket& ticket = tickets_.at(me.id);
        if (ticket.granted) {
            const Grant grant = *std::exchange(ticket.granted, std::nullopt);
            enter(me, grant);
            return {me.is_served() ? NextStep::Kind::served : NextStep::Kind::ask};
        }
        const Instant ask_again = std::min(ticket.room.queue.ask_again(), ticket.ask_at);
        if (ticket.room.queue.is_notified() || now >= ask_again) return {NextStep::Kind::ask};
        return {NextStep::Kind::sleep, ask_again, ticket.room.is_receivable()};
    }

    Task<void> ask(std::unique_lock<std::mutex>& lock, FairWaiter& me, const LockRequest& request) {
        if (parts_.acquires.can_join(me.owner)) {
            if (const auto joined = co_await parts_.acquires.join(lock, request)) {
                me.joined = *joined != 0;
                if (me.joined) me.phase = Waiter::Phase::served;
                co_return;
            }
        }
        Ticket& ticket = tickets_.at(me.id);
        const std::uint64_t generation = ticket.room.queue.generation();
        ticket.ask_at = never;
        const bool answered = co_await ask_or_queue(lock, request, me, false);
        if (answered) ticket.room.queue.asked(generation, me.ask_again);
    }

    void left(std::unique_lock<std::mutex>&, FairWaiter&) {}

    // --- releasing --------------------------------------------------------------------------------------------

    std::error_code release_hold(std::unique_lock<std::mutex>& lock, HoldRecord& hold) override {
        const std::uint64_t id = hold.id;
        const bool settled = hold.unsettled == 0 && !hold.renewing && !hold.doubtful() && hold.changing == 0;
        return parts_.releases.release_last(lock, hold, [&](const ReleaseAnswer& answer, bool resent) {
            if (settled && !resent && answer.kind == ReleaseAnswer::Kind::released && tickets_.contains(id))
                spare_.push_back(id);
        });
    }

    // --- events -----------------------------------------------------------------------------------------------

    // The server notifies the head of its queue.
    void may_be_free() override {}

    void acquired_for(OwnerNumber owner) override {
        for (auto& [id, ticket] : tickets_)
            ticket.room.queue.for_each([&, &room = ticket.room](FairWaiter& waiter) {
                if (waiter.owner == owner) room.wake(waiter);
            });
    }

    void on_timer(std::unique_lock<std::mutex>& lock, Instant now) override {
        if (now >= refresh_at_) refresh(lock, now);
        // The session drops subscriptions that have been idle for keep_warm. Drop their tickets, too.
        std::erase_if(tickets_, [&](const auto& entry) {
            const Ticket& ticket = entry.second;
            return !ticket.is_waiting() && now - ticket.idle_since >= Subscriptions::keep_warm;
        });
        if (refresh_at_ != never) core_.session.timers().schedule(core_.task, refresh_at_);
        if (!tickets_.empty()) core_.session.timers().schedule(core_.task, now + Subscriptions::keep_warm);
    }

    void subscribed(const std::string& channel) override {
        if (Ticket* ticket = ticket_of(channel)) ticket->room.subscribed();
    }

    void subscription_refused(const std::string& channel, const Reply& why) override {
        if (Ticket* ticket = ticket_of(channel)) ticket->room.refused(error_of(why, core_.key()));
    }

    // The payload reports a grant, or that the lock is free, or, to the new head of the queue, in how many ms the new
    // holder's lease is over.
    void message(const std::string& channel, std::string_view payload) override {
        const auto found = find_ticket(channel);
        if (found == tickets_.end()) return;
        Ticket* const ticket = &found->second;
        if (payload.starts_with(grant_word)) {
            if (const auto grant = Grant::in(payload.substr(grant_word.size()), found->first)) ticket->granted = grant;
            return ticket->room.wake_front();
        }
        std::int64_t lease = 0;
        const auto [end, error] = std::from_chars(payload.data(), payload.data() + payload.size(), lease);
        if (error != std::errc{} || end != payload.data() + payload.size() || lease < 2 || !is_plausible(lease))
            return ticket->room.notify();
        // One ms more: the key exists until the end of its last millisecond.
        ticket->ask_at = deadline_after(Clock::now(), Milliseconds(lease) + Milliseconds(1));
        ticket->room.wake_front();
    }

    void disconnected(const std::string& channel) override {
        if (Ticket* ticket = ticket_of(channel)) ticket->room.disconnected();
    }

private:
    // What this process keeps for one waiter, and for a while afterwards, because its thread is likely to come again.
    struct Ticket {
        Ticket(LockCore& core, const FairProtocol& protocol, std::uint64_t id)
            : room(core.mutex, core.session, core.task, protocol.channel_of(id), true) {}

        bool is_waiting() const { return idle_since == never; }

        // What was told before the first question of a wait means nothing to it.
        void forget_news() {
            granted.reset();
            ask_at = never;
        }

        WaitingRoom<WaitQueue<FairWaiter>> room;
        std::optional<Grant> granted{};
        Instant ask_at = never;      // when it has to ask at the latest, according to a message
        Instant idle_since = never;  // when the last wait ended; `never` while a thread waits
    };

    // The longest wait between two commands, even if the reply names a later time.
    static constexpr Milliseconds longest_sleep{30'000};
    static constexpr std::size_t waiters_a_refresh = 100;
    static constexpr std::string_view grant_word = "grant ";

    // Returns the ticket whose channel this is, if it is still there. The name of a channel ends with the id.
    std::map<std::uint64_t, Ticket>::iterator find_ticket(std::string_view channel) {
        const std::string_view digits = channel.substr(channel.rfind(':') + 1);
        std::uint64_t id = 0;
        std::from_chars(digits.data(), digits.data() + digits.size(), id);
        return tickets_.find(id);
    }
    Ticket* ticket_of(std::string_view channel) {
        const auto found = find_ticket(channel);
        return found == tickets_.end() ? nullptr : &found->second;
    }

    // Returns true if a release may grant the lock to this waiter: it listens, and is under a watchdog whose lease is no
    // shorter than a grant. A fixed lease would have to be asked for.
    bool can_be_granted(const FairWaiter& me) const {
        const auto ticket = tickets_.find(me.id);
        return protocol_.grants() && ticket != tickets_.end() && ticket->second.room.is_subscribed() &&
               !me.request->lease && me.request->settings.watchdog_timeout >= FairProtocol::offer &&
               may_be_granted(*me.request);
    }

    // Lets a waiter enter by a grant, if it is certain that the hold lasts.
    void enter(FairWaiter& me, const Grant& grant) {
        const std::optional<Instant> since = granted_since(parts_, grant, *me.request);
        if (!since) return;
        record_grant(parts_, grant, *me.request, me.id, *since, me.kept.unsettled,
                     core_.lease_of(me.request->lease, me.request->settings));
        me.was_granted = true;
        me.phase = Waiter::Phase::served;
    }

    // Returns an id to wait under. Prefers that of an earlier hold, whose channel may still be subscribed, if no command
    // in its name can be in flight.
    std::uint64_t spare_id() {
        while (!spare_.empty()) {
            const std::uint64_t id = spare_.back();
            spare_.pop_back();
            if (tickets_.contains(id)) return id;
        }
        return core_.next_number();
    }

    // --- asking -----------------------------------------------------------------------------------------------

    // Sends the first command, before there is a ticket. Without success, releases what it may have acquired.
    Task<bool> ask_at_first(std::unique_lock<std::mutex>& lock, const LockRequest& request, FairWaiter& me) {
        bool answered = false;
        try {
            answered = co_await ask_or_queue(lock, request, me, true);
        } catch (const Error& error) {
            if (!lock.owns_lock()) lock.lock();
            // A server that was not reached has nothing to release.
            if (error.code() != errc::unreachable || me.kept.unsettled != 0) undo_acquire(lock, request, me);
            throw;
        } catch (...) {
            if (!lock.owns_lock()) lock.lock();
            undo_acquire(lock, request, me);
            throw;
        }
        if (!answered && me.kept.unsettled != 0) undo_acquire(lock, request, me);
        co_return answered;
    }

    // Acquires the lock or joins the queue. Returns false if the caller's stop token or deadline ended the call.
    Task<bool> ask_or_queue(std::unique_lock<std::mutex>& lock, const LockRequest& request, FairWaiter& me,
                            bool first) {
        const bool was_grantable = me.grantable, grantable = can_be_granted(me);
        me.grantable |= grantable;
        const std::optional<AcquireAnswer> answer =
            co_await parts_.acquires.ask(lock, request, me.id, first, &me.kept, grantable);
        if (!answer) co_return false;
        if (answer->kind == AcquireAnswer::Kind::held) {
            me.phase = Waiter::Phase::served;
            // A question that acquires the lock leaves no place that could be granted it.
            if (me.kept.unsettled == 0) me.grantable = was_grantable;
        }
        // The script refuses a key without a TTL. A reply without one all the same must not cause a tight loop.
        const Milliseconds left = answer->holder_lease < Milliseconds(0) ? longest_sleep : answer->holder_lease;
        // One ms more: the key exists until the end of its last millisecond.
        me.ask_again = Clock::now() + std::min(left, longest_sleep) + Milliseconds(1);
        co_return true;
    }

    void undo_acquire(std::unique_lock<std::mutex>& lock, const LockRequest& request, const FairWaiter& me) {
        if (me.kept.given_up) return;
        parts_.deliveries.undo_acquire(lock, me.id, me.kept.unsettled, core_.lease_of(request.lease, request.settings));
    }

    // --- waiting ----------------------------------------------------------------------------------------------

    // `generation`: of the ticket from before the first command; 0 if there was no ticket.
    Task<bool> wait(std::unique_lock<std::mutex>& lock, const LockRequest& request, FairWaiter& me,
                    std::uint64_t generation) {
        Ticket& ticket = ticket_or_leave(lock, request, me);
        ++waiting_;
        ticket.idle_since = never;
        ticket.room.queue.asked(generation == 0 ? ticket.room.queue.generation() : generation, me.ask_again);
        if (refresh_at_ == never) {
            refresh_at_ = Clock::now() + protocol_.slot() / 3;
            core_.session.timers().schedule(core_.task, refresh_at_);
        }
        lock.unlock();
        bool held = false;
        try {
            held = co_await ticket.room.wait(*this, me, request);
        } catch (...) {
            lock.lock();
            leave(lock, request, me, false);
            throw;
        }
        lock.lock();
        leave(lock, request, me, held && !me.joined);
        co_return held;
    }

    // Without memory for a ticket, gives up the slot in the queue and rethrows.
    Ticket& ticket_or_leave(std::unique_lock<std::mutex>& lock, const LockRequest& request, const FairWaiter& me) {
        try {
            return tickets_.try_emplace(me.id, core_, protocol_, me.id).first->second;
        } catch (...) {
            undo_acquire(lock, request, me);
            throw;
        }
    }

    // Ends a wait. `held`: True if it acquired the lock under its id. A waiter that leaves without that gives up its
    // slot, and the server notifies the next one.
    void leave(std::unique_lock<std::mutex>& lock, const LockRequest& request, const FairWaiter& me, bool held) {
        const Instant now = Clock::now();
        if (--waiting_ == 0) {
            core_.patience.answered();
            refresh_at_ = never;
        }
        // The message of a grant may still come. So another wait must not use this id.
        if (held && me.grantable && !me.was_granted) {
            tickets_.erase(me.id);
            return;
        }
        if (held) {
            tickets_.at(me.id).idle_since = now;
            core_.session.timers().schedule(core_.task, now + Subscriptions::keep_warm);
            return;
        }
        tickets_.erase(me.id);
        undo_acquire(lock, request, me);
    }

    // --- refreshing the slots ---------------------------------------------------------------------------------

    void refresh(std::unique_lock<std::mutex>& lock, Instant now) {
        std::vector<std::uint64_t> waiters;
        for (const auto& [id, ticket] : tickets_)
            if (ticket.is_waiting()) waiters.push_back(id);
        refresh_at_ = waiters.empty() ? never : now + protocol_.slot() / 3;
        lock.unlock();
        for (std::size_t first = 0; first < waiters.size(); first += waiters_a_refresh) {
            const std::size_t size = std::min(waiters_a_refresh, waiters.size() - first);
            post_refresh({waiters.begin() + static_cast<std::ptrdiff_t>(first), size});
        }
        lock.lock();
    }

    void post_refresh(std::span<const std::uint64_t> waiters) {
        core_.session.post(
            protocol_.refresh(waiters, core_.session.wanted_until(core_.key())),
            [this, keep = core_.keep(), asked = std::vector<std::uint64_t>(waiters.begin(), waiters.end()),
             sent = SendTime()](const Reply& reply) {
                core_.session.learn_if_late(core_.key(), sent, reply);
                refreshed(asked, reply);
            });
    }

    // Wakes waiters that lost their slot, because the refresh was late or the server lost its data. They join the queue
    // again.
    void refreshed(const std::vector<std::uint64_t>& waiters, const Reply& reply) {
        const std::lock_guard lock(core_.mutex);
        if (classify(reply) != ReplyClass::answered) {
            if (waiting_ == 0) return;
            refresh_at_ = std::min(refresh_at_, Clock::now() + protocol_.slot() / 20);
            core_.session.timers().schedule(core_.task, refresh_at_);
            return;
        }
        if (reply.kind != Reply::Kind::array || reply.elements.size() != waiters.size()) return;
        for (std::size_t i = 0; i < waiters.size(); ++i) {
            if (!reply.elements[i].is_integer() || reply.elements[i].integer != 0) continue;
            const auto ticket = tickets_.find(waiters[i]);
            if (ticket != tickets_.end() && ticket->second.is_waiting()) ticket->second.room.notify();
        }
    }

    LockParts& parts_;
    LockCore& core_;
    const FairProtocol& protocol_;
    std::map<std::uint64_t, Ticket> tickets_;  // by id: of the waiters, and of recent ones
    std::vector<std::uint64_t> spare_;         // ids of recent holders, ready to be used again
    std::size_t waiting_ = 0;
    Instant refresh_at_ = never;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
