// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client/lock_answers.hpp"
#include "redlatch/client/lock_request.hpp"
#include "redlatch/client/release_latch.hpp"
#include "redlatch/client/runtime.hpp"
#include "redlatch/core/ids.hpp"
#include "redlatch/core/names.hpp"
#include "redlatch/scripts/rlock.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {

// The commands of the reentrant lock: keys and arguments of its scripts, for `send`, which calls or posts them
// (Runtime::calling, Runtime::posting). Every command may be sent again; `again` says so, and then the giving-back ones
// leave a mark against their own delayed copies.
template <Transport T>
class RLockWire {
public:
    static constexpr std::string_view kind = "rlock ";
    static constexpr const Script& renewal = digested<scripts::rlock_renew>;
    static constexpr bool shared = false;
    static constexpr bool reentrant = true;
    static constexpr bool hands_over = true;
    static constexpr bool outlives_lease = false;

    RLockWire(Runtime<T>& runtime, std::string key)
        : runtime_(runtime),
          key_(std::move(key)),
          channel_(prefixed_key("redisson_lock__channel", key_)),
          latches_(key_, runtime.uuid()) {}

    const std::string& key() const noexcept { return key_; }
    const std::string& channel() const noexcept { return channel_; }

    template <class Send>
    auto acquire(const Claim& claim, Send send) {
        return send(digested<scripts::rlock_acquire>, Texts<1>{key_},
                    Texts<3>{text(claim.owner), NumberText(claim.count), NumberText(claim.lease.count())});
    }

    static AcquireAnswer read_acquire(const Reply& reply, std::string_view name) { return decode_acquire(reply, name); }
    static ReleaseAnswer read_release(const Reply& reply) noexcept { return decode_release(reply); }
    static HandOverAnswer read_hand_over(const Reply& reply) noexcept { return decode_hand_over(reply); }

    template <class Send>
    auto release(OwnerNumber owner, std::uint32_t remaining, Milliseconds lease, std::uint64_t request, bool again,
                 Send send) {
        return send(digested<scripts::rlock_release>, Texts<3>{key_, channel_, latches_.of(request)},
                    Texts<5>{text(owner), NumberText(remaining), NumberText(lease.count()), ReleaseLatches::ttl(again),
                             publish_command()});
    }

    // Gives up whatever the owner has.
    template <class Send>
    auto give_up(OwnerNumber owner, std::uint64_t request, bool again, Send send) {
        return release(owner, 0, Milliseconds(0), request, again, std::move(send));
    }

    template <class Send>
    auto hand_over(OwnerNumber owner, const Claim& heir, std::uint64_t request, bool again, Send send) {
        return send(digested<scripts::rlock_hand_over>, Texts<3>{key_, latches_.of(request), channel_},
                    Texts<5>{text(owner), text(heir.owner), NumberText(heir.lease.count()), ReleaseLatches::ttl(again),
                             publish_command()});
    }

    template <class Send>
    auto force_release(Send send) {
        return send(digested<scripts::rlock_force_release>, Texts<2>{key_, channel_}, Texts<1>{publish_command()});
    }

    OwnerText text(OwnerNumber owner, std::uint64_t = 0) const noexcept { return {runtime_.uuid(), owner}; }

protected:
    const ReleaseLatches& latches() const noexcept { return latches_; }
    std::string_view publish_command() const { return runtime_.transport().publish_command(); }

private:
    Runtime<T>& runtime_;
    const std::string key_;
    const std::string channel_;
    const ReleaseLatches latches_;
};

}  // namespace redlatch
