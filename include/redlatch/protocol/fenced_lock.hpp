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
#include "redlatch/scripts/fenced_queue.hpp"
#include "redlatch/scripts/inspection.hpp"
#include "redlatch/scripts/lock_queue.hpp"
#include "redlatch/scripts/rlock.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <algorithm>
#include <cstddef>
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
    static constexpr QueueScripts queue_scripts{
        .acquire = digested<scripts::fenced_queue_acquire>,
        .release = digested<scripts::fenced_queue_release>,
        .give_up = digested<scripts::fenced_queue_give_up>,
        .stay = digested<scripts::queue_stay>,
        .hand_over = digested<scripts::fenced_queue_hand_over>,
        .fenced = true,
    };
    static constexpr LockKind lock_kind{.name = "fenced lock ",
                                        .family = "FencedLock",
                                        .renewal = digested<scripts::rlock_renew>,
                                        .hands_over = true,
                                        .queue = &queue_scripts};

    FencedProtocol(const ProtocolContext& context, const std::string& key)
        : RLockProtocol(context, key, lock_kind, prefixed_key("redisson_lock_token", key)) {}

    Call acquire(const Claim& claim) const override {
        if (queues()) return RLockProtocol::acquire(claim);
        return {digested<scripts::fenced_acquire>,
                {key(), counter_},
                {text(claim.hold), claim.count, claim.lease, claim.until},
                Effect::grants};
    }

    Call hand_over(std::uint64_t hold, const Claim& successor) const override {
        if (queues()) return RLockProtocol::hand_over(hold, successor);
        return {digested<scripts::fenced_hand_over>,
                {key(), counter_, channel()},
                {text(hold), text(successor.hold), successor.lease, PublishCommand(), successor.until},
                Effect::grants};
    }

    // Reads the last token that anyone got.
    Call latest_token() const { return Call::command({"GET", counter_}); }

    Call inspect() const override { return {digested<scripts::hash_inspect>, {key(), counter_}, {}}; }

    AcquireAnswer read_acquire(const Reply& reply) const override {
        const bool has_place = are_integers(reply, 3);
        if (!has_place && !are_integers(reply, 2)) throw unexpected(reply, key());
        const std::int64_t value = reply.elements[1].integer;
        switch (reply.elements[0].integer) {
            case 1:
                if (!has_place && is_token(value)) return {AcquireAnswer::Kind::held, {}, value};
                break;
            case 0: {
                if (has_place && value < 0) break;
                AcquireAnswer answer{AcquireAnswer::Kind::blocked, Milliseconds(value), 0};
                answer.queued = has_place;
                answer.foreign = has_place && reply.elements[2].integer != 0;
                return answer;
            }
            case -2:
                if (!has_place) return {AcquireAnswer::Kind::gone, {}, 0};
                break;
            default: break;
        }
        throw unexpected(reply, key());
    }

    HandOverAnswer read_hand_over(const Reply& reply) const noexcept override {
        if (reply.is_nil()) return {HandOverAnswer::Kind::not_held, 0};
        if (!are_integers(reply, 2) || reply.elements[0].integer != 1 || !is_token(reply.elements[1].integer))
            return {HandOverAnswer::Kind::senseless, 0};
        return {HandOverAnswer::Kind::handed, reply.elements[1].integer};
    }

private:
    static bool are_integers(const Reply& reply, std::size_t count) noexcept {
        return reply.kind == Reply::Kind::array && reply.elements.size() == count &&
               std::all_of(reply.elements.begin(), reply.elements.end(), [](const Reply& r) { return r.is_integer(); });
    }
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
