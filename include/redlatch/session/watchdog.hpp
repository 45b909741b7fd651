// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/suspended.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/protocol/call.hpp"
#include "redlatch/session/background_task.hpp"
#include "redlatch/session/counters.hpp"
#include "redlatch/session/events.hpp"
#include "redlatch/session/executor.hpp"
#include "redlatch/session/server_time.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/transport/transport.hpp"

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

// The watchdog keeps the leases of holds that were taken without a lease of their own. BackgroundTask::on_timer() says
// which renewals are due, the watchdog sends them, and BackgroundTask::renewed() receives the outcome.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Sorts renewals into batches that one call can carry out, those with the same route, script, lease and replication, at
// most `most` in each, and calls `send(batch)` for each. `route(key)` returns the route. Renewals of one batch keep
// their order.
template <class Route, class Send>
void for_each_batch(std::span<Renewal> due, std::size_t most, Route route, Send send) {
    const auto way = [&](const Renewal& r) { return std::tuple(route(r.key), r.script, r.lease, r.replication); };
    // Needs no memory, as std::stable_sort() may.
    for (std::size_t i = 0; i < due.size(); ++i) due[i].position = i;
    std::sort(due.begin(), due.end(), [&](const Renewal& a, const Renewal& b) {
        return std::tuple(way(a), a.position) < std::tuple(way(b), b.position);
    });
    while (!due.empty()) {
        std::size_t size = 1;
        while (size < std::min(due.size(), most) && way(due[size]) == way(due[0])) ++size;
        send(std::span<const Renewal>(due.first(size)));
        due = due.subspan(size);
    }
}

// Returns the call that renews a batch. The batch must outlive it.
inline Call renewal_call(std::span<const Renewal> batch, ServerMilliseconds until) {
    Call call(*batch.front().script, {}, {}, Effect::grants);
    for (const Renewal& renewal : batch) call.append_key(renewal.key);
    call.append(batch.front().lease);
    call.append(until);
    for (const Renewal& renewal : batch) call.append(renewal.field);
    call.replication = batch.front().replication;
    return call;
}

// Reads the outcome of one renewal of a batch from the reply. A renewal that too few replicas confirmed is unknown.
inline BackgroundTask::Renewed outcome_of(const Reply& reply, std::size_t index, std::size_t batch_size) {
    const bool whole = reply.kind == Reply::Kind::array && reply.elements.size() == batch_size;
    if (!whole || !reply.elements[index].is_integer()) return BackgroundTask::Renewed::unknown;
    if (reply.elements[index].integer != 1) return BackgroundTask::Renewed::refused;
    return reply.replicated ? BackgroundTask::Renewed::yes : BackgroundTask::Renewed::unknown;
}

// Sends renewals, up to `batch` in one call. Used by the background thread only, which never waits for a reply.
class Watchdog {
public:
    Watchdog(Executor& executor, ServerTime& server_time, Events& events, Counters& counters, std::size_t batch)
        : executor_(executor), server_time_(server_time), events_(events), counters_(counters), batch_(batch) {}
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

    // Returns how much earlier than necessary to renew a hold if these are due. So holds that were acquired at
    // different times are renewed together from then on. Short leases, which are due often, do not hurry the long ones.
    static Milliseconds early(std::span<const Renewal> due) noexcept {
        Milliseconds longest{0};
        for (const Renewal& renewal : due) longest = std::max(longest, renewal.lease);
        return longest / 6;
    }

    void renew(std::vector<Renewal> due) {
        for_each_batch(
            due, batch_, [this](std::string_view key) { return executor_.transport().route(key); },
            [this](std::span<const Renewal> batch) { send_or_try_again(batch); });
    }

private:
    void send_or_try_again(std::span<const Renewal> batch) {
        try {
            send({batch.begin(), batch.end()});
        } catch (...) {
            for (const Renewal& renewal : batch)
                renewal.of->renewed(renewal, BackgroundTask::Renewed::unknown, Clock::now());
        }
    }

    void send(std::vector<Renewal> batch) {
        const Call call = renewal_call(batch, server_time_.wanted_until(batch.front().key));
        const SendTime sent;
        executor_.post(call, [this, sent, batch = std::move(batch)](const Reply& reply) {
            classify(reply) == ReplyClass::no_answer ? events_.on_disconnect(reply.text) : events_.on_reconnect();
            server_time_.learn_if_late(batch.front().key, sent, reply);
            for (std::size_t i = 0; i < batch.size(); ++i) {
                const auto outcome = outcome_of(reply, i, batch.size());
                if (outcome == BackgroundTask::Renewed::yes && !batch[i].asks) counters_.renewals.add();
                batch[i].of->renewed(batch[i], outcome, sent.as_of_now());
            }
        });
    }

    Executor& executor_;
    ServerTime& server_time_;
    Events& events_;
    Counters& counters_;
    const std::size_t batch_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
