// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client/lock_answers.hpp"
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

// The commands of the reentrant lock: keys and arguments of its scripts. Every command may be sent again; `again`
// says so, and then the giving-back ones leave a mark against their own delayed copies.
template <Transport T>
class RLockWire {
public:
    static constexpr std::string_view kind = "rlock ";
    static constexpr const Script& renewal = digested<scripts::rlock_renew>;
    static constexpr bool shared = false;
    static constexpr bool hands_over = true;
    static constexpr bool outlives_lease = false;

    RLockWire(Runtime<T>& runtime, std::string key)
        : runtime_(runtime),
          key_(std::move(key)),
          channel_(prefixed_key("redisson_lock__channel", key_)),
          latches_(key_, runtime.uuid()) {}

    const std::string& key() const noexcept { return key_; }
    const std::string& channel() const noexcept { return channel_; }

    Reply acquire(OwnerNumber owner, std::uint32_t count, Milliseconds lease, bool, Instant deadline) {
        return call(digested<scripts::rlock_acquire>, std::array<std::string_view, 1>{key_},
                    std::array<std::string_view, 3>{text(owner), NumberText(count), NumberText(lease.count())},
                    deadline);
    }

    static AcquireAnswer read_acquire(const Reply& reply, std::string_view name) { return decode_acquire(reply, name); }
    static HandOverAnswer read_hand_over(const Reply& reply) noexcept { return decode_hand_over(reply); }

    Reply release(OwnerNumber owner, std::uint32_t remaining, Milliseconds lease, std::uint64_t request, bool again,
                  Instant deadline) {
        return call(digested<scripts::rlock_release>,
                    std::array<std::string_view, 3>{key_, channel_, latches_.of(request)},
                    std::array<std::string_view, 5>{text(owner), NumberText(remaining), NumberText(lease.count()),
                                                    ReleaseLatches::ttl(again), runtime_.transport().publish_command()},
                    deadline);
    }

    void post_release(OwnerNumber owner, std::uint64_t request, bool again, Completion done) {
        const OwnerText who = text(owner);
        const ReleaseLatches::Key latch = latches_.of(request);
        runtime_.post_script(digested<scripts::rlock_release>, std::array<std::string_view, 3>{key_, channel_, latch},
                             std::array<std::string_view, 5>{who, "0", "0", ReleaseLatches::ttl(again),
                                                             runtime_.transport().publish_command()},
                             std::move(done));
    }

    Reply hand_over(OwnerNumber owner, OwnerNumber heir, Milliseconds lease, std::uint64_t request, bool again,
                    Instant deadline) {
        return call(digested<scripts::rlock_hand_over>, std::array<std::string_view, 2>{key_, latches_.of(request)},
                    std::array<std::string_view, 4>{text(owner), text(heir), NumberText(lease.count()),
                                                    ReleaseLatches::ttl(again)},
                    deadline);
    }

    Reply force_release(Instant deadline) {
        return call(digested<scripts::rlock_force_release>, std::array<std::string_view, 2>{key_, channel_},
                    std::array<std::string_view, 1>{runtime_.transport().publish_command()}, deadline);
    }

    OwnerText text(OwnerNumber owner) const noexcept { return {runtime_.uuid(), owner}; }

protected:
    const ReleaseLatches& latches() const noexcept { return latches_; }

    // The temporaries behind the words live until the call returns: they are part of the caller's full expression.
    template <std::size_t K, std::size_t A>
    Reply call(const Script& script, const std::array<std::string_view, K>& keys,
               const std::array<std::string_view, A>& arguments, Instant deadline) {
        return runtime_.call_script(script, keys, arguments, deadline);
    }

private:
    Runtime<T>& runtime_;
    const std::string key_;
    const std::string channel_;
    const ReleaseLatches latches_;
};

}  // namespace redlatch
