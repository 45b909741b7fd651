// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/names.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/inspection.hpp"
#include "redlatch/protocol/lock_protocol.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/scripts/fair_lock.hpp"
#include "redlatch/scripts/inspection.hpp"
#include "redlatch/scripts/rlock.hpp"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes the calls of the fair lock.
class FairProtocol final : public LockProtocol {
public:
    static constexpr LockKind lock_kind{
        .name = "fair ", .family = "FairLock", .renewal = digested<scripts::rlock_renew>};

    FairProtocol(const ProtocolContext& context, const std::string& key)
        : LockProtocol(lock_kind, context, key),
          queue_(prefixed_key("redisson_lock_queue", key_)),
          timeouts_(prefixed_key("redisson_lock_timeout", key_)),
          slots_(prefixed_key("redlatch_lock_slots", key_)),
          channels_(prefixed_key("redisson_lock__channel", key_) + ":"),
          grants_(context.options.grants),
          slot_(context.options.fair_waiter_timeout.value_or(
              std::clamp(context.options.watchdog_timeout / 6, shortest_slot, longest_slot))) {}

    // Returns the channel that notifies this waiter of its turn.
    std::string channel_of(std::uint64_t hold) const { return channels_ + std::string(text(hold).view()); }

    // Returns how long a waiter counts as alive without a refresh: see ClientOptions::fair_waiter_timeout.
    Milliseconds slot() const noexcept { return slot_; }

    // How long a grant lasts, until its renewal: as in scripts/fair_lock.hpp.
    static constexpr Milliseconds offer{2000};

    // Returns true if a waiter of this client may be granted the lock by a release.
    bool grants() const noexcept { return grants_; }

    // Acquires the lock unless it is another waiter's turn. If the claim queues, joins the queue otherwise. A waiter
    // that is already in the queue keeps its position.
    Call acquire(const Claim& claim) const override {
        const Milliseconds slot = claim.queues ? slot_ : Milliseconds(0);
        return {digested<scripts::fair_acquire>,
                {key_, queue_, timeouts_, slots_},
                {PublishCommand(), channels_, text(claim.hold), claim.count, claim.lease, slot, claim.until,
                 claim.listens ? "0.5" : "0"},
                Effect::grants};
    }

    Call release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease) const override {
        return {digested<scripts::fair_release>,
                {key_, queue_, timeouts_, slots_},
                {PublishCommand(), channels_, text(hold), remaining, lease}};
    }

    Call stay(std::uint64_t hold, std::uint64_t successor, Milliseconds rest) const override {
        return {digested<scripts::fair_stay>,
                {key_, queue_, timeouts_, slots_},
                {PublishCommand(), channels_, text(hold), text(successor), rest}};
    }

    // Releases everything that these owners have: a hold and a slot in the queue. The reply is the server's clock.
    Call give_up(std::span<const std::string_view> owners) const override {
        Call call(digested<scripts::fair_leave>, {key_, queue_, timeouts_, slots_}, {PublishCommand(), channels_});
        call.append(owners);
        return call;
    }

    Call inspect() const override { return {digested<scripts::fair_inspect>, {key_, queue_, timeouts_, slots_}, {}}; }
    Inspection read_inspection(const Reply& reply) const override { return inspection_of_queue(reply, key_); }

    // Refreshes the slots of up to 100 waiters of this process. `until`: the server time until which it is wanted.
    Call refresh(std::span<const std::uint64_t> waiters, std::int64_t until) const {
        Call call(digested<scripts::fair_refresh>, {key_, queue_, timeouts_, slots_},
                  {PublishCommand(), channels_, slot_, until});
        for (const std::uint64_t waiter : waiters) call.append(text(waiter));
        return call;
    }

private:
    // Unless the option says otherwise.
    static constexpr Milliseconds shortest_slot{100};
    static constexpr Milliseconds longest_slot{5000};

    const std::string queue_;
    const std::string timeouts_;
    const std::string slots_;
    const std::string channels_;  // prefix of the channels of all waiters
    const bool grants_;
    const Milliseconds slot_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
