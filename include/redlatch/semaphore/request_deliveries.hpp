// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/suspended.hpp"
#include "redlatch/options.hpp"
#include "redlatch/protocol/request_lanes.hpp"
#include "redlatch/protocol/request_marks.hpp"
#include "redlatch/semaphore/pending_requests.hpp"
#include "redlatch/semaphore/synchronizer_core.hpp"
#include "redlatch/session/remote_clock.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Delivers the requests of a semaphore or latch that no server has answered in time. It posts each again until it is
// answered or its mark has expired.
class RequestDeliveries {
public:
    explicit RequestDeliveries(SynchronizerCore& core) : core_(core) {}

    bool empty() const { return pending_.empty(); }
    Instant next_deadline() const { return pending_.next_deadline(); }

    // Adds a request. `make(request_id)` builds its call; it outlives the caller. `answered`: whom to tell once a server
    // has done or refused it. `not_before`: it is not sent earlier.
    void add(std::unique_lock<std::mutex>& lock, PendingRequest::Kind purpose, const RequestId& request_id,
             PendingRequest::Make make, std::function<void(const std::error_code&)> answered = {},
             Instant not_before = {}) {
        const Instant begin = std::max(Clock::now(), not_before);
        pending_.add({.kind = purpose,
                      .request_id = request_id,
                      .make = std::move(make),
                      .give_up = begin + RequestMarks::longest_ttl(core_.session.options()),
                      .next = begin,
                      .answered = std::move(answered),
                      .not_before = not_before});
        core_.task.schedule();
        // This thread sends it, so that it follows the first sending on the same connection.
        deliver(lock);
    }

    // Gives back what was taken for callers that do not claim it.
    template <class Protocol>
    void give_back(std::unique_lock<std::mutex>& lock, const Protocol& protocol,
                   std::vector<typename Protocol::Want> wants) {
        add(lock, PendingRequest::Kind::change, core_.take_lane(),
            [&protocol, wants = std::move(wants)](const RequestId& request_id) {
                return protocol.give_back(request_id, wants);
            });
    }

    // Sends pending requests ahead of a change on the same connection. A late copy of one could otherwise undo the
    // change.
    void deliver_first() {
        std::unique_lock lock(core_.mutex);
        if (pending_.empty()) return;
        pending_.hurry(Clock::now());
        deliver(lock);
    }

    // Drops and reports the requests whose time is over.
    void drop_expired(Instant now) {
        for (const PendingRequest& request : pending_.take_expired(now)) {
            core_.lanes.give_back(request.request_id);
            report(request, request.request_id.may_be_done ? IdempotentSender::unknowable
                                                           : "no server has replied for too long");
        }
    }

    // Posts what is due.
    void deliver(std::unique_lock<std::mutex>& lock) {
        for (const PendingRequest& request : pending_.take_due(Clock::now())) {
            lock.unlock();
            try {
                post(request);
            } catch (...) {  // no memory, no thread: retried after a pause
                failed(request.number);
            }
            lock.lock();
        }
    }

private:
    // Called without the mutex. A request that was never sent needs the server's time first, to fix until when it is
    // wanted.
    void post(const PendingRequest& request) {
        if (request.request_id.wanted_until != 0) return post_stamped(request);
        core_.session.with_server_time(
            core_.key(), Receiver::background,
            [this, keep = core_.keep(), request = PendingRequest(request)](const std::optional<ServerMilliseconds>& now,
                                                                           const Reply&, Receiver) mutable {
                if (!now) return failed(request.number);
                try {
                    request.request_id.wanted_until = core_.marks.wanted_from(*now);
                    post_stamped(request);
                } catch (...) {
                    failed(request.number);
                }
            });
    }

    void post_stamped(const PendingRequest& request) {
        const Call call = request.make(request.request_id);
        Completion done = [this, keep = core_.keep(), number = request.number, keys = call.key_count()](Reply reply) {
            if (core_.sender.is_queue_refused(keys, reply)) return failed(number);
            delivered(number, std::move(reply));
        };
        {
            const std::lock_guard lock(core_.mutex);
            PendingRequest* const kept = pending_.find(request.number);
            if (!kept) return;
            kept->request_id.wanted_until = request.request_id.wanted_until;
            kept->sent = SendTime();
        }
        core_.session.post(call, std::move(done));
    }

    void failed(std::uint64_t number) {
        const std::lock_guard lock(core_.mutex);
        pending_.failed(number, Clock::now());
        core_.task.schedule();
    }

    void delivered(std::uint64_t number, Reply reply) {
        const std::lock_guard lock(core_.mutex);
        PendingRequest* const request = pending_.find(number);
        if (!request) return;
        const bool is_void = core_.sender.note(request->request_id, request->sent, reply);
        if (is_void && request->kind == PendingRequest::Kind::change) {
            request->give_up = Clock::now() + RequestMarks::longest_ttl(core_.session.options());
            pending_.failed(number, Clock::now());
        } else if (is_void || core_.is_settled(reply)) {
            if (request->request_id.is_unknowable)
                report(*request, IdempotentSender::unknowable);
            else if (!is_void && classify(reply) != ReplyClass::answered)
                report(*request, error_of(reply, core_.key()).what());
            report(*request, reply);
            core_.lanes.give_back(request->request_id);
            pending_.remove(number);
            core_.task.has_changed();
            // The session may drop the state now.
            core_.session.timers().schedule(core_.task, Clock::now());
        } else {
            if (classify(reply) == ReplyClass::refused) report(*request, reply);
            pending_.failed(number, Clock::now());
        }
        core_.task.schedule();
    }

    // Tells the outcome to whom it may concern, once.
    void report(PendingRequest& request, const Reply& reply) const {
        if (const auto answered = std::exchange(request.answered, nullptr))
            answered(classify(reply) == ReplyClass::answered ? std::error_code() : error_of(reply, core_.key()).code());
    }

    void report(const PendingRequest& request, std::string_view why) {
        if (request.kind != PendingRequest::Kind::call_off)
            core_.session.raise(Event::Kind::unlock_not_delivered, core_.key(), why);
    }

    SynchronizerCore& core_;
    PendingRequests pending_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
