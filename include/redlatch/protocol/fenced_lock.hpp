// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/names.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/protocol/rlock.hpp"
#include "redlatch/scripts/fenced_lock.hpp"
#include "redlatch/scripts/inspection.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes the calls of the fenced lock: those of the reentrant lock, but acquire and hand-over draw a fencing token.
class FencedProtocol : public RLockProtocol {
public:
    static constexpr LockKind lock_kind{
        .name = "fenced lock ", .family = "FencedLock", .renewal = digested<scripts::rlock_renew>, .hands_over = true};

    FencedProtocol(const ProtocolContext& context, const std::string& key)
        : RLockProtocol(context, key, lock_kind), counter_(prefixed_key("redisson_lock_token", key)) {}

    Call acquire(const Claim& claim) const override {
        return {digested<scripts::fenced_acquire>,
                {key(), counter_},
                {text(claim.hold), claim.count, claim.lease, claim.until},
                Effect::grants};
    }

    Call hand_over(std::uint64_t hold, const Claim& successor) const override {
        return {digested<scripts::fenced_hand_over>,
                {key(), counter_, channel()},
                {text(hold), text(successor.hold), successor.lease, PublishCommand(), successor.until},
                Effect::grants};
    }

    // Reads the last token that anyone got.
    Call latest_token() const { return Call::command({"GET", counter_}); }

    Call inspect() const override { return {digested<scripts::hash_inspect>, {key(), counter_}, {}}; }

    AcquireAnswer read_acquire(const Reply& reply) const override {
        if (!is_pair(reply)) throw unexpected(reply, key());
        const std::int64_t value = reply.elements[1].integer;
        switch (reply.elements[0].integer) {
            case 1:
                if (is_token(value)) return {AcquireAnswer::Kind::held, {}, value};
                break;
            case 0: return {AcquireAnswer::Kind::blocked, Milliseconds(value), 0};
            case -2: return {AcquireAnswer::Kind::gone, {}, 0};
            default: break;
        }
        throw unexpected(reply, key());
    }

    HandOverAnswer read_hand_over(const Reply& reply) const noexcept override {
        if (reply.is_nil()) return {HandOverAnswer::Kind::not_held, 0};
        if (!is_pair(reply) || reply.elements[0].integer != 1 || !is_token(reply.elements[1].integer))
            return {HandOverAnswer::Kind::senseless, 0};
        return {HandOverAnswer::Kind::handed, reply.elements[1].integer};
    }

private:
    // Below 2^53, where the scripts' numbers are exact.
    static bool is_token(std::int64_t value) noexcept { return value > 0 && value < std::int64_t{1} << 53; }

    static bool is_pair(const Reply& reply) noexcept {
        return reply.kind == Reply::Kind::array && reply.elements.size() == 2 && reply.elements[0].is_integer() &&
               reply.elements[1].is_integer();
    }

    const std::string counter_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
