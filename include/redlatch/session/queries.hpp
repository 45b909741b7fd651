// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/session/settings.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <algorithm>
#include <string_view>

// Queries the state of a primitive on the server. One round trip each. If the server is unreachable, a query retries
// for unreachable_timeout of the object, or until `limit` if that is earlier. All throw Error.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Sends a call that may be repeated at will and returns the reply.
inline Reply query(Session& session, const Settings& settings, std::string_view key, const Call& call,
                   Instant limit = never) {
    const Instant give_up = std::min(limit, deadline_after(Clock::now(), settings.unreachable_timeout));
    Retry retry = session.retry({.deadline = give_up, .command_timeout = settings.command_timeout});
    Reply reply;
    do reply = session.call(call, retry.deadline());
    while (retry.again(reply));
    if (classify(reply) != ReplyClass::answered) throw error_of(reply, key);
    return reply;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
