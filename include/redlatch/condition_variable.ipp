// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/condition_variable.hpp"
#include "redlatch/error.hpp"
#include "redlatch/protocol/condition_variable.hpp"
#include "redlatch/semaphore/registrations.hpp"
#include "redlatch/semaphore/synchronizer.hpp"
#include "redlatch/session/queries.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <cstddef>
#include <exception>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

using ConditionState = Synchronizer<ConditionProtocol, Registrations<ConditionProtocol>>;

inline ConditionState& condition_of(StateHandle& handle) { return static_cast<ConditionState&>(handle.state()); }

// Removes a waiter without waiting for the server. Without memory for that, it ends with its lease. `gives_up`: its
// notification is passed on, if it has one.
inline void leave_condition_later(ConditionState& condition, const PermitId& id, bool gives_up) noexcept try {
    condition.leases().forget(id);
    condition.change_later([&condition, id, gives_up](const RequestId& request_id) {
        return condition.protocol().leave(request_id, id, gives_up);
    });
} catch (...) {
}

// Registers a waiter, and renews its registration from then on.
inline void enter_condition(const Settings& settings, ConditionState& condition, const PermitId& id) {
    condition.leases().make_room();
    const Instant sent = Clock::now();
    const Reply reply = condition.change(
        settings,
        [&](const RequestId& request_id) {
            return condition.protocol().enter(request_id, id, settings.watchdog_timeout);
        },
        ConditionState::Undelivered::call_off, nullptr,
        [&condition, id](const RequestId& request_id) { return condition.protocol().call_off(request_id, id); });
    if (!condition.is_one(reply)) throw unexpected(reply, condition.key());
    condition.leases().record(id, settings.watchdog_timeout, sent);
}

// Returns true if a waiter that gives up was notified after all. Otherwise the next one has its notification, if there was
// one.
inline bool give_up_condition(const Settings& settings, ConditionState& condition, const PermitId& id) {
    condition.leases().forget(id);
    return condition.protocol().decode_leave(condition.change(
        settings,
        [&condition, id](const RequestId& request_id) { return condition.protocol().leave(request_id, id, true); },
        ConditionState::Undelivered::retry));
}

}  // namespace detail

REDLATCH_INLINE ConditionVariable::ConditionVariable(Client& client, std::string_view name,
                                                     const ObjectOptions& options)
    : handle_(detail::ClientAccess::session(client), detail::ConditionState::maker, name, options) {}

REDLATCH_INLINE bool ConditionVariable::await(detail::AnyRelockable& lock, detail::WaitRequest request) {
    if (request.stop.stop_requested()) return false;
    auto& condition = detail::condition_of(handle_);
    detail::ConditionProtocol::Want want{PermitId::random()};
    const PermitId id = want.id;
    detail::enter_condition(handle_.settings(), condition, id);
    // Without the lock, a change and its notification may have come before the registration.
    bool may_have_missed_it = false;
    try {
        may_have_missed_it = lock.unlock();
    } catch (...) {
        detail::leave_condition_later(condition, id, true);
        throw;
    }
    if (may_have_missed_it) {
        detail::leave_condition_later(condition, id, true);
        lock.lock();
        return true;
    }
    bool notified = false;
    std::exception_ptr failure;
    try {
        request.settings = handle_.settings();
        notified = condition.obtain(want, request).run();
        if (!notified)
            notified = detail::give_up_condition(handle_.settings(), condition, id);
        else if (want.owes)
            detail::leave_condition_later(condition, id, false);
        else
            condition.leases().forget(id);
    } catch (...) {
        failure = std::current_exception();
        detail::leave_condition_later(condition, id, true);
    }
    lock.lock();
    if (failure) std::rethrow_exception(failure);
    return notified;
}

REDLATCH_INLINE bool ConditionVariable::notify_one() {
    auto& condition = detail::condition_of(handle_);
    return condition.is_one(condition.change(handle_.settings(), [&](const detail::RequestId& request_id) {
        return condition.protocol().notify(request_id, false);
    }));
}

REDLATCH_INLINE std::ptrdiff_t ConditionVariable::notify_all() {
    auto& condition = detail::condition_of(handle_);
    const Reply reply = condition.change(handle_.settings(), [&](const detail::RequestId& request_id) {
        return condition.protocol().notify(request_id, true);
    });
    if (!reply.is_integer() || reply.integer < 0) throw detail::unexpected(reply, condition.key());
    return static_cast<std::ptrdiff_t>(reply.integer);
}

REDLATCH_INLINE std::ptrdiff_t ConditionVariable::waiters() {
    auto& condition = detail::condition_of(handle_);
    const Reply reply =
        detail::query(condition.session(), handle_.settings(), condition.key(), condition.protocol().count());
    if (!reply.is_integer() || reply.integer < 0) throw detail::unexpected(reply, condition.key());
    return static_cast<std::ptrdiff_t>(reply.integer);
}

REDLATCH_INLINE bool ConditionVariable::notify_one(std::error_code& ec) {
    return detail::answer([&] { return notify_one(); }, false, ec);
}

REDLATCH_INLINE std::ptrdiff_t ConditionVariable::notify_all(std::error_code& ec) {
    return detail::answer([&] { return notify_all(); }, std::ptrdiff_t(0), ec);
}

REDLATCH_INLINE std::ptrdiff_t ConditionVariable::waiters(std::error_code& ec) {
    return detail::answer([&] { return waiters(); }, std::ptrdiff_t(0), ec);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
