// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/protocol/request_lanes.hpp"
#include "redlatch/protocol/request_marks.hpp"
#include "redlatch/semaphore/idempotent_sender.hpp"
#include "redlatch/semaphore/pending_requests.hpp"
#include "redlatch/semaphore/request_deliveries.hpp"
#include "redlatch/semaphore/synchronizer_core.hpp"
#include "redlatch/session/awaiting.hpp"
#include "redlatch/session/retry.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/session/settings.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Tells what happens to a change that no server has carried out in time.
enum class Undelivered {
    call_off,  // it is called off, so that a late copy cannot undo what the caller does next
    retry,     // the background goes on to deliver it; then `make` outlives the call, and must own what it uses
};

// What is known of a change when Changes::make() throws.
enum class Failure {
    not_made,
    unknown,
    left,  // the background goes on to deliver it
};

// Sends the changes of a semaphore or latch that a caller waits for. The mutex of SynchronizerCore guards all parts.
class Changes {
public:
    Changes(SynchronizerCore& core, RequestDeliveries& deliveries) : core_(core), deliveries_(deliveries) {}

    // Returns for how long a command is resent. Its mark has to last longer, by the options of the client.
    Milliseconds patience_of(const Settings& settings) const {
        return std::min(settings.unreachable_timeout, RequestMarks::longest_ttl(core_.session.options()) / 2);
    }

    // Sends the change that `make(request_id)` builds, and resends it until it is answered, for at most
    // unreachable_timeout. Throws Error or std::bad_alloc; `failure` then says what is known. `call_off` makes the call
    // that calls the change off, if that takes more than to void its request; then it must own what it uses.
    Reply make(const Settings& settings, const MakeCall& make, Undelivered then, Failure* failure, MakeCall call_off) {
        Failure known{};
        if (!failure) failure = &known;
        *failure = Failure::not_made;
        std::unique_lock lock(core_.mutex);
        RequestId request_id = core_.take_lane();
        lock.unlock();
        Retry retry = core_.session.retry(
            {.deadline = Clock::now() + patience_of(settings), .command_timeout = settings.command_timeout});
        Reply reply;
        do reply = make_once(request_id, make, retry.deadline());
        while (retry.again(reply));
        lock.lock();
        if (request_id.may_be_done) *failure = Failure::unknown;
        if (!core_.is_settled(reply)) {
            if (then == Undelivered::retry) {
                deliveries_.add(lock, PendingRequest::Kind::change, request_id, make);
                *failure = Failure::left;
            } else if (request_id.may_be_done) {
                if (!call_off)
                    call_off = [&marks = core_.marks](const RequestId& given_up) {
                        return marks.void_request(given_up);
                    };
                deliveries_.add(lock, PendingRequest::Kind::call_off, request_id, std::move(call_off));
            } else {
                core_.lanes.give_back(request_id);
            }
            throw core_.sender.failure(request_id, reply);
        }
        core_.lanes.give_back(request_id);
        if (classify(reply) != ReplyClass::answered) throw core_.sender.failure(request_id, reply);
        core_.task.has_changed();
        return reply;
    }

private:
    Reply make_once(RequestId& request_id, const MakeCall& make, Instant deadline) try {
        deliveries_.deliver_first();
        return core_.sender.send(request_id, by_thread, deadline, make).run();
    } catch (const std::bad_alloc&) {
        return detail::short_of_memory();
    }

    SynchronizerCore& core_;
    RequestDeliveries& deliveries_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
