// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/suspended.hpp"
#include "redlatch/base/task.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/options.hpp"
#include "redlatch/protocol/request_lanes.hpp"
#include "redlatch/protocol/request_marks.hpp"
#include "redlatch/protocol/shared_permits.hpp"
#include "redlatch/semaphore/pending_requests.hpp"
#include "redlatch/semaphore/request_deliveries.hpp"
#include "redlatch/semaphore/synchronizer_core.hpp"
#include "redlatch/semaphore/waiting_place.hpp"
#include "redlatch/session/awaiting.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/wait/patience.hpp"
#include "redlatch/wait/wait_request.hpp"

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Asks the server for what callers want, and records what they get. If the outcome of a request is unknown, the background
// gives back what the request may have taken. The mutex of SynchronizerCore guards all parts.
template <class Protocol, class Leases>
class Questions {
    using Want = typename Protocol::Want;

public:
    Questions(CoreOf<Protocol>& core, RequestDeliveries& deliveries, Leases& leases, PlaceOf<Protocol>& place,
              Patience& patience)
        : core_(core), deliveries_(deliveries), leases_(leases), place_(place), patience_(patience) {}

    // Returns the server's reply; nothing if there was none and the caller's deadline or stop token ended the call.
    // Otherwise throws. `first`: True before any waiting. `place`: the number of the place at which it waits on; 0 for
    // none.
    Task<std::optional<Answer>> ask(std::unique_lock<std::mutex>& lock, std::span<Want> wants,
                                    const WaitRequest& request, bool first, std::uint64_t place) {
        leases_.prepare();
        RequestId request_id = core_.take_lane();
        const Instant give_up = patience_.give_up_at(request, first);
        const Instant begun = Clock::now();
        const SendTime begun_at;
        lock.unlock();
        Retry retry =
            core_.session.retry({give_up, request.stop, request.one_try, request.by, request.settings.command_timeout});
        Reply reply;
        std::optional<Instant> rest;
        do {
            const Instant deadline = retry.deadline();
            try {
                if constexpr (Protocol::takes) {
                    const MakeCall make = [&](const RequestId& one) {
                        Call call = place_.question(wants, one, place);
                        call.replication = request.settings.replication();
                        return call;
                    };
                    reply = co_await core_.sender.send(request_id, request.by, deadline, make);
                } else {
                    const Call call = core_.protocol.ask(wants, request_id);
                    reply = co_await ReplyTo(core_.session, request.by, call, deadline);
                    if (!reply.answered() && !reply.is_unsent()) request_id.may_be_done = true;
                }
            } catch (const std::bad_alloc&) {
                reply = detail::short_of_memory(request.by);
            }
            rest = retry.rest_after(reply);
            if (rest) co_await Pause(request.by, *rest, request.stop);
        } while (rest && retry.goes_on());
        lock.lock();
        if (classify(reply) != ReplyClass::answered) {
            patience_.failed(request, begun, reply);
            if (request_id.may_be_done) place_.unanswered(place);
            settle(lock, request_id, wants, request_id.may_be_done);
            if (request.stop.stop_requested()) co_return std::nullopt;
            if (patience_.was_too_short(request, begun, reply, request_id.may_be_done)) co_return std::nullopt;
            throw core_.sender.failure(request_id, reply);
        }
        patience_.answered();
        try {
            const Answer answer = core_.protocol.decode(reply, wants);
            place_.answered(place, answer, wants);
            if (!reply.replicated && std::any_of(wants.begin(), wants.end(), [](const Want& w) { return w.served; }))
                throw not_confirmed(reply, core_.key());
            if constexpr (Protocol::takes) {
                leases_.accept(lock, wants, begun_at);
                for (const Want& want : wants)
                    if (want.served) core_.session.count_acquisition();
            }
            // Last: what fails before is undone in the same lane.
            core_.lanes.give_back(request_id);
            co_return answer;
        } catch (...) {  // a senseless reply, too few replicas, or no memory to record what was taken
            for (const Want& want : wants) leases_.discard(want);
            settle(lock, request_id, wants, true);
            throw;
        }
    }

private:
    // Handles a request without a proper reply.
    void settle(std::unique_lock<std::mutex>& lock, const RequestId& request_id, std::span<Want> wants, bool unknown) {
        if constexpr (Protocol::takes)
            if (unknown && !(request_id.is_unknowable && Protocol::takes_back_by_mark))
                return deliveries_.add(lock, PendingRequest::Kind::undoing, request_id,
                                       [this, kept = std::vector<Want>(wants.begin(), wants.end())](
                                           const RequestId& asked) { return core_.protocol.take_back(asked, kept); });
        core_.lanes.give_back(request_id);
    }

    CoreOf<Protocol>& core_;
    RequestDeliveries& deliveries_;
    Leases& leases_;
    PlaceOf<Protocol>& place_;
    Patience& patience_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
