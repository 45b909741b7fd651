// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/session/settings.hpp"
#include "redlatch/transport/reply.hpp"

#include <algorithm>
#include <optional>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Decides for how long the calls of one name go on while no server answers. The waiting callers of the name share that
// time, each by its own settings: those of its request. The mutex of the name's state guards it.
class Patience {
public:
    // Returns until when a query is retried. `first`: true for the first query of a call. It always gets the time of one
    // try, because the deadline is meant for the waiting: a short timeout must not do worse than none. A request
    // for one try may have a deadline to come for that try.
    template <class Request>
    Instant give_up_at(const Request& request, bool first) const {
        const Instant now = Clock::now();
        if (request.one_try) {
            const Instant end = now + one_try(request.settings);
            return request.deadline > now ? std::min(end, request.deadline) : end;
        }
        // Waiting callers share the time for which a server was unreachable, but each gets a full try.
        const Instant give_up = deadline_after(failing_since_.value_or(now), request.settings.unreachable_timeout);
        const Instant deadline = std::min(request.deadline, std::max(give_up, now + shortest_try));
        return first ? std::max(deadline, now + std::min(one_try(request.settings), honest_try)) : deadline;
    }

    // Returns true if a query that began at `begun` and was not answered failed for want of time only: a server that got
    // less than command_timeout counts as slow, not as unreachable. `reached`: true if it may have reached the server.
    template <class Request>
    bool was_too_short(const Request& request, Instant begun, const Reply& reply, bool reached) const {
        const Instant now = Clock::now();
        if (now < request.deadline || !(reached || reply.kind == Reply::Kind::no_time)) return false;
        return (request.one_try ? now : request.deadline) - begun < request.settings.command_timeout;
    }

    void answered() { failing_since_.reset(); }

    // Records that a query that began at `begun` got this reply, which is no answer.
    template <class Request>
    void failed(const Request& request, Instant begun, const Reply& reply) {
        // A server that was given less than its time may only be slow.
        const bool is_away =
            reply.kind != Reply::Kind::no_time || Clock::now() - begun >= request.settings.command_timeout;
        if (!failing_since_ && is_away) failing_since_ = begun;
    }

    // The least time for the first query of a call, whatever the caller's deadline: connecting may be slow, and a free
    // lock must not be missed for that.
    static constexpr Milliseconds honest_try{250};

private:
    static constexpr Milliseconds shortest_try{100};

    static Milliseconds one_try(const Settings& settings) {
        return std::max(shortest_try, std::min(settings.command_timeout, settings.unreachable_timeout));
    }

    std::optional<Instant> failing_since_;  // since then no server has replied
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
