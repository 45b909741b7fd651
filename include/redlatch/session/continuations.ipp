// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/session/continuations.hpp"

#include <coroutine>
#include <cstddef>
#include <mutex>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

REDLATCH_INLINE bool Continuations::sleep(Sleeper& sleeper, std::coroutine_handle<> coroutine, Instant until) {
    {
        const std::lock_guard lock(mutex_);
        if (std::exchange(sleeper.woken_, false)) return false;
        if (until != never) alarms_.set(sleeper, until);
        sleeper.asleep_ = coroutine;
        if (until >= sleeping_until_) return true;
        sleeping_until_ = until;
    }
    wake_();
    return true;
}

REDLATCH_INLINE void Continuations::wake(Sleeper& sleeper) {
    {
        const std::lock_guard lock(mutex_);
        if (sleeper.is_due_) return;
        if (!sleeper.asleep_) {
            sleeper.woken_ = true;
            return;
        }
        if (sleeper.is_set()) alarms_.stop(sleeper);
        resume_later(sleeper);
        if (std::exchange(sleeping_until_, Instant{}) == Instant{}) return;
    }
    wake_();
}

REDLATCH_INLINE Instant Continuations::sleep_until() {
    const std::lock_guard lock(mutex_);
    sleeping_until_ = first_ ? Instant{} : alarms_.next();
    return sleeping_until_;
}

REDLATCH_INLINE void Continuations::resume_due(Instant now) {
    std::unique_lock lock(mutex_);
    sleeping_until_ = {};
    alarms_.ring_due(now, [this](Alarm& alarm) { resume_later(static_cast<Sleeper&>(alarm)); });
    Sleeper* const last = last_;
    std::size_t resumed = 0;
    for (bool more = first_ != nullptr; more && resumed < most_at_once; ++resumed) {
        Sleeper& sleeper = *first_;
        first_ = static_cast<Sleeper*>(sleeper.next);
        if (!first_) last_ = nullptr;
        sleeper.is_due_ = false;
        more = &sleeper != last;
        const std::coroutine_handle<> coroutine = std::exchange(sleeper.asleep_, nullptr);
        lock.unlock();
        coroutine.resume();
        lock.lock();
    }
}

REDLATCH_INLINE void Continuations::resume_later(Sleeper& sleeper) {
    sleeper.is_due_ = true;
    sleeper.next = nullptr;
    if (last_)
        last_->next = &sleeper;
    else
        first_ = &sleeper;
    last_ = &sleeper;
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
