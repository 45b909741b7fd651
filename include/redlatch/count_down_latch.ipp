// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/convert.hpp"
#include "redlatch/count_down_latch.hpp"
#include "redlatch/error.hpp"
#include "redlatch/protocol/count_down_latch.hpp"
#include "redlatch/protocol/numbers.hpp"
#include "redlatch/semaphore/keeper_of.hpp"
#include "redlatch/semaphore/synchronizer.hpp"
#include "redlatch/semaphore/upkeep.hpp"
#include "redlatch/session/operation.hpp"
#include "redlatch/session/queries.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <stop_token>
#include <string_view>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

using LatchState = Synchronizer<LatchProtocol>;

inline LatchState& latch_of(StateHandle& handle) { return static_cast<LatchState&>(handle.state()); }

// Throws Error(errc::invalid_argument).
inline void check_count(std::ptrdiff_t n, std::ptrdiff_t least, std::string_view name, const char* rule) {
    if (n < least || n > CountDownLatch::max()) throw Error(errc::invalid_argument, name, rule);
}

inline constexpr const char* counts_down_by = "the decrement must be from 0 to 2147483647";

inline LatchProtocol::Lowered lower(const Settings& settings, LatchState& latch, std::ptrdiff_t n) {
    const Reply reply = latch.change(
        settings, [&latch, n](const RequestId& request_id) { return latch.protocol().lower(request_id, n); },
        LatchState::Undelivered::retry);
    return latch.protocol().decode_lower(reply);
}

inline Task<bool> wait_for_end(KeptState<LatchState> latch, WaitRequest request, std::stop_token stop, WaitBy by) {
    LatchProtocol::Want want;
    co_return co_await latch.obtain(want, request, std::move(stop), by);
}

}  // namespace detail

REDLATCH_INLINE CountDownLatch::CountDownLatch(Client& client, std::string_view name, const ObjectOptions& options)
    : handle_(detail::ClientAccess::session(client), detail::LatchState::maker, name, options) {}

REDLATCH_INLINE bool CountDownLatch::try_set_count(std::ptrdiff_t count) {
    detail::check_count(count, 1, name(), "the count must be from 1 to 2147483647");
    auto& latch = detail::latch_of(handle_);
    return latch.is_one(latch.change(handle_.settings(), [&](const detail::RequestId& request_id) {
        return latch.protocol().set(request_id, count);
    }));
}

REDLATCH_INLINE std::ptrdiff_t CountDownLatch::count() const {
    auto& latch = detail::latch_of(handle_);
    const Reply reply = detail::query(latch.session(), handle_.settings(), latch.key(), latch.protocol().count());
    return detail::converted<std::ptrdiff_t>(std::max<std::int64_t>(0, detail::number_of(reply, latch.key())));
}

REDLATCH_INLINE LatchInspection CountDownLatch::inspect() const {
    auto& latch = detail::latch_of(handle_);
    return latch.protocol().read_inspection(
        detail::query(latch.session(), handle_.settings(), latch.key(), latch.protocol().inspect()));
}

REDLATCH_INLINE void CountDownLatch::count_down(std::ptrdiff_t n) {
    detail::check_count(n, 0, name(), detail::counts_down_by);
    if (n > 0) detail::lower(handle_.settings(), detail::latch_of(handle_), n);
}

REDLATCH_INLINE bool CountDownLatch::exists() const { return count() > 0; }

REDLATCH_INLINE bool CountDownLatch::expire_after(Milliseconds after) {
    return detail::expire(handle_.settings(), detail::latch_of(handle_), after);
}

REDLATCH_INLINE bool CountDownLatch::reset() {
    auto& latch = detail::latch_of(handle_);
    const Reply reply = latch.change(handle_.settings(), [&](const detail::RequestId& request_id) {
        return latch.protocol().lower(request_id, detail::LatchProtocol::all);
    });
    return latch.protocol().decode_lower(reply).before != 0;
}

REDLATCH_INLINE bool CountDownLatch::wait_for_end(detail::WaitRequest request) const {
    detail::LatchProtocol::Want want;
    request.settings = handle_.settings();
    return detail::latch_of(handle_).obtain(want, request).run();
}

REDLATCH_INLINE Operation<bool> CountDownLatch::later(detail::WaitRequest request) const {
    auto stop = std::exchange(request.stop, {});
    const detail::KeptState latch(handle_.session_handle(), detail::latch_of(handle_), handle_.settings());
    return detail::OperationAccess::make_simple<bool>(
        handle_.session_handle(),
        [latch, request](const detail::RunContext& context) {
            return detail::wait_for_end(latch, request, context.stop, context.by);
        },
        std::move(stop));
}

REDLATCH_INLINE bool CountDownLatch::arrive(std::ptrdiff_t n, detail::WaitRequest request) {
    detail::check_count(n, 0, name(), detail::counts_down_by);
    if (n == 0) return wait_for_end(request);
    auto& latch = detail::latch_of(handle_);
    auto [before, want] = detail::lower(handle_.settings(), latch, n);
    request.settings = handle_.settings();
    return before <= n || latch.obtain(want, request).run();
}

REDLATCH_INLINE bool CountDownLatch::try_set_count(std::ptrdiff_t count, std::error_code& ec) {
    return detail::answer([&] { return try_set_count(count); }, false, ec);
}

REDLATCH_INLINE std::ptrdiff_t CountDownLatch::count(std::error_code& ec) const {
    return detail::answer([&] { return count(); }, std::ptrdiff_t(0), ec);
}

REDLATCH_INLINE void CountDownLatch::count_down(std::ptrdiff_t n, std::error_code& ec) {
    detail::answer([&] { return count_down(n), true; }, false, ec);
}

REDLATCH_INLINE bool CountDownLatch::try_wait(std::error_code& ec) const {
    return detail::answer([&] { return try_wait(); }, false, ec);
}

REDLATCH_INLINE bool CountDownLatch::reset(std::error_code& ec) {
    return detail::answer([&] { return reset(); }, false, ec);
}

REDLATCH_INLINE bool CountDownLatch::exists(std::error_code& ec) const {
    return detail::answer([&] { return exists(); }, false, ec);
}

REDLATCH_INLINE bool CountDownLatch::remove(std::error_code& ec) {
    return detail::answer([&] { return remove(); }, false, ec);
}

REDLATCH_INLINE LatchInspection CountDownLatch::inspect(std::error_code& ec) const {
    return detail::answer([&] { return inspect(); }, LatchInspection(), ec);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
