// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/names.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/lock_protocol.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/scripts/rlock.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes the calls of the reentrant lock.
class RLockProtocol : public LockProtocol {
public:
    static constexpr LockKind lock_kind{
        .name = "rlock ", .family = "RLock", .renewal = digested<scripts::rlock_renew>, .hands_over = true};

    RLockProtocol(const ProtocolContext& context, const std::string& key, const LockKind& of = lock_kind)
        : LockProtocol(of, context, key, prefixed_key("redisson_lock__channel", key)) {}

    Call acquire(const Claim& claim) const override {
        return {digested<scripts::rlock_acquire>,
                {key_},
                {text(claim.hold), claim.count, claim.lease, claim.until},
                Effect::grants};
    }

    Call release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease) const override {
        return {digested<scripts::rlock_release>, {key_, channel_}, {text(hold), remaining, lease, PublishCommand()}};
    }

    Call give_up(std::span<const std::string_view> owners) const override {
        Call call(digested<scripts::rlock_give_up>, {key_, channel_}, {PublishCommand(), ""});
        call.append(owners);
        return call;
    }

    Call hand_over(std::uint64_t hold, const Claim& successor) const override {
        return {digested<scripts::rlock_hand_over>,
                {key_, channel_},
                {text(hold), text(successor.hold), successor.lease, PublishCommand(), successor.until},
                Effect::grants};
    }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
