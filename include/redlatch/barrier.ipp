// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/barrier.hpp"
#include "redlatch/base/config.hpp"
#include "redlatch/error.hpp"
#include "redlatch/protocol/barrier.hpp"
#include "redlatch/semaphore/registrations.hpp"
#include "redlatch/semaphore/synchronizer.hpp"
#include "redlatch/session/queries.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <cstddef>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

using BarrierState = Synchronizer<BarrierProtocol, Registrations<BarrierProtocol>>;

inline BarrierState& barrier_of(StateHandle& handle) { return static_cast<BarrierState&>(handle.state()); }

// Takes an arrival back without waiting. Without memory for that, it ends with its lease.
inline void withdraw_later(BarrierState& barrier, const PermitId& id) noexcept try {
    barrier.leases().forget(id);
    barrier.change_later([&barrier, id](const RequestId&) { return barrier.protocol().withdraw(id); });
} catch (...) {
}

}  // namespace detail

REDLATCH_INLINE Barrier::Barrier(Client& client, std::string_view name, std::ptrdiff_t parties,
                                 const ObjectOptions& options)
    : parties_(parties), handle_(detail::ClientAccess::session(client), detail::BarrierState::maker, name, options) {
    if (parties < 1 || parties > max())
        throw Error(errc::invalid_argument, name, "the number of parties must be from 1 to 2147483647");
}

REDLATCH_INLINE Barrier::Arrival Barrier::arrive_once(bool drops_out) {
    auto& barrier = detail::barrier_of(handle_);
    const PermitId id = PermitId::random();
    const Milliseconds lease = handle_.settings().watchdog_timeout;
    if (!drops_out) barrier.leases().make_room();
    const Instant sent = Clock::now();
    const Reply reply = barrier.change(
        handle_.settings(),
        [&](const detail::RequestId& request_id) {
            detail::Call call = barrier.protocol().arrive(request_id, parties_, id, lease, drops_out);
            call.replication = handle_.settings().replication();
            return call;
        },
        detail::BarrierState::Undelivered::call_off, nullptr,
        [&barrier, id](const detail::RequestId& request_id) { return barrier.protocol().call_off(request_id, id); });
    detail::ArrivalFacts facts = barrier.protocol().decode_arrival(reply, id);
    if (!reply.replicated) {
        if (!facts.ended_phase) detail::withdraw_later(barrier, id);
        throw detail::not_confirmed(reply, name());
    }
    if (!drops_out && !facts.ended_phase) barrier.leases().record(id, lease, sent);
    Arrival arrival;
    arrival.id_ = id;
    arrival.born_ = std::move(facts.born);
    arrival.phase_ = facts.phase;
    arrival.ended_phase_ = facts.ended_phase;
    return arrival;
}

REDLATCH_INLINE bool Barrier::await(Arrival& arrival, detail::WaitRequest request) {
    if (!arrival) throw Error(errc::invalid_argument, name(), "there is no arrival to wait with");
    if (!arrival.ended_phase_) {
        auto& barrier = detail::barrier_of(handle_);
        detail::BarrierProtocol::Want want{{*arrival.id_, arrival.born_, arrival.phase_}};
        request.settings = handle_.settings();
        if (!barrier.obtain(want, request).run()) return false;
        barrier.leases().forget(*arrival.id_);
        if (want.lost) {
            arrival.id_.reset();
            throw Error(errc::hold_lost, name(),
                        "the server no longer has this arrival: its lease has ended, or the barrier was removed");
        }
    }
    arrival.id_.reset();
    return true;
}

REDLATCH_INLINE bool Barrier::meet(const detail::WaitRequest& request) {
    if (request.stop.stop_requested()) return false;
    Arrival arrival = arrive_once(false);
    const PermitId id = *arrival.id_;
    bool withdraws = false;
    try {
        if (await(arrival, request)) return true;
        withdraws = true;
        return !withdraw(std::move(arrival));
    } catch (...) {
        if (arrival || withdraws) detail::withdraw_later(detail::barrier_of(handle_), id);
        throw;
    }
}

REDLATCH_INLINE bool Barrier::withdraw(Arrival&& arrival) {
    if (!arrival) throw Error(errc::invalid_argument, name(), "there is no arrival to withdraw");
    const Arrival given = std::move(arrival);
    if (given.ended_phase_) return false;
    auto& barrier = detail::barrier_of(handle_);
    barrier.leases().forget(*given.id_);
    return barrier.protocol().decode_withdrawal(
        detail::query(barrier.session(), handle_.settings(), barrier.key(), barrier.protocol().withdraw(*given.id_)),
        {*given.id_, given.born_, given.phase_});
}

REDLATCH_INLINE bool Barrier::remove() {
    auto& barrier = detail::barrier_of(handle_);
    return barrier.is_one(barrier.change(handle_.settings(), [&](const detail::RequestId& request_id) {
        return barrier.protocol().remove(request_id);
    }));
}

REDLATCH_INLINE BarrierInspection Barrier::inspect() {
    auto& barrier = detail::barrier_of(handle_);
    return barrier.protocol().read_inspection(
        detail::query(barrier.session(), handle_.settings(), barrier.key(), barrier.protocol().inspect()));
}

REDLATCH_INLINE Barrier::Arrival Barrier::arrive(std::error_code& ec) {
    return detail::answer([&] { return arrive(); }, Arrival(), ec);
}

REDLATCH_INLINE void Barrier::arrive_and_drop(std::error_code& ec) {
    detail::answer([&] { return arrive_and_drop(), true; }, false, ec);
}

REDLATCH_INLINE bool Barrier::withdraw(Arrival&& arrival, std::error_code& ec) {
    return detail::answer([&] { return withdraw(std::move(arrival)); }, false, ec);
}

REDLATCH_INLINE bool Barrier::remove(std::error_code& ec) {
    return detail::answer([&] { return remove(); }, false, ec);
}

REDLATCH_INLINE BarrierInspection Barrier::inspect(std::error_code& ec) {
    return detail::answer([&] { return inspect(); }, BarrierInspection(), ec);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
