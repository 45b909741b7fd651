// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/suspended.hpp"
#include "redlatch/base/task.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/error.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/request_lanes.hpp"
#include "redlatch/protocol/request_marks.hpp"
#include "redlatch/protocol/semaphore_queue.hpp"
#include "redlatch/session/awaiting.hpp"
#include "redlatch/session/remote_clock.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Builds the call of a request.
using MakeCall = std::function<Call(const RequestId&)>;

// Sends requests that take effect at most once, and records in their ids what the replies reveal.
class IdempotentSender {
public:
    // `queue`: that of the semaphore on the server; null for what has none.
    IdempotentSender(Session& session, const RequestMarks& marks, const SemaphoreQueue* queue)
        : session_(session), marks_(marks), queue_(queue) {}

    // Sends the request that `make(request_id)` builds. If it certainly did not take effect because it came too late,
    // sends it again as a new request, up to three tries in all. If the user has no right to the keys of the queue, makes it
    // once more, without these. If the outcome is unknown, sets request_id.is_unknowable and returns a final reply. All
    // arguments must outlive the task.
    Task<Reply> send(RequestId& request_id, WaitBy by, Instant deadline, const MakeCall& make) const {
        for (int tries = 1;; ++tries) {
            if (request_id.wanted_until == 0) {
                Reply failure;
                auto now = session_.known_server_time(marks_.key());
                if (!now) now = co_await server_time(session_, by, marks_.key(), deadline, failure);
                if (!now) co_return failure;
                request_id.wanted_until = marks_.wanted_from(*now);
            }
            const SendTime sent;
            const Call call = make(std::as_const(request_id));
            Reply reply = co_await ReplyTo(session_, by, call, deadline);
            if (is_queue_refused(call.key_count(), reply)) {
                --tries;
                continue;
            }
            if (!note(request_id, sent, reply) || tries == 3 || Clock::now() >= deadline) co_return reply;
        }
    }

    // Returns true if the user turns out to have no right to the keys of the queue, which a call with so many keys has: then
    // it has to be made once more, and does without.
    bool is_queue_refused(std::size_t keys, const Reply& reply) const {
        return queue_ && queue_->is_refused(keys, reply);
    }

    // Applies the reply to a sending at `sent` to the request id. Returns true if the request certainly did not take
    // effect because it came too late; then the request id is a new one for a retry.
    bool note(RequestId& request_id, const SendTime& sent, Reply& reply) const {
        if (reply.is_unsent()) {
            if (!request_id.may_be_done) request_id.wanted_until = 0;
            return false;
        }
        if (!reply.answered()) {
            request_id.may_be_done = true;
            return false;
        }
        if (!session_.learn_if_late(marks_.key(), sent, reply)) return false;
        if (request_id.may_be_done && read_late(reply).value_or(0) > marks_.mark_end(request_id)) {
            request_id.is_unknowable = true;
            reply.text = "UNKNOWN";  // a final error
            return false;
        }
        request_id = {request_id.lane, session_.next_request()};
        return true;
    }

    // Returns the error of a request that failed.
    Error failure(const RequestId& request_id, const Reply& reply) const {
        if (request_id.is_unknowable) return {errc::unreachable, marks_.key(), unknowable};
        return error_of(reply, marks_.key());
    }

    static constexpr const char* unknowable =
        "the server was unreachable for too long to find out whether the command took effect";

private:
    Session& session_;
    const RequestMarks& marks_;
    const SemaphoreQueue* const queue_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
