// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/names.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/protocol/lock_queries.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/scripts/rlock.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace v0_1 {
namespace detail {

// Makes the calls of the reentrant lock and reads the replies. Every call may be resent and may arrive late.
class RLockProtocol {
public:
    static constexpr std::string_view kind = "rlock ";
    static constexpr std::string_view family = "RLock";
    static constexpr const Script& renewal = digested<scripts::rlock_renew>;
    static constexpr bool shared = false;
    static constexpr bool reentrant = true;
    static constexpr bool hands_over = true;
    static constexpr bool outlives_lease = false;

    RLockProtocol(const ProtocolContext& context, std::string key)
        : uuid_(context.uuid), key_(std::move(key)), channel_(prefixed_key("redisson_lock__channel", key_)) {}

    const std::string& key() const noexcept { return key_; }
    const std::string& channel() const noexcept { return channel_; }

    Call acquire(const Claim& claim) const {
        return {digested<scripts::rlock_acquire>,
                {key_},
                {text(claim.hold), claim.count, claim.lease, claim.until},
                Effect::grants};
    }

    static AcquireAnswer read_acquire(const Reply& reply, std::string_view name) { return decode_acquire(reply, name); }
    static ReleaseAnswer read_release(const Reply& reply) noexcept { return decode_release(reply); }
    static HandOverAnswer read_hand_over(const Reply& reply) noexcept { return decode_hand_over(reply); }

    Call release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease) const {
        return {digested<scripts::rlock_release>, {key_, channel_}, {text(hold), remaining, lease, PublishCommand()}};
    }

    // Releases everything that these owners hold. The reply is the server's clock.
    Call give_up(std::span<const std::string_view> owners) const {
        Call call(digested<scripts::rlock_give_up>, {key_, channel_}, {PublishCommand(), ""});
        call.append(owners);
        return call;
    }

    Call hand_over(std::uint64_t hold, const Claim& successor) const {
        return {digested<scripts::rlock_hand_over>,
                {key_, channel_},
                {text(hold), text(successor.hold), successor.lease, PublishCommand(), successor.until},
                Effect::grants};
    }

    Call holders() const { return hash_holders(key_); }
    Call is_locked() const { return hash_size(key_); }
    Call hold_count(std::uint64_t hold) const { return hash_count(key_, text(hold)); }
    Call remaining_lease() const { return key_lease(key_); }

    // Returns the hold's owner as the server knows it.
    OwnerText text(std::uint64_t hold) const noexcept { return {uuid_, hold}; }

private:
    const std::string& uuid_;
    const std::string key_;
    const std::string channel_;
};

}  // namespace detail
}  // namespace v0_1
}  // namespace redlatch
