// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/suspended.hpp"
#include "redlatch/base/thread.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/base/wait_on.hpp"
#include "redlatch/session/background_task.hpp"
#include "redlatch/session/lateness.hpp"
#include "redlatch/session/timers.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The stop source of a lost() token, or of several that are requested together. It holds all that reporting needs, so
// reporting cannot fail.
class LossSource {
public:
    std::stop_token get_token() const noexcept { return all_.front().get_token(); }

    // Takes over the other source: its tokens are requested together with ours.
    void merge(LossSource&& other) noexcept { all_.splice(all_.end(), other.all_); }

private:
    friend class Losses;
    std::list<std::stop_source> all_{1};
};

// Returns the lost() token of what is not held: it is requested already.
inline std::stop_token requested_token() {
    std::stop_source already;
    already.request_stop();
    return already.get_token();
}

// Returns how long before the end of a lease to report its loss, so that callbacks start while it still lasts. `needed`
// is how long reporting takes on this machine: see Losses::notice(). The result is at most a sixteenth of the lease.
inline Clock::duration notice_of(Clock::duration needed, Milliseconds lease) noexcept {
    return std::min<Clock::duration>(needed, Clock::duration(lease) / 16);
}

// Reports losses in time, whatever the transport, the server and the event handlers do. A thread of its own checks
// holds that are no longer certain (BackgroundTask::expire()). It requests the stop tokens of lost holds in order, with
// no lock of ours held. Their callbacks are the user's, and one that blocks delays those after it.
//
// start() comes before there is anything to lose, and may fail. After it, reporting needs neither a new thread nor
// memory.
class Losses {
public:
    Losses() = default;
    Losses(const Losses&) = delete;
    Losses& operator=(const Losses&) = delete;
    ~Losses() { end(); }

    // The deadlines at which BackgroundTask::expire() is called.
    Timers& timers() noexcept { return desk_->timers; }

    // Starts the thread. Throws std::system_error if it cannot.
    void start() {
        const std::lock_guard lock(desk_->mutex);
        if (thread_.joinable() || desk_->ended) return;
        // Read here: the machine may be suspended before the thread runs, but after the first hold.
        thread_ =
            thread_with_signals_blocked([desk = desk_, suspended = detail::suspended()] { work(*desk, suspended); });
    }

    // Requests a stop on its tokens soon; without a thread, in end(). Any lock may be held.
    void report(LossSource lost) noexcept {
        const std::lock_guard lock(desk_->mutex);
        desk_->told.splice(desk_->told.end(), lost.all_);
        desk_->changed.notify_one();
    }

    // Makes all tasks look soon whether their holds are still certain.
    void look_again() noexcept {
        desk_->timers.hasten_all(Clock::now());
        desk_->wake();
    }

    // Returns how long before the end of a lease to report its loss, because reporting takes time. It is the sum of two
    // parts, limited to Lateness::longest_notice:
    //   - twice the recent lateness of the thread
    //   - the time to report to every owner, because holds that are renewed together are lost together
    // `more`: how many owners one task has.
    Clock::duration notice(std::size_t more = 0) const noexcept {
        const Clock::duration all = one_telling * static_cast<std::int64_t>(desk_->timers.size() + more);
        return std::min<Clock::duration>(desk_->lateness.notice() + all, Lateness::longest_notice);
    }

    // Reports what is still queued and ends the thread. If the thread itself calls it, the thread ends by itself
    // afterwards.
    void end() {
        {
            const std::lock_guard lock(desk_->mutex);
            desk_->ended = true;
            desk_->changed.notify_one();
        }
        if (thread_.get_id() == std::this_thread::get_id()) {
            thread_.detach();
        } else {
            if (thread_.joinable()) thread_.join();
            tell_all(*desk_);
        }
    }

private:
    // State shared with the thread, which may outlive us. `mutex` guards the members after it and the start of the
    // thread; `changed` wakes the thread.
    struct Desk {
        Lateness lateness;
        Timers timers{[this] { wake(); }, Timers::Of::loss};
        std::mutex mutex;
        std::condition_variable changed;
        std::list<std::stop_source> told;
        bool woken = false;  // an earlier deadline was scheduled
        bool ended = false;

        void wake() {
            const std::lock_guard lock(mutex);
            woken = true;
            changed.notify_one();
        }
    };

    static constexpr Milliseconds again{5};
    static constexpr std::chrono::microseconds one_telling{10};  // a generous estimate

    // `suspended`: for how long the machine had been suspended when there was nothing to lose yet.
    static void work(Desk& desk, Clock::duration suspended) {
        while (sleep(desk, desk.timers.sleep_until(), suspended)) {
            const Instant due = desk.timers.sleep_until();  // may be an earlier one that woke the thread
            const Instant now = Clock::now();
            if (const auto grown = suspended_since(suspended); grown > Clock::duration::zero()) {
                // The leases went on meanwhile: each lock looks how much is left.
                suspended += grown;
                desk.timers.hasten_all(now);
            }
            // One after another, so that no owner waits for the callbacks of later ones.
            while (expire_first_due(desk, now)) tell_all(desk);
            tell_all(desk);
            if (due <= now) desk.lateness.add(due, Clock::now());
        }
        tell_all(desk);
    }

    // Returns true if a task was due. On return it refers to nothing of the client: user code runs next and may destroy
    // the client.
    static bool expire_first_due(Desk& desk, Instant now) noexcept {
        const auto watched = desk.timers.take_first_due(now);
        if (!watched) return false;
        try {
            watched->expire(now);
        } catch (...) {
            desk.timers.schedule(*watched, now + again);
        }
        return true;
    }

    // Sleeps until there is work: something to report, an earlier deadline, or the end of a suspension of the machine.
    // `suspended`: for how long it was suspended when the deadlines were computed. Returns false at the end.
    static bool sleep(Desk& desk, Instant until, Clock::duration suspended) {
        std::unique_lock lock(desk.mutex);
        while (!desk.ended && !desk.woken && desk.told.empty()) {
            const Instant now = Clock::now();
            if (now >= until || suspended_since(suspended) > Clock::duration::zero()) break;
            wait_on(desk.changed, lock,
                    until == never ? never : std::min(until, deadline_after(now, suspension_check)));
        }
        desk.woken = false;
        return !desk.ended;
    }

    static void tell_all(Desk& desk) {
        for (;;) {
            std::list<std::stop_source> one;
            {
                const std::lock_guard lock(desk.mutex);
                if (desk.told.empty()) return;
                one.splice(one.begin(), desk.told, desk.told.begin());
            }
            one.front().request_stop();
        }
    }

    std::shared_ptr<Desk> desk_ = std::make_shared<Desk>();
    std::thread thread_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
