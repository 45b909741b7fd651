// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/claim.hpp"
#include "redlatch/protocol/native_commands.hpp"
#include "redlatch/transport/reply.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The keys of the queue in which clients wait for a lock on the server (scripts/lock_queue.hpp), and whether this client
// uses them. It stops doing so when its user turns out to have no right to them.
class QueueKeys {
public:
    QueueKeys(bool wanted, NativeCommands& native, NativeCommands::Queue of, std::string queue, std::string places)
        : wanted_(wanted), native_(native), of_(of), queue_(std::move(queue)), places_(std::move(places)) {}

    bool are_used() const noexcept { return wanted_ && native_.may_use(of_); }
    bool are_forbidden() const noexcept { return wanted_ && !native_.may_use(of_); }
    // Returns true if those who queue rely on a grant by the release of this hold.
    bool grant_after(std::uint64_t hold) const noexcept { return wanted_ && (hold & grants_nothing) == 0; }

    const std::string& queue() const noexcept { return queue_; }
    const std::string& places() const noexcept { return places_; }

    // How a claim waits, as the acquire scripts know it.
    static int way_of(const Claim& claim) noexcept { return claim.queues ? 1 : claim.polls ? 2 : 0; }

    // Returns true if a call with so many keys was refused because the user has no right to those of the queue. From then on
    // this client uses them no more. Each call that was under way with them is refused, and each gets this answer.
    bool are_refused(std::size_t keys, const Reply& reply) const {
        if (keys < 4 || !reply.is_error() || !reply.text.starts_with("NOPERM")) return false;
        if (reply.text.find("'eval") != std::string::npos) return false;  // the user may run no script at all
        native_.refused(of_);
        return true;
    }

    // The same for a release. An error of a command inside the script leaves open what the script has done before.
    bool are_refused_at_release(std::size_t keys, const Reply& reply) const {
        return reply.text.find("@user_script") == std::string::npos && are_refused(keys, reply);
    }

private:
    const bool wanted_;
    NativeCommands& native_;
    const NativeCommands::Queue of_;
    const std::string queue_;
    const std::string places_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
