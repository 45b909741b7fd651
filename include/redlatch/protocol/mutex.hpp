// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/protocol/native_commands.hpp"
#include "redlatch/protocol/protocol_context.hpp"
#include "redlatch/scripts/mutex.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace v0_1 {
namespace detail {

// Makes the calls of the plain mutex and reads the replies. The key holds the text of the owner of its one hold. Every
// call may be resent, without a mark on the server.
class MutexProtocol {
public:
    static constexpr std::string_view kind = "mutex ";
    static constexpr std::string_view family = "Mutex";
    static constexpr const Script& renewal = digested<scripts::mutex_renew>;
    static constexpr bool shared = false;
    static constexpr bool reentrant = false;
    static constexpr bool hands_over = true;
    static constexpr bool outlives_lease = false;
    static constexpr bool fixes_lease_end = true;

    MutexProtocol(const ProtocolContext& context, std::string key)
        : uuid_(context.uuid), native_(context.native), key_(std::move(key)) {}

    const std::string& key() const noexcept { return key_; }

    // Empty: a release publishes no message.
    const std::string& channel() const noexcept { return no_channel_; }

    // Returns the value of a hold.
    OwnerText text(std::uint64_t hold) const noexcept { return {uuid_, hold}; }

    // Makes the plain command for the first sending. Its refusal has no reason, so the script follows. From then on
    // only the script is sent: it recognizes the value of an earlier sending, it returns how long the holder's lease
    // lasts, and it reports a key of another type.
    //
    // The plain command gives the end of the lease by the server's clock. So a late copy holds no longer than the first
    // would have. Servers before 6.2 accept only a duration.
    Call acquire(const Claim& claim) const {
        return claim.first ? set(claim, native_.set()) : acquire_by_script(claim);
    }

    // Returns the call that has to follow `sent` after this reply, if there is one.
    std::optional<Call> after_acquire(const Claim& claim, const Call& sent, const Reply& reply) const {
        if (sent.script()) return std::nullopt;
        if (reply.is_nil()) return acquire_by_script(claim);
        if (!is_syntax_error(reply) || sent[4].view({}) != "PXAT") return std::nullopt;
        native_.refused(NativeCommands::Set::until);
        return set(claim, NativeCommands::Set::lasting);
    }

    static AcquireAnswer read_acquire(const Reply& reply, std::string_view name) {
        if (reply.kind == Reply::Kind::text && reply.text == "OK") return {AcquireAnswer::Kind::held, {}, 0};
        if (!reply.is_integer() || reply.integer < -1) throw unexpected(reply, name);
        return {AcquireAnswer::Kind::blocked, Milliseconds(reply.integer), 0};
    }

    // Releases by the script.
    Call release(std::uint64_t hold, std::uint32_t, Milliseconds) const {
        return {digested<scripts::mutex_release>, {key_}, {text(hold)}};
    }

    // Releases by the server's own command if it has one. If an earlier sending got no reply, use the script.
    Call first_release(std::uint64_t hold) const {
        switch (native_.compare_and_delete()) {
            case NativeCommands::Delete::delex: return Call::command({"DELEX", key_, "IFEQ", text(hold)});
            case NativeCommands::Delete::delifeq: return Call::command({"DELIFEQ", key_, text(hold)});
            default: return release(hold, 0, {});
        }
    }

    // Returns the call that has to follow `sent` after this reply, if there is one.
    std::optional<Call> after_release(std::uint64_t hold, const Call& sent, const Reply& reply) const {
        if (sent.script() || !reply.is_error() || classify(reply) != ReplyClass::refused) return std::nullopt;
        native_.refused(sent[0].view({}) == "DELEX" ? NativeCommands::Delete::delex : NativeCommands::Delete::delifeq);
        return first_release(hold);
    }

    // Releases the holds of these values. The reply is the server's clock.
    Call give_up(std::span<const std::string_view> values) const {
        Call call(digested<scripts::mutex_give_up>, {key_}, {});
        call.append(values);
        return call;
    }

    static ReleaseAnswer read_release(const Reply& reply) noexcept {
        if (!reply.is_integer() || reply.integer < 0 || reply.integer > 1) return {ReleaseAnswer::Kind::senseless, 0};
        return {reply.integer == 1 ? ReleaseAnswer::Kind::released : ReleaseAnswer::Kind::not_held, 0};
    }

    Call hand_over(std::uint64_t hold, const Claim& successor) const {
        return {digested<scripts::mutex_hand_over>,
                {key_},
                {text(hold), text(successor.hold), successor.lease, successor.until},
                Effect::grants};
    }

    static HandOverAnswer read_hand_over(const Reply& reply) noexcept { return decode_hand_over(reply); }

    // Returns the current holder's value, whichever it is. GET rather than EXISTS: a key of another type is an error,
    // not a lock.
    Call holders() const { return Call::command({"GET", key_}); }
    Call remaining_lease() const { return {digested<scripts::mutex_remaining_lease>, {key_}, {}}; }

private:
    Call set(const Claim& claim, NativeCommands::Set form) const {
        if (form == NativeCommands::Set::until)
            return Call::command({"SET", key_, text(claim.hold), "NX", "PXAT", claim.lease_end}, Effect::grants);
        return Call::command({"SET", key_, text(claim.hold), "NX", "PX", claim.lease}, Effect::grants);
    }

    Call acquire_by_script(const Claim& claim) const {
        return {digested<scripts::mutex_acquire>, {key_}, {text(claim.hold), claim.lease, claim.until}, Effect::grants};
    }

    const std::string& uuid_;
    NativeCommands& native_;
    const std::string key_;
    const std::string no_channel_{};
};

}  // namespace detail
}  // namespace v0_1
}  // namespace redlatch
