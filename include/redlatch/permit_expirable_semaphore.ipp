// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/convert.hpp"
#include "redlatch/base/suspended.hpp"
#include "redlatch/error.hpp"
#include "redlatch/permit_expirable_semaphore.hpp"
#include "redlatch/protocol/permit_expirable_semaphore.hpp"
#include "redlatch/semaphore/keeper_of.hpp"
#include "redlatch/semaphore/permit_leases.hpp"
#include "redlatch/semaphore/synchronizer.hpp"
#include "redlatch/semaphore/upkeep.hpp"
#include "redlatch/session/operation.hpp"
#include "redlatch/session/queries.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

using PermitState = Synchronizer<PermitProtocol, PermitLeases>;

inline PermitState& permits_of(StateHandle& handle) { return static_cast<PermitState&>(handle.state()); }

inline PermitProtocol::Count count_permits(StateHandle& handle) {
    PermitState& semaphore = permits_of(handle);
    const PermitProtocol& protocol = semaphore.protocol();
    return protocol.read_count(query(semaphore.session(), handle.settings(), semaphore.key(), protocol.count()));
}

// Throws Error(errc::invalid_argument).
inline void check_permits(std::ptrdiff_t n, std::ptrdiff_t least, std::ptrdiff_t most, std::string_view name,
                          const char* rule) {
    if (n < least || n > most) throw Error(errc::invalid_argument, name, rule);
}

// Releases all of the permits or none. Returns true if they were held.
inline bool release(const Settings& settings, PermitState& semaphore, std::span<const PermitId> ids) {
    const MakeCall make = [&semaphore, kept = std::vector<PermitId>(ids.begin(), ids.end())](
                              const RequestId& request_id) { return semaphore.protocol().release(request_id, kept); };
    PermitLeases& leases = semaphore.leases();
    const auto watches = leases.unwatch(ids);
    auto failure = PermitState::Failure::not_made;
    try {
        const Reply reply = semaphore.change(settings, make, PermitState::Undelivered::retry, &failure);
        failure = PermitState::Failure::unknown;
        const bool released = semaphore.is_one(reply);
        if (released)
            leases.lose(ids, PermitLeases::released_by_id);
        else
            leases.watch_again(watches, false);
        return released;
    } catch (...) {
        // What the background goes on to release is lost to its object. Else the next renewal tells.
        if (failure == PermitState::Failure::left)
            leases.lose(ids, PermitLeases::released_by_id);
        else
            leases.watch_again(watches, false);
        throw;
    }
}

inline PermitProtocol::Want want_of(std::ptrdiff_t n, const PermitLease& lease, const Settings& settings) {
    PermitProtocol::Want want;
    want.ids.reserve(static_cast<std::size_t>(n));
    for (std::ptrdiff_t i = 0; i < n; ++i) want.ids.push_back(PermitId::random());
    want.lease = lease;
    if (lease.kind == PermitLease::Kind::watched) want.lease.length = settings.watchdog_timeout;
    want.replication = settings.replication();
    return want;
}

// The semaphore, for objects that hold its permits.
class ExpirableKeeper final : public KeeperOf<PermitState> {
public:
    using KeeperOf::KeeperOf;

    static Task<Permits> take(std::shared_ptr<ExpirableKeeper> keeper, std::ptrdiff_t n, PermitLease lease,
                              WaitRequest request, std::stop_token stop, WaitBy by) {
        PermitProtocol::Want want = want_of(n, lease, keeper->state_.settings());
        want.holder = keeper->holder_;
        const bool taken = co_await keeper->state_.obtain(want, request, std::move(stop), by);
        if (!taken) co_return Permits();
        co_return PermitsAccess::make(std::move(keeper), n, std::move(want.ids));
    }

    std::shared_ptr<PermitsKeeper> split(const std::vector<PermitId>& ids) override {
        auto other = std::make_shared<ExpirableKeeper>(state_);
        state_->leases().split(ids, other->holder_);
        return other;
    }
    void merge(PermitsKeeper& other) noexcept override {
        state_->leases().merge(*static_cast<ExpirableKeeper&>(other).holder_, holder_);
    }

    void detach() noexcept override { state_->leases().detach(*holder_); }

    Instant valid_until() override { return state_->leases().valid_until(*holder_); }
    std::stop_token lost() override { return state_->leases().lost(*holder_); }

    // A release of several is refused as a whole if one is gone; then the others follow.
    std::error_code give_back(std::ptrdiff_t, const std::vector<PermitId>& ids) noexcept override try {
        state_->leases().forget(*holder_);
        const MakeCall make = [&state = *state_, ids](const RequestId& request_id) {
            return state.protocol().release(request_id, ids);
        };
        if (state_->is_one(state_->change(state_.settings(), make, PermitState::Undelivered::retry))) return {};
        state_->leases().give_back_later(ids);
        return errc::unknown_permit;
    } catch (...) {
        return code_of(std::current_exception());
    }

    void give_back_later(std::ptrdiff_t, std::vector<PermitId> ids) noexcept override {
        state_->leases().forget(*holder_);
        state_->leases().give_back_later(std::move(ids));
    }

private:
    const std::shared_ptr<PermitHolder> holder_ = std::make_shared<PermitHolder>();
};

}  // namespace detail

REDLATCH_INLINE PermitExpirableSemaphore::PermitExpirableSemaphore(Client& client, std::string_view name,
                                                                   const ObjectOptions& options)
    : handle_(detail::ClientAccess::session(client), detail::PermitState::maker, name, options) {}

// --- number of permits -------------------------------------------------------------------------------------------

REDLATCH_INLINE bool PermitExpirableSemaphore::try_set_permits(std::ptrdiff_t permits) {
    return set_new_permits(permits, Milliseconds(0));
}

REDLATCH_INLINE bool PermitExpirableSemaphore::set_new_permits(std::ptrdiff_t permits, Milliseconds ttl) {
    detail::check_permits(permits, 0, max(), name(), "the number of permits must be from 0 to 2147483647");
    auto& semaphore = detail::permits_of(handle_);
    return semaphore.is_one(semaphore.change(handle_.settings(), [&](const detail::RequestId& request_id) {
        return semaphore.protocol().set(request_id, permits, ttl);
    }));
}

REDLATCH_INLINE bool PermitExpirableSemaphore::exists() {
    return detail::exists(handle_.settings(), detail::permits_of(handle_));
}

REDLATCH_INLINE bool PermitExpirableSemaphore::remove() {
    return detail::remove(handle_.settings(), detail::permits_of(handle_));
}

REDLATCH_INLINE bool PermitExpirableSemaphore::expire_after(Milliseconds after) {
    return detail::expire(handle_.settings(), detail::permits_of(handle_), after);
}

REDLATCH_INLINE void PermitExpirableSemaphore::set_permits(std::ptrdiff_t permits) {
    detail::check_permits(permits, 0, max(), name(), "the number of permits must be from 0 to 2147483647");
    auto& semaphore = detail::permits_of(handle_);
    semaphore.is_one(semaphore.change(handle_.settings(), [&](const detail::RequestId& request_id) {
        return semaphore.protocol().set_total(request_id, permits);
    }));
}

REDLATCH_INLINE void PermitExpirableSemaphore::add_permits(std::ptrdiff_t n) {
    detail::check_permits(n, -max(), max(), name(), "the number of permits must be from -2147483647 to 2147483647");
    if (n == 0) return;
    auto& semaphore = detail::permits_of(handle_);
    semaphore.is_one(semaphore.change(handle_.settings(), [&](const detail::RequestId& request_id) {
        return semaphore.protocol().add(request_id, n);
    }));
}

REDLATCH_INLINE std::ptrdiff_t PermitExpirableSemaphore::available_permits() {
    return detail::converted<std::ptrdiff_t>(detail::count_permits(handle_).available);
}

REDLATCH_INLINE std::ptrdiff_t PermitExpirableSemaphore::acquired_permits() {
    return detail::converted<std::ptrdiff_t>(detail::count_permits(handle_).acquired);
}

REDLATCH_INLINE std::ptrdiff_t PermitExpirableSemaphore::permits() {
    const auto now = detail::count_permits(handle_);
    return now.exists ? detail::converted<std::ptrdiff_t>(now.available + now.acquired) : 0;
}

// --- acquiring and releasing -------------------------------------------------------------------------------------

REDLATCH_INLINE std::vector<PermitId> PermitExpirableSemaphore::obtain(std::ptrdiff_t n,
                                                                       const detail::PermitLease& lease,
                                                                       detail::WaitRequest request) {
    detail::check_permits(n, 1, max_at_once(), name(), "one call can acquire from 1 to 10000 permits");
    detail::PermitProtocol::Want want = detail::want_of(n, lease, handle_.settings());
    request.settings = handle_.settings();
    if (!detail::permits_of(handle_).obtain(want, request).run()) return {};
    return std::move(want.ids);
}

REDLATCH_INLINE Operation<Permits> PermitExpirableSemaphore::later(std::ptrdiff_t n, const detail::PermitLease& lease,
                                                                   detail::WaitRequest request) {
    detail::check_permits(n, 1, max_at_once(), name(), "one call can acquire from 1 to 10000 permits");
    auto stop = std::exchange(request.stop, {});
    auto keeper = std::make_shared<detail::ExpirableKeeper>(
        detail::KeptState(handle_.session_handle(), detail::permits_of(handle_), handle_.settings()));
    return detail::OperationAccess::make_simple<Permits>(
        handle_.session_handle(),
        [keeper = std::move(keeper), n, lease, request](const detail::RunContext& context) {
            return detail::ExpirableKeeper::take(keeper, n, lease, request, context.stop, context.by);
        },
        std::move(stop));
}

REDLATCH_INLINE void PermitExpirableSemaphore::release(std::span<const PermitId> ids) {
    if (!try_release(ids))
        throw Error(errc::unknown_permit, name(),
                    ids.size() == 1 ? "this permit is not held" : "one of these permits is not held");
}

REDLATCH_INLINE bool PermitExpirableSemaphore::try_release(std::span<const PermitId> ids) {
    return ids.empty() || detail::release(handle_.settings(), detail::permits_of(handle_), ids);
}

REDLATCH_INLINE void PermitExpirableSemaphore::release_later(const PermitId& id) noexcept try {
    detail::permits_of(handle_).leases().release_later(std::span(&id, 1));
} catch (...) {
}

// --- leases ------------------------------------------------------------------------------------------------------

REDLATCH_INLINE void PermitExpirableSemaphore::set_lease(const PermitId& id, const detail::PermitLease& lease) {
    auto& semaphore = detail::permits_of(handle_);
    detail::PermitLeases& leases = semaphore.leases();
    const auto watches = leases.begin_change(id);
    const struct EndOfChange {
        ~EndOfChange() { leases.change_ended(id); }
        detail::PermitLeases& leases;
        const PermitId& id;
    } end_of_change{leases, id};
    const detail::SendTime sent;
    leases.change_lease(id, sent, lease, true);
    const detail::MakeCall make = [&](const detail::RequestId& request_id) {
        detail::Call call = semaphore.protocol().set_lease(request_id, id, lease);
        call.replication = handle_.settings().replication();
        return call;
    };
    bool is_held = false;
    auto failure = detail::PermitState::Failure::not_made;
    try {
        const Reply reply =
            semaphore.change(handle_.settings(), make, detail::PermitState::Undelivered::call_off, &failure);
        failure = detail::PermitState::Failure::unknown;
        is_held = semaphore.is_one(reply);
        // A failover might restore the lease that it had.
        if (is_held && !reply.replicated) throw detail::not_confirmed(reply, name());
    } catch (...) {
        const bool is_unchanged = failure == detail::PermitState::Failure::not_made;
        if (!is_unchanged) leases.doubt_lease(id, lease);
        leases.watch_again(watches, is_unchanged);
        throw;
    }
    if (!is_held) {
        leases.lose(std::span(&id, 1), "the server no longer has this permit");
        throw Error(errc::unknown_permit, name(), "this permit is not held");
    }
    leases.change_lease(id, sent, lease, false);
}

REDLATCH_INLINE std::optional<std::chrono::milliseconds> PermitExpirableSemaphore::remaining_lease(const PermitId& id) {
    auto& semaphore = detail::permits_of(handle_);
    const Reply reply =
        detail::query(semaphore.session(), handle_.settings(), semaphore.key(), semaphore.protocol().remaining(id));
    return semaphore.protocol().read_remaining(reply);
}

// --- the state on the server -------------------------------------------------------------------------------------

REDLATCH_INLINE SemaphoreInspection PermitExpirableSemaphore::inspect() {
    auto& semaphore = detail::permits_of(handle_);
    return semaphore.protocol().read_inspection(
        detail::query(semaphore.session(), handle_.settings(), semaphore.key(), semaphore.protocol().inspect()));
}

REDLATCH_INLINE bool PermitExpirableSemaphore::try_set_permits(std::ptrdiff_t permits, std::error_code& ec) {
    return detail::answer([&] { return try_set_permits(permits); }, false, ec);
}

REDLATCH_INLINE void PermitExpirableSemaphore::set_permits(std::ptrdiff_t permits, std::error_code& ec) {
    detail::answer([&] { return set_permits(permits), true; }, false, ec);
}

REDLATCH_INLINE void PermitExpirableSemaphore::add_permits(std::ptrdiff_t n, std::error_code& ec) {
    detail::answer([&] { return add_permits(n), true; }, false, ec);
}

REDLATCH_INLINE std::ptrdiff_t PermitExpirableSemaphore::available_permits(std::error_code& ec) {
    return detail::answer([&] { return available_permits(); }, std::ptrdiff_t(0), ec);
}

REDLATCH_INLINE std::ptrdiff_t PermitExpirableSemaphore::acquired_permits(std::error_code& ec) {
    return detail::answer([&] { return acquired_permits(); }, std::ptrdiff_t(0), ec);
}

REDLATCH_INLINE std::ptrdiff_t PermitExpirableSemaphore::permits(std::error_code& ec) {
    return detail::answer([&] { return permits(); }, std::ptrdiff_t(0), ec);
}

REDLATCH_INLINE void PermitExpirableSemaphore::release(const PermitId& id, std::error_code& ec) {
    detail::answer([&] { return release(id), true; }, false, ec);
}

REDLATCH_INLINE void PermitExpirableSemaphore::release(std::span<const PermitId> ids, std::error_code& ec) {
    detail::answer([&] { return release(ids), true; }, false, ec);
}

REDLATCH_INLINE bool PermitExpirableSemaphore::try_release(const PermitId& id, std::error_code& ec) {
    return detail::answer([&] { return try_release(id); }, false, ec);
}

REDLATCH_INLINE bool PermitExpirableSemaphore::try_release(std::span<const PermitId> ids, std::error_code& ec) {
    return detail::answer([&] { return try_release(ids); }, false, ec);
}

REDLATCH_INLINE void PermitExpirableSemaphore::update_lease(const PermitId& id, const Lease& lease,
                                                            std::error_code& ec) {
    detail::answer([&] { return update_lease(id, lease), true; }, false, ec);
}

REDLATCH_INLINE void PermitExpirableSemaphore::update_lease(const PermitId& id, Lease::Forever lease,
                                                            std::error_code& ec) {
    detail::answer([&] { return update_lease(id, lease), true; }, false, ec);
}

REDLATCH_INLINE std::optional<std::chrono::milliseconds> PermitExpirableSemaphore::remaining_lease(
    const PermitId& id, std::error_code& ec) {
    return detail::answer([&] { return remaining_lease(id); }, std::optional<std::chrono::milliseconds>(), ec);
}

REDLATCH_INLINE bool PermitExpirableSemaphore::exists(std::error_code& ec) {
    return detail::answer([&] { return exists(); }, false, ec);
}

REDLATCH_INLINE bool PermitExpirableSemaphore::remove(std::error_code& ec) {
    return detail::answer([&] { return remove(); }, false, ec);
}

REDLATCH_INLINE SemaphoreInspection PermitExpirableSemaphore::inspect(std::error_code& ec) {
    return detail::answer([&] { return inspect(); }, SemaphoreInspection(), ec);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
