// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/error.hpp"
#include "redlatch/protocol/numbers.hpp"
#include "redlatch/protocol/semaphore.hpp"
#include "redlatch/semaphore.hpp"
#include "redlatch/semaphore/synchronizer.hpp"
#include "redlatch/semaphore/upkeep.hpp"
#include "redlatch/session/queries.hpp"

#include <cstddef>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

using SemaphoreState = Synchronizer<SemaphoreProtocol>;

inline SemaphoreState& semaphore_of(StateHandle& handle) { return static_cast<SemaphoreState&>(handle.state()); }

}  // namespace detail

REDLATCH_INLINE Semaphore::Semaphore(Client& client, std::string_view name)
    : handle_(detail::ClientAccess::session(client), detail::SemaphoreState::maker, name) {}

REDLATCH_INLINE bool Semaphore::try_set_permits(std::ptrdiff_t permits) {
    return set_new_permits(permits, Milliseconds(0));
}

REDLATCH_INLINE bool Semaphore::set_new_permits(std::ptrdiff_t permits, Milliseconds ttl) {
    check(permits, 0);
    auto& semaphore = detail::semaphore_of(handle_);
    return semaphore.is_one(semaphore.change(
        [&](const detail::RequestId& request_id) { return semaphore.protocol().set(request_id, permits, ttl); }));
}

REDLATCH_INLINE bool Semaphore::exists() { return detail::exists(detail::semaphore_of(handle_)); }

REDLATCH_INLINE bool Semaphore::remove() { return detail::remove(detail::semaphore_of(handle_)); }

REDLATCH_INLINE bool Semaphore::expire_after(Milliseconds after) {
    return detail::expire(detail::semaphore_of(handle_), after);
}

REDLATCH_INLINE std::ptrdiff_t Semaphore::available_permits() {
    auto& semaphore = detail::semaphore_of(handle_);
    const Reply reply = detail::query(semaphore.session(), semaphore.key(), semaphore.protocol().available());
    return static_cast<std::ptrdiff_t>(detail::number_of(reply, semaphore.key()));
}

REDLATCH_INLINE void Semaphore::add_permits(std::ptrdiff_t n) {
    check(n, -max());
    if (n == 0) return;
    auto& semaphore = detail::semaphore_of(handle_);
    semaphore.is_one(semaphore.change(
        [&](const detail::RequestId& request_id) { return semaphore.protocol().add(request_id, n, false); }));
}

REDLATCH_INLINE std::ptrdiff_t Semaphore::drain_permits() {
    auto& semaphore = detail::semaphore_of(handle_);
    const Reply reply =
        semaphore.change([&](const detail::RequestId& request_id) { return semaphore.protocol().drain(request_id); });
    if (!reply.is_integer()) throw detail::unexpected(reply, semaphore.key());
    return static_cast<std::ptrdiff_t>(reply.integer);
}

REDLATCH_INLINE SemaphoreInspection Semaphore::inspect() {
    auto& semaphore = detail::semaphore_of(handle_);
    return semaphore.protocol().read_inspection(
        detail::query(semaphore.session(), semaphore.key(), semaphore.protocol().inspect()));
}

REDLATCH_INLINE void Semaphore::check(std::ptrdiff_t n, std::ptrdiff_t least) const {
    if (n < least || n > max())
        throw Error(errc::invalid_argument, name(), "the number of permits must be from 0 to 2147483647");
}

REDLATCH_INLINE bool Semaphore::take(std::ptrdiff_t n, const detail::WaitRequest& request) {
    check(n, 0);
    if (n == 0) return true;
    detail::SemaphoreProtocol::Want want{.permits = n};
    return detail::semaphore_of(handle_).obtain(want, request);
}

REDLATCH_INLINE bool Semaphore::give(std::ptrdiff_t n, bool only_existing) {
    auto& semaphore = detail::semaphore_of(handle_);
    return semaphore.is_one(semaphore.change(
        [&semaphore, n, only_existing](const detail::RequestId& request_id) {
            return semaphore.protocol().add(request_id, n, only_existing);
        },
        detail::SemaphoreState::Undelivered::retry));
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
