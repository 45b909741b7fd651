// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/names.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/scripts/fair_lock.hpp"
#include "redlatch/scripts/rlock.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// Builds the commands of the fair lock: the keys and arguments of its scripts, for `send`, which calls or posts them.
// Every command may be resent and may arrive late.
template <Transport T>
class FairProtocol {
public:
    static constexpr std::string_view kind = "fair ";
    static constexpr std::string_view family = "FairLock";
    static constexpr const Script& renewal = digested<scripts::rlock_renew>;
    static constexpr bool shared = false;
    static constexpr bool reentrant = true;
    static constexpr bool hands_over = false;
    static constexpr bool outlives_lease = false;

    FairProtocol(Session<T>& session, std::string key)
        : session_(session),
          key_(std::move(key)),
          queue_(prefixed_key("redisson_lock_queue", key_)),
          timeouts_(prefixed_key("redisson_lock_timeout", key_)),
          slots_(prefixed_key("redlatch_lock_slots", key_)),
          channels_(prefixed_key("redisson_lock__channel", key_) + ":"),
          slot_(std::clamp(session.options().watchdog_timeout / 6, shortest_slot, longest_slot)) {}

    const std::string& key() const noexcept { return key_; }
    // Returns the hold's owner, or the waiter, as the server knows it.
    OwnerText text(std::uint64_t hold) const noexcept { return {session_.uuid(), hold}; }

    // Returns the channel that notifies this waiter of its turn.
    std::string channel(std::uint64_t hold) const { return channels_ + std::string(text(hold).view()); }

    // Returns how long a waiter counts as alive without a refresh: a sixth of the watchdog timeout, between 100 ms and
    // 5 s.
    Milliseconds slot() const noexcept { return slot_; }

    // Acquires the lock unless it is another waiter's turn.
    template <class Send>
    auto acquire(const Claim& claim, Send send) {
        return acquire_with(claim, Milliseconds(0), std::move(send));
    }

    static AcquireAnswer read_acquire(const Reply& reply, std::string_view name) { return decode_acquire(reply, name); }
    static ReleaseAnswer read_release(const Reply& reply) noexcept { return decode_release(reply); }

    // Does the same, or joins the queue. A waiter that is already in the queue keeps its position.
    template <class Send>
    auto acquire_or_queue(const Claim& claim, Send send) {
        return acquire_with(claim, slot_, std::move(send));
    }

    template <class Send>
    auto release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease, bool /* again */, Send send) {
        return send(digested<scripts::fair_release>, keys(),
                    Texts<5>{publish(), channels_, text(hold), NumberText(remaining), NumberText(lease.count())});
    }

    // Releases everything that these owners have: a hold and a slot in the queue. The reply is the server's clock.
    template <class Send>
    auto give_up(std::span<const std::string_view> owners, Send send) {
        return send(digested<scripts::fair_leave>, keys(), with_owners({publish(), channels_}, owners));
    }

    // Refreshes the slots of up to 100 waiters of this process.
    void post_refresh(std::span<const std::uint64_t> waiters, Completion done) {
        const NumberText slot(slot_.count()), until(session_.wanted_until(key_));
        std::vector<OwnerText> texts;
        texts.reserve(waiters.size());
        std::vector<std::string_view> arguments{publish(), channels_, slot, until};
        for (const std::uint64_t waiter : waiters) arguments.push_back(texts.emplace_back(text(waiter)));
        session_.post_script(digested<scripts::fair_refresh>, keys(), arguments, std::move(done));
    }

    // Returns the list of owners that hold the lock, whichever they are.
    template <class Send>
    auto holders(Send send) {
        return send(Texts<2>{"HKEYS", key_});
    }

private:
    static constexpr Milliseconds shortest_slot{100};
    static constexpr Milliseconds longest_slot{5000};

    template <class Send>
    auto acquire_with(const Claim& claim, Milliseconds slot, Send send) {
        return send(digested<scripts::fair_acquire>, keys(),
                    Texts<7>{publish(), channels_, text(claim.hold), NumberText(claim.count),
                             NumberText(claim.lease.count()), NumberText(slot.count()), NumberText(claim.until)});
    }

    std::string_view publish() const { return session_.transport().publish_command(); }
    Texts<4> keys() const { return {key_, queue_, timeouts_, slots_}; }

    Session<T>& session_;
    const std::string key_;
    const std::string queue_;
    const std::string timeouts_;
    const std::string slots_;
    const std::string channels_;  // prefix of the channels of all waiters
    const Milliseconds slot_;
};

}  // namespace v0_1
}  // namespace redlatch
