// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/convert.hpp"
#include "redlatch/error.hpp"
#include "redlatch/protocol/numbers.hpp"
#include "redlatch/protocol/semaphore.hpp"
#include "redlatch/semaphore.hpp"
#include "redlatch/semaphore/keeper_of.hpp"
#include "redlatch/semaphore/synchronizer.hpp"
#include "redlatch/semaphore/upkeep.hpp"
#include "redlatch/session/operation.hpp"
#include "redlatch/session/queries.hpp"

#include <cstddef>
#include <exception>
#include <memory>
#include <stop_token>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

using SemaphoreState = Synchronizer<SemaphoreProtocol>;

inline SemaphoreState& semaphore_of(StateHandle& handle) { return static_cast<SemaphoreState&>(handle.state()); }

// The semaphore, for objects that hold its permits.
class SemaphoreKeeper final : public KeeperOf<SemaphoreState> {
public:
    using KeeperOf::KeeperOf;

    static Task<Permits> take(std::shared_ptr<SemaphoreKeeper> keeper, std::ptrdiff_t n, WaitRequest request,
                              std::stop_token stop, WaitBy by) {
        SemaphoreProtocol::Want want{.permits = n};
        const bool taken = co_await keeper->state_.obtain(want, request, std::move(stop), by);
        if (!taken) co_return Permits();
        co_return PermitsAccess::make(std::move(keeper), n);
    }

    std::shared_ptr<PermitsKeeper> split(const std::vector<PermitId>&) override {
        return std::make_shared<SemaphoreKeeper>(state_);
    }
    void merge(PermitsKeeper&) noexcept override {}

    std::error_code give_back(std::ptrdiff_t n, const std::vector<PermitId>&) noexcept override try {
        if (!state_->hand_over(n, state_.settings()))
            state_->change(state_.settings(), adding(n), SemaphoreState::Undelivered::retry);
        return {};
    } catch (...) {
        return code_of(std::current_exception());
    }

    // Without memory, the permits are lost, as after a crash.
    void give_back_later(std::ptrdiff_t n, std::vector<PermitId>) noexcept override try {
        if (!state_->hand_over(n, state_.settings())) state_->change_later(adding(n));
    } catch (...) {
    }

private:
    MakeCall adding(std::ptrdiff_t n) const {
        return
            [&state = *state_, n](const RequestId& request_id) { return state.protocol().add(request_id, n, false); };
    }
};

}  // namespace detail

REDLATCH_INLINE Semaphore::Semaphore(Client& client, std::string_view name, const ObjectOptions& options)
    : handle_(detail::ClientAccess::session(client), detail::SemaphoreState::maker, name, options) {}

REDLATCH_INLINE bool Semaphore::try_set_permits(std::ptrdiff_t permits) {
    return set_new_permits(permits, Milliseconds(0));
}

REDLATCH_INLINE bool Semaphore::set_new_permits(std::ptrdiff_t permits, Milliseconds ttl) {
    check(permits, 0);
    auto& semaphore = detail::semaphore_of(handle_);
    return semaphore.is_one(semaphore.change(handle_.settings(), [&](const detail::RequestId& request_id) {
        return semaphore.protocol().set(request_id, permits, ttl);
    }));
}

REDLATCH_INLINE bool Semaphore::exists() { return detail::exists(handle_.settings(), detail::semaphore_of(handle_)); }

REDLATCH_INLINE bool Semaphore::remove() { return detail::remove(handle_.settings(), detail::semaphore_of(handle_)); }

REDLATCH_INLINE bool Semaphore::expire_after(Milliseconds after) {
    return detail::expire(handle_.settings(), detail::semaphore_of(handle_), after);
}

REDLATCH_INLINE std::ptrdiff_t Semaphore::available_permits() {
    auto& semaphore = detail::semaphore_of(handle_);
    const Reply reply =
        detail::query(semaphore.session(), handle_.settings(), semaphore.key(), semaphore.protocol().available());
    return detail::converted<std::ptrdiff_t>(detail::number_of(reply, semaphore.key()));
}

REDLATCH_INLINE void Semaphore::add_permits(std::ptrdiff_t n) {
    check(n, -max());
    if (n == 0) return;
    auto& semaphore = detail::semaphore_of(handle_);
    semaphore.is_one(semaphore.change(handle_.settings(), [&](const detail::RequestId& request_id) {
        return semaphore.protocol().add(request_id, n, false);
    }));
}

REDLATCH_INLINE std::ptrdiff_t Semaphore::drain_permits() {
    auto& semaphore = detail::semaphore_of(handle_);
    const Reply reply = semaphore.change(handle_.settings(), [&](const detail::RequestId& request_id) {
        return semaphore.protocol().drain(request_id);
    });
    if (!reply.is_integer()) throw detail::unexpected(reply, semaphore.key());
    return static_cast<std::ptrdiff_t>(reply.integer);
}

REDLATCH_INLINE SemaphoreInspection Semaphore::inspect() {
    auto& semaphore = detail::semaphore_of(handle_);
    return semaphore.protocol().read_inspection(
        detail::query(semaphore.session(), handle_.settings(), semaphore.key(), semaphore.protocol().inspect()));
}

REDLATCH_INLINE void Semaphore::check(std::ptrdiff_t n, std::ptrdiff_t least) const {
    if (n < least || n > max())
        throw Error(errc::invalid_argument, name(), "the number of permits must be from 0 to 2147483647");
}

REDLATCH_INLINE bool Semaphore::take(std::ptrdiff_t n, detail::WaitRequest request) {
    check(n, 0);
    if (n == 0) return true;
    detail::SemaphoreProtocol::Want want{.permits = n};
    request.settings = handle_.settings();
    return detail::semaphore_of(handle_).obtain(want, request).run();
}

REDLATCH_INLINE Operation<Permits> Semaphore::later(std::ptrdiff_t n, detail::WaitRequest request) {
    check(n, 1);
    auto stop = std::exchange(request.stop, {});
    auto keeper = std::make_shared<detail::SemaphoreKeeper>(
        detail::KeptState(handle_.session_handle(), detail::semaphore_of(handle_), handle_.settings()));
    return detail::OperationAccess::make_simple<Permits>(
        handle_.session_handle(),
        [keeper = std::move(keeper), n, request](const detail::RunContext& context) {
            return detail::SemaphoreKeeper::take(keeper, n, request, context.stop, context.by);
        },
        std::move(stop));
}

REDLATCH_INLINE bool Semaphore::give(std::ptrdiff_t n, bool only_existing) {
    auto& semaphore = detail::semaphore_of(handle_);
    if (!only_existing && semaphore.hand_over(n, handle_.settings())) return true;
    return semaphore.is_one(semaphore.change(
        handle_.settings(),
        [&semaphore, n, only_existing](const detail::RequestId& request_id) {
            return semaphore.protocol().add(request_id, n, only_existing);
        },
        detail::SemaphoreState::Undelivered::retry));
}

REDLATCH_INLINE bool Semaphore::try_set_permits(std::ptrdiff_t permits, std::error_code& ec) {
    return detail::answer([&] { return try_set_permits(permits); }, false, ec);
}

REDLATCH_INLINE bool Semaphore::try_acquire(std::ptrdiff_t n, std::error_code& ec) {
    return detail::answer([&] { return try_acquire(n); }, false, ec);
}

REDLATCH_INLINE void Semaphore::release(std::ptrdiff_t n, std::error_code& ec) {
    detail::answer([&] { return release(n), true; }, false, ec);
}

REDLATCH_INLINE bool Semaphore::release_if_exists(std::ptrdiff_t n, std::error_code& ec) {
    return detail::answer([&] { return release_if_exists(n); }, false, ec);
}

REDLATCH_INLINE std::ptrdiff_t Semaphore::available_permits(std::error_code& ec) {
    return detail::answer([&] { return available_permits(); }, std::ptrdiff_t(0), ec);
}

REDLATCH_INLINE void Semaphore::add_permits(std::ptrdiff_t n, std::error_code& ec) {
    detail::answer([&] { return add_permits(n), true; }, false, ec);
}

REDLATCH_INLINE std::ptrdiff_t Semaphore::drain_permits(std::error_code& ec) {
    return detail::answer([&] { return drain_permits(); }, std::ptrdiff_t(0), ec);
}

REDLATCH_INLINE bool Semaphore::exists(std::error_code& ec) {
    return detail::answer([&] { return exists(); }, false, ec);
}

REDLATCH_INLINE bool Semaphore::remove(std::error_code& ec) {
    return detail::answer([&] { return remove(); }, false, ec);
}

REDLATCH_INLINE SemaphoreInspection Semaphore::inspect(std::error_code& ec) {
    return detail::answer([&] { return inspect(); }, SemaphoreInspection(), ec);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
