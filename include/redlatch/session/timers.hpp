// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/session/background_task.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Holds the deadlines of all tasks that one thread serves, earliest first. A client has two: one for the background
// thread, and one for the thread that reports losses.
//
// schedule() only ever moves an entry to an earlier time. A lock that is acquired and released a thousand times a
// second leaves its entry where it is. When the entry comes up, on_timer() finds nothing due and schedules the next
// time. So acquiring a lock costs no shared work here, and each entry comes up needlessly at most once per renewal
// period.
//
// mutex_ guards all members and all writes to size_ and TimerSlot::scheduled_. No thread waits here. schedule() wakes
// the thread if it sleeps beyond the new deadline.
class Timers {
public:
    // Selects one of the two times of a BackgroundTask.
    enum class Of { care, loss };

    explicit Timers(std::function<void()> wake, Of of = Of::care)
        : wake_(std::move(wake)), slot_(of == Of::care ? &BackgroundTask::care_ : &BackgroundTask::loss_) {}

    // Call it with the task's own mutex held, which on_timer() and expire() take, too. Then an entry that is being
    // taken out is still to be processed, and the first test needs no lock on mutex_.
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

    // Removes the task. Called by its destructor; after it, take_due() and take_first_due() no longer return the task.
    void forget(BackgroundTask& watched) {
        TimerSlot& slot = watched.*slot_;
        const std::lock_guard lock(mutex_);
        if (const Instant scheduled = slot.scheduled_; scheduled != never) entries_.erase({scheduled, &watched});
        slot.scheduled_ = never;
        size_ = entries_.size();
    }

    // Removes and returns the tasks that are due at `until`.
    std::vector<std::shared_ptr<BackgroundTask>> take_due(Instant until) {
        const std::lock_guard lock(mutex_);
        std::vector<std::shared_ptr<BackgroundTask>> due;
        const auto later =
            std::find_if(entries_.begin(), entries_.end(), [until](const auto& entry) { return entry.first > until; });
        due.reserve(static_cast<std::size_t>(std::distance(entries_.begin(), later)));  // a failure changes nothing
        sleeping_until_ = {};
        // Null for a task whose destructor waits for our mutex.
        while (is_due(until))
            if (auto alive = take_first()) due.push_back(std::move(alive));
        return due;
    }

    // Removes and returns the first task that is due at `until`, or null if there is none. Allocates no memory.
    std::shared_ptr<BackgroundTask> take_first_due(Instant until) noexcept {
        const std::lock_guard lock(mutex_);
        sleeping_until_ = {};
        while (is_due(until))
            if (auto alive = take_first()) return alive;
        return nullptr;
    }

    // Makes all tasks due at `at`. Allocates no memory.
    void hasten_all(Instant at) noexcept {
        const std::lock_guard lock(mutex_);
        TimerEntries all;
        while (!entries_.empty()) {
            auto entry = entries_.extract(entries_.begin());
            const Instant sooner = std::min(entry.value().first, at);
            (entry.value().second->*slot_).scheduled_ = entry.value().first = sooner;
            all.insert(std::move(entry));
        }
        entries_.swap(all);
    }

    // Returns the number of scheduled tasks. Takes no mutex, so it may be called with any lock held.
    std::size_t size() const noexcept { return size_.load(std::memory_order_relaxed); }

    // Returns the latest time until which the thread may sleep. The thread calls it when it is about to sleep.
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

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
