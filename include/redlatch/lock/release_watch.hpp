// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/task.hpp"
#include "redlatch/inspection.hpp"
#include "redlatch/lock/lock_queue.hpp"
#include "redlatch/protocol/lock_protocol.hpp"
#include "redlatch/session/awaiting.hpp"
#include "redlatch/session/background_task.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/wait/lock_request.hpp"
#include "redlatch/wait/patience.hpp"
#include "redlatch/wait/wait_queue.hpp"
#include "redlatch/wait/wait_request.hpp"
#include "redlatch/wait/waiter.hpp"
#include "redlatch/wait/waiting_room.hpp"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A caller's request for the end of others' holds.
struct ReleaseRequest : WaitRequest {
    std::optional<Polling> polling{};  // none: woken by messages, where there are any
};

// One caller that waits for the end of the holds that it found.
struct ReleaseWaiter : Waiter {
    explicit ReleaseWaiter(const ReleaseRequest& wanted) : Waiter(wanted.by) {}

    std::vector<std::string> owners;   // of these holds
    std::uint64_t generation = 0;      // of the queue, when it looked
    Instant look_again = never;        // when the first of their leases is over
    std::optional<Polling> polling{};  // set if it looks again after pauses and receives no messages
    Instant pause_end = never;

    // Returns true if none of the holds is among these.
    bool is_over(const Inspection& now) const {
        return std::none_of(now.holders.begin(), now.holders.end(), [&](const Holder& holder) {
            return std::find(owners.begin(), owners.end(), holder.owner) != owners.end();
        });
    }
};

// Lets the callers of this process wait for the end of others' holds of one lock. None of them acquires anything. A
// message is only a reason to look: it may be about another hold, or about none. The representative looks for all.
//
// A task of its own beside the state of the lock, because the waiters for the lock have a subscription of their own. The
// state of the lock outlives the calls of wait(). It need not outlive the events.
//
// mutex_ guards the members that are not constant. It is never held during a command. No other mutex of ours is locked
// while it is held, but those of the session.
class ReleaseWatch final : public BackgroundTask {
    using Room = WaitingRoom<WaitQueue<ReleaseWaiter>>;

public:
    ReleaseWatch(Session& session, const LockProtocol& protocol)
        : session_(session),
          protocol_(protocol),
          key_(protocol.key()),
          room_(mutex_, session, *this, protocol.channel()) {}

    // Returns true once each hold that it found has ended; false if the deadline passes or a stop is requested. Throws
    // Error. With `polling`, it needs no messages. The request must outlive the task.
    Task<bool> wait(const ReleaseRequest& request) { return room_.wait(*this, request); }

    // --- the waiter's state machine; called by the waiting room -------------------------------------------------

    // The first look.
    Task<std::optional<bool>> first(std::unique_lock<std::mutex>& lock, ReleaseWaiter& me,
                                    const ReleaseRequest& request) {
        if (room_.queue.empty()) patience_.answered();
        me.generation = room_.queue.generation();
        const std::optional<Inspection> found = co_await look(lock, request, true);
        if (!found) co_return false;
        if (found->holders.empty()) co_return true;
        if (request.one_try) co_return false;
        for (const Holder& holder : found->holders) me.owners.push_back(holder.owner);
        me.look_again = look_again_after(*found);
        me.polling = request.polling;
        if (!me.polling && room_.channel().empty()) me.polling = without_channel;
        me.listens = !me.polling;
        co_return std::nullopt;
    }

    void joined(ReleaseWaiter& me) {
        const bool looked_for_all = room_.queue.is_front(me);
        if (looked_for_all)
            room_.queue.asked(me.generation, me.look_again);
        else
            room_.queue.set_ask_again(std::min(room_.queue.ask_again(), me.look_again));
        // The representative may have looked, on behalf of those in the queue, after this caller did.
        if (!looked_for_all && me.generation != room_.queue.generation()) room_.notify();
        if (me.listens) room_.listen();
        pause(me);
    }

    NextStep next(ReleaseWaiter& me, Instant now) {
        if (me.is_served()) return {NextStep::Kind::served};
        if (me.error) std::rethrow_exception(me.error);
        if (!room_.queue.is_front(me)) return {NextStep::Kind::sleep};
        const Instant at = std::min(room_.queue.ask_again(), me.pause_end);
        if (room_.queue.is_notified() || now >= at) return {NextStep::Kind::ask};
        return {NextStep::Kind::sleep, at, room_.is_receivable()};
    }

    Task<void> ask(std::unique_lock<std::mutex>& lock, ReleaseWaiter& me, const ReleaseRequest& request) {
        const std::uint64_t generation = room_.queue.generation();
        const std::uint64_t last = room_.queue.last_number();
        const std::optional<Inspection> found = co_await look(lock, request, false);
        if (!found) co_return;
        room_.queue.asked(generation, look_again_after(*found));
        pause(me);
        room_.queue.for_each([&](ReleaseWaiter& waiter) {
            // Who has joined meanwhile may have looked after this look: what it found may be newer.
            if (waiter.number > last)
                return room_.queue.set_ask_again(std::min(room_.queue.ask_again(), waiter.look_again));
            if (!waiter.is_over(*found)) return;
            waiter.phase = Waiter::Phase::served;
            if (&waiter != &me) room_.wake(waiter);
        });
    }

    void left(std::unique_lock<std::mutex>&, ReleaseWaiter&) {
        if (room_.queue.empty()) patience_.answered();
    }

    // --- background -------------------------------------------------------------------------------------------

    void on_timer(Instant, Instant, std::vector<Renewal>&) override {}

    void subscribed(const std::string&) override {
        const std::lock_guard lock(mutex_);
        room_.subscribed();
    }

    void subscription_refused(const std::string&, const Reply& why) override {
        const std::lock_guard lock(mutex_);
        room_.refused(error_of(why, key_));
    }

    void message(const std::string&, std::string_view) override {
        const std::lock_guard lock(mutex_);
        room_.notify();
    }

    void disconnected(const std::string&) override {
        const std::lock_guard lock(mutex_);
        room_.disconnected();
    }

private:
    // How to look where the releases of a lock reach no channel that all can hear.
    static constexpr Polling without_channel{ShortTime(10), ShortTime(500)};

    static void pause(ReleaseWaiter& me) {
        if (me.polling) me.pause_end = Clock::now() + me.polling->next(me.pause);
    }

    // Returns when one of these holds ends, unless its lease is renewed. No message reports that.
    static Instant look_again_after(const Inspection& found) {
        Milliseconds left = LockQueue::longest_sleep;
        for (const Holder& holder : found.holders)
            left = std::min(left, holder.lease == Milliseconds::max() ? LockQueue::slow_poll : holder.lease);
        // Add one: the key is gone only in the millisecond after its last.
        return Clock::now() + left + Milliseconds(1);
    }

    // Asks who holds the lock. Returns nothing if the caller's stop token or deadline ended the call; otherwise throws.
    // `first`: True before any waiting.
    Task<std::optional<Inspection>> look(std::unique_lock<std::mutex>& lock, const WaitRequest& request, bool first) {
        const Instant give_up = patience_.give_up_at(request, first);
        const Instant begun = Clock::now();
        lock.unlock();
        const Call call = protocol_.inspect();
        Retry retry =
            session_.retry({give_up, request.stop, request.one_try, request.by, request.settings.command_timeout});
        Reply reply;
        bool reached = false;  // True if a command may have reached the server
        std::optional<Instant> rest;
        do {
            try {
                reply = co_await ReplyTo(session_, request.by, call, retry.deadline());
            } catch (const std::bad_alloc&) {
                reply = short_of_memory(request.by);
            }
            if (!reply.answered() && !reply.is_unsent()) reached = true;
            rest = retry.rest_after(reply);
            if (rest) co_await Pause(request.by, *rest, request.stop);
        } while (rest && retry.goes_on());
        lock.lock();
        if (classify(reply) == ReplyClass::answered) {
            patience_.answered();
            co_return protocol_.read_inspection(reply);
        }
        patience_.failed(request, begun, reply);
        if (request.stop.stop_requested() || patience_.was_too_short(request, begun, reply, reached))
            co_return std::nullopt;
        throw error_of(reply, key_);
    }

    Session& session_;
    const LockProtocol& protocol_;
    const std::string key_;
    std::mutex mutex_;
    Room room_;
    Patience patience_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
