// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/names.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/inspection.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/protocol/lock_protocol.hpp"
#include "redlatch/protocol/lock_queries.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/protocol/queue_keys.hpp"
#include "redlatch/scripts/read_write_lock.hpp"
#include "redlatch/scripts/read_write_release.hpp"
#include "redlatch/scripts/read_write_stay.hpp"
#include "redlatch/scripts/rlock.hpp"

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The names that both sides of a read-write lock share, and their common calls. Both sides listen to one channel.
class ReadWriteProtocol : public LockProtocol {
public:
    // Reads both sides. read_inspection() of a side leaves out the other one.
    Call inspect() const final { return {digested<scripts::read_write_inspect>, {key_}, {tag_}}; }
    Inspection read_both_sides(const Reply& reply) const { return inspection_of_read_write(reply, key_); }

    bool queues() const noexcept final { return queue_.are_used(); }
    bool may_not_queue() const noexcept final { return queue_.are_forbidden(); }

    AcquireAnswer read_acquire(const Reply& reply) const override { return decode_queueing_acquire(reply, key_); }

    bool is_queue_refused(std::size_t keys, const Reply& reply) const final { return queue_.are_refused(keys, reply); }

    std::optional<Call> after_release(std::uint64_t hold, const Call& sent, const Reply& reply) const final {
        if (!queue_.are_refused_at_release(sent.key_count(), reply)) return std::nullopt;
        return release(hold, 0, Milliseconds(0));
    }

protected:
    Inspection read_side(const Reply& reply, bool shared) const {
        Inspection side = read_both_sides(reply);
        std::erase_if(side.holders, [shared](const Holder& holder) { return holder.shared != shared; });
        return side;
    }

    ReadWriteProtocol(const LockKind& of, const ProtocolContext& context, const std::string& key)
        : LockProtocol(of, context, key, prefixed_key("redisson_rwlock", key)),
          tag_(key_.find('{') == std::string::npos ? "{" + key_ + "}" : key_),
          mark_(suffixed_key(key_, "redlatch_writer_waits")),
          queue_(context.options.grants, context.native, NativeCommands::Queue::read_write_locks,
                 prefixed_key("redlatch_rwlock_queue", key_), prefixed_key("redlatch_rwlock_places", key_)) {}

    Call acquire_by(const Script& script, const Claim& claim, std::initializer_list<Word> arguments) const {
        Call call(script, {key_, mark_}, {}, Effect::grants);
        if (queues())
            for (const std::string* key : {&channel_, &queue_.queue(), &queue_.places()}) call.append_key(*key);
        for (const Word& argument : arguments) call.append(argument);
        if (!queues()) return call;
        call.append(PublishCommand());
        call.append(QueueKeys::way_of(claim));
        return call;
    }

    // `field` is the owner as a holder of this side.
    Call release_by(const Script& script, const OwnerText& field, std::uint32_t remaining, Milliseconds lease) const {
        return change_by(script, queues(), {field, remaining, lease, PublishCommand(), tag_});
    }

    // The right may be missing for a moment, or for another key.
    Call first_release_by(const Script& script, std::uint64_t hold) const {
        return change_by(script, queue_.grant_after(hold), {text(hold), 0, Milliseconds(0), PublishCommand(), tag_});
    }

    Call stay_by(const Script& script, const OwnerText& field, const OwnerText& successor, Milliseconds rest) const {
        return change_by(script, queues(), {field, successor, rest, PublishCommand(), tag_});
    }

    Call give_up_by(const Script& script, std::span<const std::string_view> owners) const {
        Call call = change_by(script, queues(), {PublishCommand(), tag_});
        call.append(owners);
        return call;
    }

    OwnerText reader(std::uint64_t hold) const noexcept { return {uuid_, hold}; }
    OwnerText writer(std::uint64_t hold) const noexcept { return {uuid_, hold, ":write"}; }

    const std::string tag_;   // prefix of the names of the timeout keys
    const std::string mark_;  // redlatch's own key: exists while a writer with precedence waits

private:
    Call change_by(const Script& script, bool grants, std::initializer_list<Word> arguments) const {
        if (!grants) return {script, {key_, channel_}, arguments};
        return {script, {key_, channel_, mark_, queue_.queue(), queue_.places()}, arguments};
    }

    const QueueKeys queue_;
};

// Makes the calls of the readers' side.
class ReadProtocol final : public ReadWriteProtocol {
public:
    static constexpr LockKind lock_kind{
        .name = "readers ", .family = "ReadWriteLock", .renewal = digested<scripts::read_renew>, .shared = true};

    ReadProtocol(const ProtocolContext& context, const std::string& key) : ReadWriteProtocol(lock_kind, context, key) {}

    Call acquire(const Claim& claim) const override {
        return acquire_by(digested<scripts::read_acquire>, claim,
                          {text(claim.hold), claim.count, claim.lease, writer(claim.writer), tag_, claim.until});
    }

    Call release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease) const override {
        return release_by(digested<scripts::read_release>, text(hold), remaining, lease);
    }
    Call first_release(std::uint64_t hold) const override {
        return first_release_by(digested<scripts::read_release>, hold);
    }

    Call stay(std::uint64_t hold, std::uint64_t successor, Milliseconds rest) const override {
        return stay_by(digested<scripts::read_stay>, text(hold), text(successor), rest);
    }

    Call give_up(std::span<const std::string_view> owners) const override {
        return give_up_by(digested<scripts::read_give_up>, owners);
    }

    Call holders() const override { return {digested<scripts::read_holders>, {key_}, {tag_}}; }
    Call remaining_lease() const override { return {digested<scripts::read_remaining_lease>, {key_}, {tag_}}; }
    Call hold_count(std::uint64_t hold) const override {
        return {digested<scripts::read_hold_count>, {key_}, {text(hold), tag_}};
    }
    Call held_by(const std::string& field) const override {
        return {digested<scripts::read_hold_count>, {key_}, {field, tag_}};
    }

    Inspection read_inspection(const Reply& reply) const override { return read_side(reply, true); }

    OwnerText text(std::uint64_t hold) const noexcept override { return reader(hold); }
};

// Makes the calls of the writer's side.
class WriteProtocol final : public ReadWriteProtocol {
public:
    // A read hold of the same owner keeps the key.
    static constexpr LockKind lock_kind{.name = "writers ",
                                        .family = "ReadWriteLock",
                                        .renewal = digested<scripts::rlock_renew>,
                                        .outlives_lease = true};

    WriteProtocol(const ProtocolContext& context, const std::string& key)
        : ReadWriteProtocol(lock_kind, context, key) {}

    Call acquire(const Claim& claim) const override {
        if (claim.announced) marked_ = true;
        return acquire_by(
            digested<scripts::write_acquire>, claim,
            {text(claim.hold), claim.count, claim.lease, tag_, uuid_, claim.announced ? mark_ttl : "0", claim.until});
    }

    AcquireAnswer read_acquire(const Reply& reply) const override {
        const AcquireAnswer answer = ReadWriteProtocol::read_acquire(reply);
        // The script that acquired the lock deleted the mark.
        if (answer.kind == AcquireAnswer::Kind::held) marked_ = false;
        return answer;
    }

    // The script that granted the lock deleted the mark.
    void granted() const noexcept override { marked_ = false; }

    // Deletes the mark that a waiting thread of this process may have left.
    std::optional<Call> cancel_announcement() const override {
        if (!marked_.exchange(false)) return std::nullopt;
        return Call(digested<scripts::write_withdraw>, {mark_, channel_}, {uuid_, PublishCommand()});
    }

    Call release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease) const override {
        return release_by(digested<scripts::write_release>, text(hold), remaining, lease);
    }
    Call first_release(std::uint64_t hold) const override {
        return first_release_by(digested<scripts::write_release>, hold);
    }

    Call stay(std::uint64_t hold, std::uint64_t successor, Milliseconds rest) const override {
        return stay_by(digested<scripts::write_stay>, text(hold), text(successor), rest);
    }

    Call give_up(std::span<const std::string_view> owners) const override {
        return give_up_by(digested<scripts::write_give_up>, owners);
    }

    Call holders() const override { return {digested<scripts::write_holders>, {key_}, {}}; }
    Call remaining_lease() const override { return {digested<scripts::write_remaining_lease>, {key_}, {}}; }

    Inspection read_inspection(const Reply& reply) const override { return read_side(reply, false); }

    std::string grants_channel() const override { return LockProtocol::grants_channel() + ":write"; }

    OwnerText text(std::uint64_t hold) const noexcept override { return writer(hold); }
    std::string field_of(std::string_view owner) const override { return std::string(owner) + ":write"; }

private:
    // How long a writer that dies while it waits keeps readers out, in ms. The mark is renewed after half of this time.
    static constexpr std::string_view mark_ttl = "5000";

    mutable std::atomic<bool> marked_{false};  // true if a mark of this process may be on the server
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
