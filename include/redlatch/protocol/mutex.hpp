// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/inspection.hpp"
#include "redlatch/protocol/lock_protocol.hpp"
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
inline namespace REDLATCH_ABI {
namespace detail {

// Makes the calls of the plain mutex. The key holds the text of the owner of its one hold. A release publishes no
// message.
class MutexProtocol final : public LockProtocol {
public:
    static constexpr LockKind lock_kind{.name = "mutex ",
                                        .family = "Mutex",
                                        .renewal = digested<scripts::mutex_renew>,
                                        .reentrant = false,
                                        .hands_over = true,
                                        .fixes_lease_end = true};

    MutexProtocol(const ProtocolContext& context, const std::string& key)
        : LockProtocol(lock_kind, context, key), native_(context.native) {}

    // Makes the plain command for the first sending. Its refusal has no reason, so the script follows. From then on
    // only the script is sent: it recognizes the value of an earlier sending, it returns how long the holder's lease
    // lasts, it reports a key of another type, and it returns the server's clock.
    //
    // The plain command gives the end of the lease by the server's clock. So a late copy holds no longer than the first
    // would have. Servers before 6.2 accept only a duration.
    Call acquire(const Claim& claim) const override {
        return claim.first ? set(claim, native_.set()) : acquire_by_script(claim);
    }

    std::optional<Call> after_acquire(const Claim& claim, const Call& sent, const Reply& reply) const override {
        if (sent.script()) return std::nullopt;
        if (reply.is_nil()) return acquire_by_script(claim);
        if (!is_syntax_error(reply) || sent[4].view({}) != "PXAT") return std::nullopt;
        native_.refused(NativeCommands::Set::until);
        return set(claim, NativeCommands::Set::lasting);
    }

    AcquireAnswer read_acquire(const Reply& reply) const override {
        // The script's reply goes on with the server's clock.
        if (reply.kind == Reply::Kind::text && (reply.text == "OK" || reply.text.starts_with("OK ")))
            return {AcquireAnswer::Kind::held, {}, 0};
        if (!reply.is_integer() || reply.integer < -1) throw unexpected(reply, key_);
        return {AcquireAnswer::Kind::blocked, Milliseconds(reply.integer), 0};
    }

    // Releases by the script.
    Call release(std::uint64_t hold, std::uint32_t, Milliseconds) const override {
        return {digested<scripts::mutex_release>, {key_}, {text(hold)}};
    }

    // Releases by the server's own command if it has one. If an earlier sending got no reply, use the script.
    Call first_release(std::uint64_t hold) const override {
        switch (native_.compare_and_delete()) {
            case NativeCommands::Delete::delex: return Call::command({"DELEX", key_, "IFEQ", text(hold)});
            case NativeCommands::Delete::delifeq: return Call::command({"DELIFEQ", key_, text(hold)});
            default: return release(hold, 0, {});
        }
    }

    std::optional<Call> after_release(std::uint64_t hold, const Call& sent, const Reply& reply) const override {
        if (sent.script() || !reply.is_error() || classify(reply) != ReplyClass::refused) return std::nullopt;
        native_.refused(sent[0].view({}) == "DELEX" ? NativeCommands::Delete::delex : NativeCommands::Delete::delifeq);
        return first_release(hold);
    }

    Call stay(std::uint64_t hold, std::uint64_t successor, Milliseconds rest) const override {
        return {digested<scripts::mutex_stay>, {key_}, {text(hold), text(successor), rest}};
    }

    // Releases the holds of these values. The reply is the server's clock.
    Call give_up(std::span<const std::string_view> values) const override {
        Call call(digested<scripts::mutex_give_up>, {key_}, {});
        call.append(values);
        return call;
    }

    ReleaseAnswer read_release(const Reply& reply) const noexcept override {
        if (!reply.is_integer() || reply.integer < 0 || reply.integer > 1) return {ReleaseAnswer::Kind::senseless, 0};
        return {reply.integer == 1 ? ReleaseAnswer::Kind::released : ReleaseAnswer::Kind::not_held, 0};
    }

    Call hand_over(std::uint64_t hold, const Claim& successor) const override {
        return {digested<scripts::mutex_hand_over>,
                {key_},
                {text(hold), text(successor.hold), successor.lease, successor.until},
                Effect::grants};
    }

    // Returns the current holder's value, whichever it is. GET rather than EXISTS: a key of another type is an error,
    // not a lock.
    Call holders() const override { return Call::command({"GET", key_}); }
    Call remaining_lease() const override { return {digested<scripts::mutex_remaining_lease>, {key_}, {}}; }

    Call held_by(const std::string&) const override { return holders(); }
    bool read_held_by(const Reply& reply, const std::string& value) const override {
        return read_text(reply, key_) == value;
    }
    Call inspect() const override { return inspect_value(key_); }
    Inspection read_inspection(const Reply& reply) const override { return inspection_of_value(reply, key_); }

private:
    Call set(const Claim& claim, NativeCommands::Set form) const {
        if (form == NativeCommands::Set::until)
            return Call::command({"SET", key_, text(claim.hold), "NX", "PXAT", claim.lease_end}, Effect::grants);
        return Call::command({"SET", key_, text(claim.hold), "NX", "PX", claim.lease}, Effect::grants);
    }

    Call acquire_by_script(const Claim& claim) const {
        return {digested<scripts::mutex_acquire>, {key_}, {text(claim.hold), claim.lease, claim.until}, Effect::grants};
    }

    NativeCommands& native_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
