// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/names.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/protocol/lock_protocol.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/protocol/queue_keys.hpp"
#include "redlatch/scripts/lock_queue.hpp"
#include "redlatch/scripts/queue_acquire.hpp"
#include "redlatch/scripts/queue_release.hpp"
#include "redlatch/scripts/rlock.hpp"

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Makes the calls of the reentrant lock. With ClientOptions::grants, they are those of scripts/lock_queue.hpp, unless the
// user turns out to have no right to the keys of the queue.
class RLockProtocol : public LockProtocol {
public:
    static constexpr QueueScripts queue_scripts{
        .acquire = digested<scripts::queue_acquire>,
        .release = digested<scripts::queue_release>,
        .give_up = digested<scripts::queue_give_up>,
        .stay = digested<scripts::queue_stay>,
        .hand_over = digested<scripts::queue_hand_over>,
    };
    static constexpr LockKind lock_kind{.name = "rlock ",
                                        .family = "RLock",
                                        .renewal = digested<scripts::rlock_renew>,
                                        .hands_over = true,
                                        .queue = &queue_scripts};

    // `counter`: the key of the fencing tokens, if each hold gets one.
    RLockProtocol(const ProtocolContext& context, const std::string& key, const LockKind& of = lock_kind,
                  std::string counter = {})
        : LockProtocol(of, context, key, prefixed_key("redisson_lock__channel", key)),
          counter_(std::move(counter)),
          queue_(of.queue && context.options.grants, context.native, NativeCommands::Queue::locks,
                 prefixed_key("redlatch_lock_queue", key_), prefixed_key("redlatch_lock_places", key_)) {}

    bool queues() const noexcept override { return queue_.are_used(); }
    bool may_not_queue() const noexcept override { return queue_.are_forbidden(); }

    Call acquire(const Claim& claim) const override {
        if (queues())
            return queue_call(
                kind.queue->acquire,
                {text(claim.hold), claim.count, claim.lease, claim.until, PublishCommand(), QueueKeys::way_of(claim)},
                Effect::grants);
        return {digested<scripts::rlock_acquire>,
                {key_},
                {text(claim.hold), claim.count, claim.lease, claim.until},
                Effect::grants};
    }

    AcquireAnswer read_acquire(const Reply& reply) const override { return decode_queueing_acquire(reply, key_); }

    bool is_queue_refused(std::size_t keys, const Reply& reply) const override {
        return queue_.are_refused(keys, reply);
    }

    Call release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease) const override {
        return release(hold, remaining, lease, queues());
    }

    // The right may be missing for a moment, or for another key.
    Call first_release(std::uint64_t hold) const override {
        return release(hold, 0, Milliseconds(0), queue_.grant_after(hold));
    }

    std::optional<Call> after_release(std::uint64_t hold, const Call& sent, const Reply& reply) const override {
        if (!queue_.are_refused_at_release(sent.key_count(), reply)) return std::nullopt;
        return release(hold, 0, Milliseconds(0));
    }

    Call stay(std::uint64_t hold, std::uint64_t successor, Milliseconds rest) const override {
        if (queues()) return queue_call(kind.queue->stay, {text(hold), text(successor), rest, PublishCommand()});
        return {digested<scripts::rlock_stay>, {key_, channel_}, {text(hold), text(successor), rest, PublishCommand()}};
    }

    Call give_up(std::span<const std::string_view> owners) const override {
        Call call = queues() ? queue_call(kind.queue->give_up, {PublishCommand(), ""})
                             : Call(digested<scripts::rlock_give_up>, {key_, channel_}, {PublishCommand(), ""});
        call.append(owners);
        return call;
    }

    Call hand_over(std::uint64_t hold, const Claim& successor) const override {
        if (queues())
            return queue_call(kind.queue->hand_over,
                              {text(hold), text(successor.hold), successor.lease, PublishCommand(), successor.until},
                              Effect::grants);
        return {digested<scripts::rlock_hand_over>,
                {key_, channel_},
                {text(hold), text(successor.hold), successor.lease, PublishCommand(), successor.until},
                Effect::grants};
    }

protected:
    const std::string counter_;

private:
    Call release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease, bool grants) const {
        if (grants) return queue_call(kind.queue->release, {text(hold), remaining, lease, PublishCommand()});
        return {digested<scripts::rlock_release>, {key_, channel_}, {text(hold), remaining, lease, PublishCommand()}};
    }

    Call queue_call(const Script& script, std::initializer_list<Word> arguments, Effect of = Effect::any) const {
        Call call(script, {key_, channel_, queue_.queue(), queue_.places()}, {}, of);
        if (!counter_.empty()) call.append_key(counter_);
        for (const Word& argument : arguments) call.append(argument);
        return call;
    }

    const QueueKeys queue_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
