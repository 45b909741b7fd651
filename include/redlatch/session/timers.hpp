// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/session/background_task.hpp"

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// The deadlines of everything that one thread looks after, earliest first. A client has two: of the background thread,
// and of the one that tells losses.
//
// An entry is only ever moved forward: a lock that is taken and given back a thousand times a second leaves its
// entry where it is, and when that comes up, tick() finds nothing due and says when to look again. So taking a lock
// costs no shared work here, and each entry comes up in vain at most once a renewal period.
//
// mutex_ guards all members, and the writing of size_ and of TimerSlot::scheduled_. Nobody waits here; schedule() wakes
// the thread when it sleeps beyond the new deadline.
class Timers {
public:
    // Which of a BackgroundTask's times these are.
    enum class Of { care, loss };

    explicit Timers(std::function<void()> wake, Of of = Of::care)
        : wake_(std::move(wake)), slot_(of == Of::care ? &BackgroundTask::care_ : &BackgroundTask::loss_) {}

    // To be called with the watched one's own mutex held, which tick() and expire() take too: so an entry that is taken
    // out at this moment is still to be looked at, and the first test may be made without our mutex.
    void schedule(BackgroundTask& watched, Instant at) noexcept {
        TimerSlot& slot = watched.*slot_;
        if (slot.scheduled_.load() <= at) return;
        {
            const std::lock_guard lock(mutex_);
            const Instant scheduled = slot.scheduled_;
            if (scheduled <= at) return;
            if (scheduled != never) slot.entry_ = entries_.extract({scheduled, &watched});
            slot.scheduled_ = at;
            slot.entry_.value().first = at;
            entries_.insert(std::move(slot.entry_));
            size_ = entries_.size();
            if (at >= sleeping_until_) return;
        }
        wake_();
    }

    // For a destructor: after it, nobody will be given this one any more.
    void forget(BackgroundTask& watched) {
        TimerSlot& slot = watched.*slot_;
        const std::lock_guard lock(mutex_);
        if (const Instant scheduled = slot.scheduled_; scheduled != never) entries_.erase({scheduled, &watched});
        slot.scheduled_ = never;
        size_ = entries_.size();
    }

    // Takes out what is due at `until`.
    std::vector<std::shared_ptr<BackgroundTask>> take_due(Instant until) {
        const std::lock_guard lock(mutex_);
        std::vector<std::shared_ptr<BackgroundTask>> due;
        due.reserve(entries_.size());  // so that a failure leaves all as it is
        sleeping_until_ = {};
        // Null for one whose destructor waits for our mutex.
        while (is_due(until))
            if (auto alive = take_first()) due.push_back(std::move(alive));
        return due;
    }

    // Takes out the first that is due at `until`, for which no memory is needed; null when there is none.
    std::shared_ptr<BackgroundTask> take_first_due(Instant until) noexcept {
        const std::lock_guard lock(mutex_);
        sleeping_until_ = {};
        while (is_due(until))
            if (auto alive = take_first()) return alive;
        return nullptr;
    }

    // How many have a time. Without our mutex, so that it may be asked whenever something is held.
    std::size_t size() const noexcept { return size_.load(std::memory_order_relaxed); }

    // The thread is about to sleep: until when at most?
    Instant sleep_until() {
        const std::lock_guard lock(mutex_);
        sleeping_until_ = entries_.empty() ? never : entries_.begin()->first;
        return sleeping_until_;
    }

private:
    bool is_due(Instant until) const { return !entries_.empty() && entries_.begin()->first <= until; }

    std::shared_ptr<BackgroundTask> take_first() {
        BackgroundTask& watched = *entries_.begin()->second;
        TimerSlot& slot = watched.*slot_;
        slot.entry_ = entries_.extract(entries_.begin());
        slot.scheduled_ = never;
        size_ = entries_.size();
        return watched.weak_from_this().lock();
    }

    const std::function<void()> wake_;
    TimerSlot BackgroundTask::*const slot_;
    std::mutex mutex_;
    TimerEntries entries_;
    std::atomic<std::size_t> size_{0};  // of entries_
    Instant sleeping_until_{};
};

}  // namespace v0_1
}  // namespace redlatch
