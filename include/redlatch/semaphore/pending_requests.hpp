// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/backoff.hpp"
#include "redlatch/base/suspended.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/protocol/request_lanes.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A request of a semaphore or latch for the background to deliver, because no server answered in time.
struct PendingRequest {
    enum class Kind {
        change,    // must take effect: sent again as a new request if it came too late
        undoing,   // takes back what another request may have done; if it comes too late, that request has done nothing
        call_off,  // the same, but an outcome that stays unknown is not reported
    };
    using Make = std::function<Call(const RequestId&)>;

    Kind kind;
    RequestId request_id;
    Make make;  // builds the call of the request
    Instant give_up;
    Instant next;
    std::uint64_t number = 0;
    std::function<void(const std::error_code&)> answered{};  // called once a server has done or refused it
    SendTime sent{};
    Instant not_before{};
    bool on_the_way = false;
    Backoff backoff{Milliseconds(50), longest_pause};
};

// The requests that are still to be delivered for one name. Each is resent after pauses until it is answered or its
// time is over. Plain data.
class PendingRequests {
public:
    void add(PendingRequest request) {
        request.number = ++last_number_;
        pending_.push_back(std::move(request));
    }

    bool empty() const { return pending_.empty(); }

    // Returns the request of this number; null if it is delivered or expired.
    PendingRequest* find(std::uint64_t number) {
        const auto found =
            std::find_if(pending_.begin(), pending_.end(), [&](const PendingRequest& e) { return e.number == number; });
        return found == pending_.end() ? nullptr : &*found;
    }

    // Returns the requests to send now and marks them as in flight.
    std::vector<PendingRequest> take_due(Instant now) {
        std::vector<PendingRequest> due;
        due.reserve(pending_.size());
        for (const PendingRequest& request : pending_)
            if (is_due(request, now)) due.push_back(request);
        for (PendingRequest& request : pending_)
            if (is_due(request, now)) request.on_the_way = true;
        return due;
    }

    // Removes and returns the requests whose time is over.
    std::vector<PendingRequest> take_expired(Instant now) {
        std::vector<PendingRequest> expired;
        for (const PendingRequest& request : pending_)
            if (now >= request.give_up) expired.push_back(request);
        std::erase_if(pending_, [&](const PendingRequest& e) { return now >= e.give_up; });
        return expired;
    }

    void remove(std::uint64_t number) {
        std::erase_if(pending_, [&](const PendingRequest& e) { return e.number == number; });
    }

    // Records that a request got no reply. It is resent after a pause.
    void failed(std::uint64_t number, Instant now) {
        PendingRequest* const request = find(number);
        if (!request) return;
        request->on_the_way = false;
        request->next = now + request->backoff.next();
    }

    // Ends the pauses, so that all requests are due now, or as soon as they may be sent.
    void hurry(Instant now) {
        for (PendingRequest& request : pending_)
            request.next = std::min(request.next, std::max(now, request.not_before));
    }

    Instant next_deadline() const {
        Instant at = never;
        for (const PendingRequest& request : pending_)
            at = std::min({at, request.give_up, request.on_the_way ? never : request.next});
        return at;
    }

private:
    static bool is_due(const PendingRequest& request, Instant now) {
        return !request.on_the_way && request.next <= now;
    }

    std::vector<PendingRequest> pending_;
    std::uint64_t last_number_ = 0;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
