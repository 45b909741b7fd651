// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/names.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/protocol/lock_queries.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/scripts/fair_lock.hpp"
#include "redlatch/scripts/rlock.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace v0_1 {
namespace detail {

// Makes the calls of the fair lock and reads the replies. Every call may be resent and may arrive late.
class FairProtocol {
public:
    static constexpr std::string_view kind = "fair ";
    static constexpr std::string_view family = "FairLock";
    static constexpr const Script& renewal = digested<scripts::rlock_renew>;
    static constexpr bool shared = false;
    static constexpr bool reentrant = true;
    static constexpr bool hands_over = false;
    static constexpr bool outlives_lease = false;

    FairProtocol(const ProtocolContext& context, std::string key)
        : uuid_(context.uuid),
          key_(std::move(key)),
          queue_(prefixed_key("redisson_lock_queue", key_)),
          timeouts_(prefixed_key("redisson_lock_timeout", key_)),
          slots_(prefixed_key("redlatch_lock_slots", key_)),
          channels_(prefixed_key("redisson_lock__channel", key_) + ":"),
          slot_(std::clamp(context.options.watchdog_timeout / 6, shortest_slot, longest_slot)) {}

    const std::string& key() const noexcept { return key_; }
    // Returns the hold's owner, or the waiter, as the server knows it.
    OwnerText text(std::uint64_t hold) const noexcept { return {uuid_, hold}; }

    // Returns the channel that notifies this waiter of its turn.
    std::string channel(std::uint64_t hold) const { return channels_ + std::string(text(hold).view()); }

    // Returns how long a waiter counts as alive without a refresh: a sixth of the watchdog timeout, between 100 ms and
    // 5 s.
    Milliseconds slot() const noexcept { return slot_; }

    // Acquires the lock unless it is another waiter's turn. If the claim queues, joins the queue otherwise. A waiter
    // that is already in the queue keeps its position.
    Call acquire(const Claim& claim) const {
        const Milliseconds slot = claim.queues ? slot_ : Milliseconds(0);
        return {digested<scripts::fair_acquire>,
                {key_, queue_, timeouts_, slots_},
                {PublishCommand(), channels_, text(claim.hold), claim.count, claim.lease, slot, claim.until},
                Effect::grants};
    }

    static AcquireAnswer read_acquire(const Reply& reply, std::string_view name) { return decode_acquire(reply, name); }
    static ReleaseAnswer read_release(const Reply& reply) noexcept { return decode_release(reply); }

    Call release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease) const {
        return {digested<scripts::fair_release>,
                {key_, queue_, timeouts_, slots_},
                {PublishCommand(), channels_, text(hold), remaining, lease}};
    }

    // Releases everything that these owners have: a hold and a slot in the queue. The reply is the server's clock.
    Call give_up(std::span<const std::string_view> owners) const {
        Call call(digested<scripts::fair_leave>, {key_, queue_, timeouts_, slots_}, {PublishCommand(), channels_});
        call.append(owners);
        return call;
    }

    // Refreshes the slots of up to 100 waiters of this process. `until`: the server time until which it is wanted.
    Call refresh(std::span<const std::uint64_t> waiters, std::int64_t until) const {
        Call call(digested<scripts::fair_refresh>, {key_, queue_, timeouts_, slots_},
                  {PublishCommand(), channels_, slot_, until});
        for (const std::uint64_t waiter : waiters) call.append(text(waiter));
        return call;
    }

    Call holders() const { return hash_holders(key_); }
    Call is_locked() const { return hash_size(key_); }
    Call hold_count(std::uint64_t hold) const { return hash_count(key_, text(hold)); }
    Call remaining_lease() const { return key_lease(key_); }

private:
    static constexpr Milliseconds shortest_slot{100};
    static constexpr Milliseconds longest_slot{5000};

    const std::string& uuid_;
    const std::string key_;
    const std::string queue_;
    const std::string timeouts_;
    const std::string slots_;
    const std::string channels_;  // prefix of the channels of all waiters
    const Milliseconds slot_;
};

}  // namespace detail
}  // namespace v0_1
}  // namespace redlatch
