// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/suspended.hpp"
#include "redlatch/lock/lock_core.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/session/remote_clock.hpp"
#include "redlatch/session/settings.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What became of a number that a waiter keeps from one question to the next.
struct KeptNumber {
    std::int64_t unsettled = 0;  // server time until which an unanswered sending may take effect; 0 for none
    bool given_up = false;       // True if it is being released, or has been: the next question needs another number
};

// An acquire command that was sent, and its reply.
struct Asked {
    Reply reply;
    Instant begun;
    Instant sent;                // time of the last sending, which the reply answers
    std::int64_t unsettled = 0;  // server time until which an unanswered sending may take effect; 0 for none
    std::uint64_t hold = 0;      // the number that was asked for
    KeptNumber* kept = nullptr;  // set if the caller keeps waiting under that number when it is blocked
    Settings settings{};         // by which it was asked for
};

// The state machine of one attempt to acquire a lock: which call to send next, and what the replies show. It does no
// I/O, so that a thread that waits for each reply and a completion can both drive it:
//   1. asks_time() comes before the server's time is found out, and begin() takes it: the command is wanted until then;
//   2. call() is sent, and replied() takes the reply;
//   3. that says what comes next: another call, the time once more, or nothing.
class AcquireAttempt {
public:
    enum class Next {
        call,  // send call()
        time,  // the server's clock has jumped, so the command came too late: begin() again
        done,  // the reply is in `asked`
    };

    AcquireAttempt(LockCore& core, const Claim& wanted, const Settings& settings) : claim(wanted), core_(core) {
        asked.hold = claim.hold;
        asked.settings = settings;
        asked.begun = asked.sent = Clock::now();
    }

    Claim claim;
    Asked asked;

    void asks_time() {
        if (core_.kind.fixes_lease_end) asked_time_ = SendTime();
    }

    // Starts a sending. `now`: the server's time, found out since asks_time().
    void begin(ServerMilliseconds now) {
        claim.until = now + asked.settings.command_timeout.count();
        sent_ = SendTime();
        if (core_.kind.fixes_lease_end) fix_lease_end();
    }

    // Made anew for each sending, because it takes more memory than all the rest.
    Call call() const {
        Call call = plain_or_script_ ? *plain_or_script_ : core_.protocol.acquire(claim);
        call.replication = asked.settings.replication();
        keys_sent_ = call.key_count();
        return call;
    }

    Next replied(Reply reply) {
        // The lease of the plain command counts from the reading of the clock, and this thread may have been stopped since.
        asked.sent = is_script() ? sent_->as_of_now() : asked_time_->as_of_now() - clock_error_;
        if (is_by_another_clock(reply)) reply = Reply::of(Reply::Kind::unanswered, "another server");
        if (!reply.answered() && !reply.is_unsent()) asked.unsettled = std::max(asked.unsettled, claim.until);
        asked.reply = std::move(reply);
        if (has_to_follow()) return Next::call;
        if (!core_.session.learn_if_late(core_.key(), *sent_, asked.reply) || ++too_late_ == most_tries)
            return Next::done;
        return Next::time;
    }

private:
    static constexpr int most_tries = 3;
    // A jump of the server's clock since the reading would end the lease at once. So the reading must be new.
    static constexpr Milliseconds good_for_plain{1000};

    // The plain command names the end of the lease by our reading of the server's clock. If that may be far off, or does not
    // vouch for that clock, the script is sent instead, and its reply has a new reading.
    void fix_lease_end() {
        const auto now = core_.session.server_time_bounds();
        if (now && now->error <= claim.lease / 2 && now->age <= good_for_plain) {
            claim.lease_end = now->least + claim.lease.count();
            clock_error_ = now->error;
        } else {
            claim.first = false;
        }
        plain_or_script_ = std::make_unique<Call>(core_.protocol.acquire(claim));
    }

    // Returns true if the plain command may have acquired the lock on another server than the one whose clock was read.
    // Nobody knows when the lease ends there. A new sending, which is a script, gives it the full lease.
    bool is_by_another_clock(const Reply& reply) const {
        if (is_script() || reply.kind != Reply::Kind::text) return false;
        return core_.session.transport().same_server_since().value_or(never) >= sent_->at();
    }

    bool is_script() const { return !plain_or_script_ || plain_or_script_->script(); }

    // Replaces call() by the one that has to follow this reply, if there is one.
    bool has_to_follow() {
        // call() makes the other script. Another caller may have learned of the refusal already.
        if (!plain_or_script_) return core_.protocol.is_queue_refused(keys_sent_, asked.reply);
        std::optional<Call> following = core_.protocol.after_acquire(claim, *plain_or_script_, asked.reply);
        if (following) *plain_or_script_ = *std::move(following);
        return following.has_value();
    }

    LockCore& core_;
    mutable std::size_t keys_sent_ = 0;      // by the last call()
    std::unique_ptr<Call> plain_or_script_;  // null for locks that are acquired by a script only
    std::optional<SendTime> asked_time_;     // set if the call may fix the end of the lease
    Milliseconds clock_error_{};             // by how much the plain command's lease may end earlier
    std::optional<SendTime> sent_;           // of the last sending that begin() started
    int too_late_ = 0;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
