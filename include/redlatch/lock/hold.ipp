// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/keep_errno.hpp"
#include "redlatch/error.hpp"
#include "redlatch/lock/hold.hpp"
#include "redlatch/lock/hold_table.hpp"
#include "redlatch/session/operation.hpp"

#include <exception>
#include <memory>
#include <stop_token>
#include <string>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

// In a child that was forked meanwhile the parent's objects must not be destroyed: threads that do not exist here may
// have locked their mutexes.
inline void leave_to_parent(HeldLevel level) noexcept try {
    static_cast<void>(new HeldLevel(std::move(level)));
} catch (...) {
}

}  // namespace detail

REDLATCH_INLINE Hold::~Hold() {
    if (!level_.keeper) return;
    const detail::KeepErrno kept;
    if (level_.keeper->is_of_this_process())
        level_.keeper->release_later(level_.hold());
    else
        detail::leave_to_parent(std::move(level_));
}

REDLATCH_INLINE std::string Hold::name() const {
    return level_.keeper ? level_.keeper->name_as_given() : std::string();
}

REDLATCH_INLINE std::int64_t Hold::token() const {
    if (level_.facts.token == 0) throw Error(errc::unsupported, name(), "only a FencedLock has fencing tokens");
    return level_.facts.token;
}

REDLATCH_INLINE Instant Hold::valid_until() const {
    if (!level_.keeper || !level_.keeper->is_of_this_process()) return Instant::min();
    return level_.keeper->valid_until(level_.hold());
}

REDLATCH_INLINE std::stop_token Hold::lost() const {
    if (!level_.keeper || !level_.keeper->is_of_this_process()) return detail::lost_token(nullptr);
    return level_.keeper->lost(level_.hold());
}

REDLATCH_INLINE std::error_code Hold::unlock() noexcept {
    if (!level_.keeper) return errc::not_owner;
    const detail::KeepErrno kept;
    detail::HeldLevel level = std::exchange(level_, {});
    if (!level.keeper->is_of_this_process()) {
        detail::leave_to_parent(std::move(level));
        return errc::hold_lost;
    }
    try {
        return level.keeper->release(level.hold());
    } catch (const std::exception&) {
        // It did hold the lock, but the loss is long ago.
        return errc::hold_lost;
    }
}

REDLATCH_INLINE Hold detail::HoldAccess::make(HeldLevel level) noexcept { return Hold(std::move(level)); }

REDLATCH_INLINE detail::Task<std::error_code> detail::HoldAccess::release(Hold& hold, HeldLevel& level, WaitBy by) {
    if (by == by_thread || !hold.level_.keeper || !hold.level_.keeper->is_of_this_process()) co_return hold.unlock();
    // Until this task runs, and without memory for the next one, the object keeps its level, and its destructor releases it.
    Task<std::error_code> releasing = hold.level_.keeper->release_by(hold.level_.hold(), by);
    level = std::exchange(hold.level_, {});
    co_return co_await releasing;
}

REDLATCH_INLINE Operation<std::error_code> Hold::async_unlock() && {
    if (!level_.keeper) throw Error(errc::not_owner, {}, "this object holds nothing");
    std::shared_ptr<detail::OperationHost> host = level_.host;
    return detail::OperationAccess::make_simple<std::error_code>(
        std::move(host),
        [hold = std::move(*this), level = detail::HeldLevel()](const detail::RunContext& context) mutable {
            return detail::HoldAccess::release(hold, level, context.by);
        });
}

REDLATCH_INLINE Hold Hold::another_level(detail::LockRequest request) const {
    if (!level_.keeper) throw Error(errc::not_owner, {}, "this object holds nothing");
    const bool is_ours = level_.keeper->is_of_this_process();
    if (is_ours) take_settings(request, level_.keeper->settings(level_.owner));
    request.again_of = level_.facts.number;
    if (!is_ours || !level_.keeper->acquire(request).run())
        throw Error(errc::hold_lost, level_.keeper->name_as_given(), "the hold has ended");
    detail::HeldLevel level = level_;
    level.facts = level.keeper->facts(level.owner);
    return Hold(std::move(level));
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
