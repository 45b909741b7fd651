// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/lock/lock_core.hpp"
#include "redlatch/lock/lock_parts.hpp"
#include "redlatch/protocol/lock_answers.hpp"
#include "redlatch/protocol/message_words.hpp"
#include "redlatch/wait/lock_request.hpp"

#include <cstdint>
#include <optional>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A hold that the release of another client has written for a waiter of this one.
struct Grant {
    ServerMilliseconds at{};
    Milliseconds lease{};
    std::int64_t token = 0;  // 0 for none

    // Reads what follows "grant " in the message for a waiter: "<number> <time> <lease> [<token>]". Returns nothing if it
    // is for another number than `wanted`.
    static std::optional<Grant> in(std::string_view message, std::uint64_t wanted) {
        const auto number = next_number<std::uint64_t>(message);
        const auto at = next_number<std::int64_t>(message);
        const auto lease = next_number<std::int64_t>(message);
        const auto token = next_number<std::int64_t>(message);
        if (!number || *number != wanted || wanted == 0 || !at || !is_plausible(*at)) return std::nullopt;
        if (!lease || *lease == 0 || !is_plausible(*lease)) return std::nullopt;
        return Grant{*at, Milliseconds(*lease), token.value_or(0)};
    }
};

// Returns since when the granted hold is certain; nothing if the server has to be asked, because it is not certain that
// the hold lasts. It counts from the instant of the grant, not from the receipt of the message, which may have been on
// its way for long.
inline std::optional<Instant> granted_since(LockParts& parts, const Grant& grant, const LockRequest& request) {
    LockCore& core = parts.core;
    const Instant now = Clock::now();
    const std::optional<Instant> granted =
        core.session.server_clock().instant_of(core.session.transport().route(core.key()), grant.at, now);
    if (!granted) {
        // This time the waiter asks. A new reading of the clock lets the next grant count: the clock may have jumped, and in
        // a cluster only a reading from this slot's node vouches for it.
        core.reads_clock = true;
        core.session.timers().schedule(core.task, now);
        return std::nullopt;
    }
    if (!may_be_granted(request)) return std::nullopt;
    const Instant since = *granted;
    if (now >= redlatch::valid_until(since, grant.lease)) return std::nullopt;
    // A fixed lease that is longer than the grant has to be asked for. The watchdog prolongs the others.
    if (request.lease && *request.lease > grant.lease) return std::nullopt;
    if (request.lease && now >= redlatch::valid_until(since, *request.lease)) return std::nullopt;
    if (parts.leases.live_hold(request.owner) || parts.leases.mixed_kinds()) return std::nullopt;
    return since;
}

// Records a granted hold. If that fails (no memory), the owner holds nothing, and the exception goes on. `unsettled`: the
// server time until which an unanswered question for that number may take effect; 0 for none. `longest`: the longest lease
// that a question asked for.
inline void record_grant(LockParts& parts, const Grant& grant, const LockRequest& request, std::uint64_t number,
                         Instant since, std::int64_t unsettled, Milliseconds longest) {
    try {
        HoldRecord& hold =
            parts.leases.record(request.owner, number, since, request.lease, grant.token, request.settings,
                                request.lease ? std::nullopt : std::optional(grant.lease));
        hold.unsettled = unsettled;
        // The server may keep it for longer: the place was for another lease, or a late question gives it one.
        if (unsettled != 0)
            hold.unanswered(parts.deliveries.unsettled_until(unsettled) + longest);
        else if (request.lease && *request.lease < grant.lease)
            hold.unanswered(Clock::now() + grant.lease);
    } catch (...) {
        parts.leases.forget(request.owner);
        throw;
    }
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
