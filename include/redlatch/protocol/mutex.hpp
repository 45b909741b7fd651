// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/scripts/mutex.hpp"
#include "redlatch/session/compare_and_delete.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace v0_1 {

// Builds the commands of the plain mutex, for `send`, which calls or posts them. The key holds the text of the owner of
// its one hold. Every command may be resent, without a mark on the server.
template <Transport T>
class MutexProtocol {
public:
    static constexpr std::string_view kind = "mutex ";
    static constexpr std::string_view family = "Mutex";
    static constexpr const Script& renewal = digested<scripts::mutex_renew>;
    static constexpr bool shared = false;
    static constexpr bool reentrant = false;
    static constexpr bool hands_over = true;
    static constexpr bool outlives_lease = false;

    MutexProtocol(Session<T>& session, std::string key) : session_(session), key_(std::move(key)) {}

    const std::string& key() const noexcept { return key_; }

    // Empty: a release publishes no message.
    const std::string& channel() const noexcept { return no_channel_; }

    // Returns the value of a hold.
    OwnerText text(std::uint64_t hold) const noexcept { return {session_.uuid(), hold}; }

    // Sends the plain command first. Its refusal has no reason, so the script follows. From then on only the script is
    // sent: it recognizes the value of an earlier sending, it returns how long the holder's lease lasts, and it reports
    // a key of another type.
    //
    // The plain command gives the end of the lease by the server's clock. So a late copy holds no longer than the first
    // would have. Servers before 6.2 accept only a duration.
    template <class Send>
    auto acquire(const Claim& claim, Send send) {
        const OwnerText value = text(claim.hold);
        const NumberText lease(claim.lease.count());
        if constexpr (std::invocable<Send&, Texts<6>>) {
            if (claim.first) {
                Reply reply = send_plain(claim, value, lease, send);
                if (!reply.is_nil()) return reply;
            }
        }
        return send(digested<scripts::mutex_acquire>, Texts<1>{key_}, Texts<3>{value, lease, NumberText(claim.until)});
    }

    static AcquireAnswer read_acquire(const Reply& reply, std::string_view name) {
        if (reply.kind == Reply::Kind::text && reply.text == "OK") return {AcquireAnswer::Kind::held, {}, 0};
        if (!reply.is_integer() || reply.integer < -1) throw unexpected(reply, name);
        return {AcquireAnswer::Kind::blocked, Milliseconds(reply.integer), 0};
    }

    // Releases by the server's own command if it has one. If an earlier sending got no reply, uses the script.
    template <class Send>
    auto release(std::uint64_t hold, std::uint32_t, Milliseconds, bool again, Send send) {
        const OwnerText value = text(hold);
        if constexpr (std::invocable<Send&, Texts<4>>) {
            for (auto form = native().form(); !again && form != CompareAndDelete::Form::none; form = native().form()) {
                Reply reply = form == CompareAndDelete::Form::delex ? send(Texts<4>{"DELEX", key_, "IFEQ", value})
                                                                    : send(Texts<3>{"DELIFEQ", key_, value});
                if (!reply.is_error() || classify(reply) != ReplyClass::refused) return reply;
                native().refused(form);
            }
        }
        return send(digested<scripts::mutex_release>, Texts<1>{key_}, Texts<1>{value});
    }

    // Releases the holds of these values. The reply is the server's clock.
    template <class Send>
    auto give_up(std::span<const std::string_view> values, Send send) {
        return send(digested<scripts::mutex_give_up>, Texts<1>{key_}, values);
    }

    // Returns the current holder's value, whichever it is.
    template <class Send>
    auto holders(Send send) {
        return value(std::move(send));
    }

    static ReleaseAnswer read_release(const Reply& reply) noexcept {
        if (!reply.is_integer() || reply.integer < 0 || reply.integer > 1) return {ReleaseAnswer::Kind::senseless, 0};
        return {reply.integer == 1 ? ReleaseAnswer::Kind::released : ReleaseAnswer::Kind::not_held, 0};
    }

    template <class Send>
    auto hand_over(std::uint64_t hold, const Claim& heir, Send send) {
        return send(digested<scripts::mutex_hand_over>, Texts<1>{key_},
                    Texts<4>{text(hold), text(heir.hold), NumberText(heir.lease.count()), NumberText(heir.until)});
    }

    static HandOverAnswer read_hand_over(const Reply& reply) noexcept { return decode_hand_over(reply); }

    template <class Send>
    auto remaining_lease(Send send) {
        return send(digested<scripts::mutex_remaining_lease>, Texts<1>{key_}, Texts<0>{});
    }

    // Returns the current holder's value, whichever it is. GET rather than EXISTS: a key of another type is an error,
    // not a lock.
    template <class Send>
    auto value(Send send) {
        return send(Texts<2>{"GET", key_});
    }

    // Returns by how much a lease may be shorter than requested. The plain command fixes its end by the server's clock,
    // which may be ahead of this client's estimate by that much.
    Milliseconds clock_error() const { return session_.clock_error(); }

private:
    template <class Send>
    Reply send_plain(const Claim& claim, std::string_view value, std::string_view lease, Send& send) {
        if (session_.knows_expiry_times()) {
            const NumberText end(session_.lease_end(claim.until, claim.lease));
            Reply reply = send(Texts<6>{"SET", key_, value, "NX", "PXAT", end});
            if (!is_syntax_error(reply)) return reply;
            session_.forget_expiry_times();
        }
        return send(Texts<6>{"SET", key_, value, "NX", "PX", lease});
    }

    CompareAndDelete& native() const noexcept { return session_.native_delete(); }

    Session<T>& session_;
    const std::string key_;
    const std::string no_channel_{};
};

}  // namespace v0_1
}  // namespace redlatch
