// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/client/watched.hpp"

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace redlatch {

// The deadlines of everything that the background thread looks after, earliest first.
//
// An entry is only ever moved forward: a lock that is taken and given back a thousand times a second leaves its
// entry where it is, and when that comes up, tick() finds nothing due and says when to look again. So taking a lock
// costs no shared work here, and each entry comes up in vain at most once a renewal period.
//
// mutex_ guards all members and the writing of Watched::scheduled_. Nobody waits here; schedule() wakes the background
// thread when it sleeps beyond the new deadline.
class Timers {
public:
    explicit Timers(std::function<void()> wake) : wake_(std::move(wake)) {}

    // To be called with the watched one's own mutex held, which tick() takes too: so an entry that is taken out at
    // this moment is still to be looked at, and the first test may be made without our mutex.
    void schedule(Watched& watched, Instant at) noexcept {
        if (watched.scheduled_.load() <= at) return;
        {
            const std::lock_guard lock(mutex_);
            const Instant scheduled = watched.scheduled_;
            if (scheduled <= at) return;
            if (scheduled != never) watched.entry_ = entries_.extract({scheduled, &watched});
            watched.scheduled_ = at;
            watched.entry_.value().first = at;
            entries_.insert(std::move(watched.entry_));
            if (at >= sleeping_until_) return;
        }
        wake_();
    }

    // For a destructor: after it, nobody will be given this one any more.
    void forget(Watched& watched) {
        const std::lock_guard lock(mutex_);
        if (const Instant scheduled = watched.scheduled_; scheduled != never) entries_.erase({scheduled, &watched});
        watched.scheduled_ = never;
    }

    // Takes out what is due at `until`.
    std::vector<std::shared_ptr<Watched>> take_due(Instant until) {
        const std::lock_guard lock(mutex_);
        std::vector<std::shared_ptr<Watched>> due;
        due.reserve(entries_.size());  // so that a failure leaves all as it is
        sleeping_until_ = {};
        while (!entries_.empty() && entries_.begin()->first <= until) {
            Watched* watched = entries_.begin()->second;
            auto entry = entries_.extract(entries_.begin());
            watched->scheduled_ = never;
            watched->entry_ = std::move(entry);
            // Null for one whose destructor waits for our mutex.
            if (auto alive = watched->weak_from_this().lock()) due.push_back(std::move(alive));
        }
        return due;
    }

    // The background thread is about to sleep: until when at most?
    Instant sleep_until() {
        const std::lock_guard lock(mutex_);
        sleeping_until_ = entries_.empty() ? never : entries_.begin()->first;
        return sleeping_until_;
    }

private:
    const std::function<void()> wake_;
    std::mutex mutex_;
    TimerEntries entries_;
    Instant sleeping_until_{};
};

}  // namespace redlatch
