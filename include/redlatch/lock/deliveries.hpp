// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/lock/hold_table.hpp"
#include "redlatch/lock/lock_core.hpp"
#include "redlatch/lock/outbox.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A level that is being released.
struct Leaving {
    std::uint64_t hold;
    std::uint32_t remaining;
    Milliseconds lease;      // for the remaining levels: the watchdog's, or 0 if none of them is under the watchdog
    Instant until;           // when the lease is over
    std::int64_t unsettled;  // of the hold
    Settings settings{};     // likewise
    Instant stays_until = Instant::min();  // likewise
    // The number under which the lock stays taken after this last level; 0: it becomes free.
    std::uint64_t successor = 0;
};

// Returns how long a lock stays taken from now on.
inline Milliseconds rest_until(Instant stays_until, Instant now) {
    return std::max(Milliseconds(1), std::chrono::ceil<Milliseconds>(stays_until - now));
}

// Delivers the releases that the foreground could not deliver, and those of numbers whose outcome is unknown: it posts
// what is due in the outbox of a lock.
class Deliveries {
public:
    explicit Deliveries(LockCore& core) : core_(core) {}

    // Returns when the server's clock is most likely past `unsettled`.
    Instant unsettled_until(std::int64_t unsettled) const {
        const Instant now = Clock::now();
        const auto server_now =
            core_.session.server_clock().roughly_at(core_.session.transport().route(core_.key()), now);
        return now + Milliseconds(server_now ? std::clamp<std::int64_t>(unsettled - *server_now + 2, 0, 3'600'000) : 0);
    }

    // Releases in the background a number of unknown outcome, or a hold that no caller wants. `unsettled`: the server
    // time until which an unanswered acquire may take effect; 0 for none.
    void undo_acquire(std::unique_lock<std::mutex>& lock, std::uint64_t number, std::int64_t unsettled,
                      Milliseconds lease, Instant from = Clock::now()) {
        // The acquire may still take effect until then, and last for a lease from there.
        const Instant over = unsettled != 0 ? std::max(from, unsettled_until(unsettled)) : from;
        core_.outbox.add({number}, unsettled, over + lease + core_.session.options().command_timeout, from);
        core_.schedule();
        // This thread sends it, so that it follows the acquire command on the same connection.
        deliver(lock);
        cancel_announcement(lock);
    }

    // Withdraws the announcement that keeps others away for the waiting threads of this process.
    void cancel_announcement(std::unique_lock<std::mutex>& lock) {
        const std::optional<Call> call = core_.protocol.cancel_announcement();
        if (!call) return;
        lock.unlock();
        core_.session.post(*call, [](const Reply&) {});
        lock.lock();
    }

    void give_back_later(const HoldRecord& hold, Instant from) {
        const Instant over = std::max(Clock::now() + hold.settings.watchdog_timeout, hold.may_last);
        core_.outbox.add({hold.id}, hold.unsettled, over, from, {}, hold.stays_until);
        core_.schedule();
    }

    void give_back_later(const Leaving& leaving, Instant from) {
        const Instant over = std::max(leaving.until, from + core_.session.options().command_timeout);
        core_.outbox.add({leaving.hold}, leaving.unsettled, leaving.unsettled != 0 ? over : leaving.until, from, {},
                         leaving.stays_until);
        core_.schedule();
    }

    // The server no longer has this hold. Whoever has ended it may have woken nobody who queues: the script that gives it back
    // does.
    template <class Hold>
    void wake_queue(const Hold& hold) {
        if (core_.protocol.queues()) give_back_later(hold, Clock::now());
    }

    // Ends the number under which the lock stays taken, when its time is over, if the lease alone may not do that. Without
    // memory the leases of those who keep the key end it.
    void end_successor(std::uint64_t successor, Instant stays_until) noexcept try {
        if (!core_.kind.outlives_lease) return;
        core_.outbox.add({successor}, 0, stays_until + core_.session.options().watchdog_timeout, stays_until);
        core_.schedule();
    } catch (const std::bad_alloc&) {
    }

    // Reports the releases whose time is over. Others are not blocked any more.
    void drop_expired(Instant now) {
        for (std::size_t n = core_.outbox.take_expired(now); n > 0; --n)
            core_.session.raise(Event::Kind::unlock_not_delivered, core_.key(),
                                "the release was not delivered; the lease has expired, so others can acquire it");
    }

    // Posts what is due.
    void deliver(std::unique_lock<std::mutex>& lock) {
        const std::vector<Outbox::Due> due = core_.outbox.take_due(Clock::now());
        if (due.empty()) return;
        lock.unlock();
        for (const auto& item : due) {
            const std::uint64_t hold = item.unwanted.hold;
            try {
                if (const Instant now = Clock::now(); now < item.stays_until) {
                    post_stay(item, now);
                    continue;
                }
                const auto owner = core_.protocol.text(hold), successor = core_.protocol.text(item.unwanted.successor);
                const std::array<std::string_view, 2> owners{owner, successor};
                core_.session.post(
                    core_.protocol.give_up(std::span(owners).first(item.unwanted.successor == 0 ? 1 : 2)),
                    [this, keep = core_.keep(), hold](const Reply& reply) { delivered(hold, reply); });
            } catch (...) {  // no memory, no thread: retried after a pause
                delivered(hold, Reply::of(Reply::Kind::not_sent, std::string()));
            }
        }
        lock.lock();
    }

private:
    // Ends the hold of an item, but not yet the lock.
    void post_stay(const Outbox::Due& item, Instant now) {
        const std::uint64_t hold = item.unwanted.hold, successor = core_.next_number();
        core_.session.post(core_.protocol.stay(hold, successor, rest_until(item.stays_until, now)),
                           [this, keep = core_.keep(), hold, successor, until = item.stays_until](Reply reply) {
                               if (read_stay(reply).kind == ReleaseAnswer::Kind::released) {
                                   const std::lock_guard lock(core_.mutex);
                                   end_successor(successor, until);
                               }
                               if (reply.is_integer()) reply.integer = std::abs(reply.integer);
                               delivered(hold, reply);
                           });
    }

    void delivered(std::uint64_t hold, const Reply& reply) {
        const std::lock_guard lock(core_.mutex);
        const bool done = classify(reply) == ReplyClass::answered && reply.is_integer();
        // Access rights may be corrected, so a refusal for the lack of them does not end the delivery.
        if (done || classify(reply) == ReplyClass::refused)
            if (const auto released = core_.outbox.take_answered(hold))
                released(done ? std::error_code() : error_of(reply, core_.key()).code());
        if (done)
            core_.outbox.answered(hold, reply.integer, Clock::now());
        else if (is_final(reply))
            core_.outbox.forget(hold);
        else
            core_.outbox.failed(hold, Clock::now());
        // The session may drop the state now.
        if (core_.outbox.empty()) core_.session.timers().schedule(core_.task, Clock::now());
        core_.task.may_be_free();
        core_.schedule();
    }

    LockCore& core_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
