// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/names.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/protocol/lock_queries.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/scripts/read_write_lock.hpp"
#include "redlatch/scripts/rlock.hpp"

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace v0_1 {
namespace detail {

// The names that both sides of a read-write lock share, and their common calls. Both sides listen to one channel.
class ReadWriteProtocol {
public:
    static constexpr std::string_view family = "ReadWriteLock";
    static constexpr bool reentrant = true;

    const std::string& key() const noexcept { return key_; }
    const std::string& channel() const noexcept { return channel_; }

    static AcquireAnswer read_acquire(const Reply& reply, std::string_view name) { return decode_acquire(reply, name); }
    static ReleaseAnswer read_release(const Reply& reply) noexcept { return decode_release(reply); }

protected:
    ReadWriteProtocol(const ProtocolContext& context, std::string key)
        : uuid_(context.uuid),
          key_(std::move(key)),
          channel_(prefixed_key("redisson_rwlock", key_)),
          tag_(key_.find('{') == std::string::npos ? "{" + key_ + "}" : key_),
          mark_(suffixed_key(key_, "redlatch_writer_waits")) {}
    ~ReadWriteProtocol() = default;

    // `field` is the owner as a holder of this side.
    Call release(const Script& script, const OwnerText& field, std::uint32_t remaining, Milliseconds lease) const {
        return {script, {key_, channel_}, {field, remaining, lease, PublishCommand(), tag_}};
    }

    Call give_up(const Script& script, std::span<const std::string_view> owners) const {
        Call call(script, {key_, channel_}, {PublishCommand(), tag_});
        call.append(owners);
        return call;
    }

    OwnerText reader(std::uint64_t hold) const noexcept { return {uuid_, hold}; }
    OwnerText writer(std::uint64_t hold) const noexcept { return {uuid_, hold, ":write"}; }

    const std::string& uuid_;
    const std::string key_;
    const std::string channel_;
    const std::string tag_;   // prefix of the names of the timeout keys
    const std::string mark_;  // redlatch's own key: exists while a writer with precedence waits
};

// Makes the calls of the readers' side.
class ReadProtocol final : public ReadWriteProtocol {
public:
    static constexpr std::string_view kind = "readers ";
    static constexpr const Script& renewal = digested<scripts::read_renew>;
    static constexpr bool shared = true;
    static constexpr bool hands_over = false;
    static constexpr bool outlives_lease = false;

    ReadProtocol(const ProtocolContext& context, std::string key) : ReadWriteProtocol(context, std::move(key)) {}

    Call acquire(const Claim& claim) const {
        return {digested<scripts::read_acquire>,
                {key_, mark_},
                {text(claim.hold), claim.count, claim.lease, writer(claim.writer), tag_, claim.until},
                Effect::grants};
    }

    Call release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease) const {
        return ReadWriteProtocol::release(digested<scripts::read_release>, text(hold), remaining, lease);
    }

    // Releases everything that these owners hold. The reply is the server's clock.
    Call give_up(std::span<const std::string_view> owners) const {
        return ReadWriteProtocol::give_up(digested<scripts::read_give_up>, owners);
    }

    // Returns the list of owners that hold this side, whichever they are.
    Call holders() const { return {digested<scripts::read_holders>, {key_}, {tag_}}; }
    Call remaining_lease() const { return {digested<scripts::read_remaining_lease>, {key_}, {tag_}}; }
    Call hold_count(std::uint64_t hold) const {
        return {digested<scripts::read_hold_count>, {key_}, {text(hold), tag_}};
    }

    OwnerText text(std::uint64_t hold) const noexcept { return reader(hold); }
};

// Makes the calls of the writer's side.
class WriteProtocol final : public ReadWriteProtocol {
public:
    static constexpr std::string_view kind = "writers ";
    static constexpr const Script& renewal = digested<scripts::rlock_renew>;
    static constexpr bool shared = false;
    static constexpr bool hands_over = false;
    // A read hold of the same owner keeps the key.
    static constexpr bool outlives_lease = true;

    WriteProtocol(const ProtocolContext& context, std::string key) : ReadWriteProtocol(context, std::move(key)) {}

    Call acquire(const Claim& claim) {
        if (claim.announced) marked_ = true;
        return {
            digested<scripts::write_acquire>,
            {key_, mark_},
            {text(claim.hold), claim.count, claim.lease, tag_, uuid_, claim.announced ? mark_ttl : "0", claim.until},
            Effect::grants};
    }

    AcquireAnswer read_acquire(const Reply& reply, std::string_view name) {
        const AcquireAnswer answer = decode_acquire(reply, name);
        // The script that acquired the lock deleted the mark.
        if (answer.kind == AcquireAnswer::Kind::held) marked_ = false;
        return answer;
    }

    // Deletes the mark that a waiting thread of this process may have left. Returns nothing if there is none.
    std::optional<Call> cancel_announcement() {
        if (!marked_.exchange(false)) return std::nullopt;
        return Call(digested<scripts::write_withdraw>, {mark_, channel_}, {uuid_, PublishCommand()});
    }

    Call release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease) const {
        return ReadWriteProtocol::release(digested<scripts::write_release>, text(hold), remaining, lease);
    }

    // Releases everything that these owners hold. The reply is the server's clock.
    Call give_up(std::span<const std::string_view> owners) const {
        return ReadWriteProtocol::give_up(digested<scripts::write_give_up>, owners);
    }

    // Returns the list of owners that hold this side, whichever they are.
    Call holders() const { return {digested<scripts::write_holders>, {key_}, {}}; }
    Call remaining_lease() const { return {digested<scripts::write_remaining_lease>, {key_}, {}}; }
    Call hold_count(std::uint64_t hold) const { return hash_count(key_, text(hold)); }

    OwnerText text(std::uint64_t hold) const noexcept { return writer(hold); }

private:
    // How long a writer that dies while it waits keeps readers out, in ms. The mark is renewed after half of this time.
    static constexpr std::string_view mark_ttl = "5000";

    std::atomic<bool> marked_{false};  // True if a mark of this process may be on the server
};

}  // namespace detail
}  // namespace v0_1
}  // namespace redlatch
