// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/keep_errno.hpp"
#include "redlatch/error.hpp"
#include "redlatch/semaphore/permits.hpp"
#include "redlatch/session/losses.hpp"

#include <memory>
#include <new>
#include <stop_token>
#include <system_error>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

// Makes permits, for the semaphores.
struct PermitsAccess {
    static Permits make(std::shared_ptr<PermitsKeeper> keeper, std::ptrdiff_t n, std::vector<PermitId> ids = {}) {
        Permits permits;
        permits.keeper_ = std::move(keeper);
        permits.count_ = n;
        permits.ids_ = std::move(ids);
        return permits;
    }

    // Returns the ids of the permits, which the object does not give back any more: whoever has the ids does.
    static std::vector<PermitId> detach(Permits permits) noexcept {
        if (permits.count_ > 0) permits.keeper_->detach();
        permits.count_ = 0;
        return std::move(permits.ids_);
    }
};

}  // namespace detail

REDLATCH_INLINE Permits::~Permits() {
    if (count_ == 0) return;
    const detail::KeepErrno kept;
    if (keeper_->is_of_this_process())
        keeper_->give_back_later(count_, std::move(ids_));
    else
        leak();
}

// In a forked child the parent's objects must not be destroyed: threads that do not exist here may have locked their
// mutexes.
REDLATCH_INLINE void Permits::leak() noexcept {
    static_cast<void>(new (std::nothrow) std::shared_ptr<detail::PermitsKeeper>(std::move(keeper_)));
}

REDLATCH_INLINE Instant Permits::valid_until() const {
    if (count_ == 0 || !keeper_->is_of_this_process()) return Instant::min();
    return keeper_->valid_until();
}

REDLATCH_INLINE std::stop_token Permits::lost() const {
    if (count_ == 0 || !keeper_->is_of_this_process()) return detail::requested_token();
    return keeper_->lost();
}

REDLATCH_INLINE Permits Permits::split(std::ptrdiff_t n) {
    if (n < 0 || n > count_)
        throw Error(errc::invalid_argument, {}, "cannot split off more permits than the object holds");
    if (n == 0) return {};
    if (n == count_) return std::move(*this);
    std::vector<PermitId> ids;
    if (!ids_.empty()) ids.assign(ids_.end() - n, ids_.end());
    // In a forked child both objects do nothing.
    auto keeper = keeper_->is_of_this_process() ? keeper_->split(ids) : keeper_;
    Permits others = detail::PermitsAccess::make(std::move(keeper), n, std::move(ids));
    if (!ids_.empty()) ids_.erase(ids_.end() - n, ids_.end());
    count_ -= n;
    return others;
}

REDLATCH_INLINE void Permits::merge(Permits&& other) {
    if (&other == this || other.count_ == 0) return;
    if (count_ == 0) {
        *this = std::move(other);
        return;
    }
    if (!keeper_->is_same(*other.keeper_))
        throw Error(errc::invalid_argument, {}, "these permits belong to different semaphores");
    ids_.insert(ids_.end(), other.ids_.begin(), other.ids_.end());
    if (keeper_->is_of_this_process())
        keeper_->merge(*other.keeper_);
    else
        other.leak();
    count_ += std::exchange(other.count_, 0);
    other.ids_.clear();
    other.keeper_.reset();
}

REDLATCH_INLINE std::error_code Permits::release() noexcept {
    if (count_ == 0) return errc::not_owner;
    const detail::KeepErrno kept;
    const std::ptrdiff_t n = std::exchange(count_, 0);
    if (!keeper_->is_of_this_process()) {
        leak();
        ids_.clear();
        return errc::hold_lost;
    }
    const auto keeper = std::exchange(keeper_, nullptr);
    const std::error_code ec = keeper->give_back(n, ids_);
    ids_.clear();
    return ec;
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
