// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/names.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/scripts/rlock.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace v0_1 {

// Builds the commands of the reentrant lock: the keys and arguments of its scripts, for `send`, which calls or posts
// them (Session::calling, Session::posting). Every command may be resent and may arrive late.
template <Transport T>
class RLockProtocol {
public:
    static constexpr std::string_view kind = "rlock ";
    static constexpr std::string_view family = "RLock";
    static constexpr const Script& renewal = digested<scripts::rlock_renew>;
    static constexpr bool shared = false;
    static constexpr bool reentrant = true;
    static constexpr bool hands_over = true;
    static constexpr bool outlives_lease = false;

    RLockProtocol(Session<T>& session, std::string key)
        : session_(session), key_(std::move(key)), channel_(prefixed_key("redisson_lock__channel", key_)) {}

    const std::string& key() const noexcept { return key_; }
    const std::string& channel() const noexcept { return channel_; }

    template <class Send>
    auto acquire(const Claim& claim, Send send) {
        return send(digested<scripts::rlock_acquire>, Texts<1>{key_},
                    Texts<4>{text(claim.hold), NumberText(claim.count), NumberText(claim.lease.count()),
                             NumberText(claim.until)});
    }

    static AcquireAnswer read_acquire(const Reply& reply, std::string_view name) { return decode_acquire(reply, name); }
    static ReleaseAnswer read_release(const Reply& reply) noexcept { return decode_release(reply); }
    static HandOverAnswer read_hand_over(const Reply& reply) noexcept { return decode_hand_over(reply); }

    template <class Send>
    auto release(std::uint64_t hold, std::uint32_t remaining, Milliseconds lease, bool /* again */, Send send) {
        return send(digested<scripts::rlock_release>, keys(),
                    Texts<4>{text(hold), NumberText(remaining), NumberText(lease.count()), publish_command()});
    }

    // Releases everything that these owners hold. The reply is the server's clock.
    template <class Send>
    auto give_up(std::span<const std::string_view> owners, Send send) {
        return send(digested<scripts::rlock_give_up>, keys(),
                    with_owners({publish_command(), std::string_view()}, owners));
    }

    template <class Send>
    auto hand_over(std::uint64_t hold, const Claim& heir, Send send) {
        return send(digested<scripts::rlock_hand_over>, keys(),
                    Texts<5>{text(hold), text(heir.hold), NumberText(heir.lease.count()), publish_command(),
                             NumberText(heir.until)});
    }

    // Returns the list of owners that hold the lock, whichever they are.
    template <class Send>
    auto holders(Send send) {
        return send(Texts<2>{"HKEYS", key_});
    }

    // Returns the hold's owner as the server knows it.
    OwnerText text(std::uint64_t hold) const noexcept { return {session_.uuid(), hold}; }

protected:
    Texts<2> keys() const { return {key_, channel_}; }
    std::string_view publish_command() const { return session_.transport().publish_command(); }

private:
    Session<T>& session_;
    const std::string key_;
    const std::string channel_;
};

}  // namespace v0_1
}  // namespace redlatch
