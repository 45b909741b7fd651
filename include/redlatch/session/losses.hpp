// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/thread.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/base/wait_on.hpp"
#include "redlatch/session/background_task.hpp"
#include "redlatch/session/lateness.hpp"
#include "redlatch/session/timers.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

namespace redlatch {
inline namespace v0_1 {

// What tells a hold's owner that it is lost. Made with all that telling needs, so that telling cannot fail.
class LossSource {
public:
    std::stop_token get_token() const noexcept { return one_.front().get_token(); }

private:
    friend class Losses;
    std::list<std::stop_source> one_{1};
};

// Tells losses in time, whatever the transport, the server and the handlers of events do. A thread of its own looks at
// what cannot be vouched for any longer (BackgroundTask::expire()), and requests the stop tokens of what is lost, in their
// order and with no lock of ours held: their callbacks are the user's, and one that blocks delays those after it.
//
// start() comes before there is anything to lose, and may fail; then telling needs neither a thread nor memory.
class Losses {
public:
    Losses() = default;
    Losses(const Losses&) = delete;
    Losses& operator=(const Losses&) = delete;
    ~Losses() { end(); }

    // When to call BackgroundTask::expire() of whom.
    Timers& timers() noexcept { return desk_->timers; }

    // Throws std::system_error when there is no thread to be had.
    void start() {
        const std::lock_guard lock(desk_->mutex);
        if (thread_.joinable() || desk_->ended) return;
        thread_ = quiet_thread([desk = desk_] { work(*desk); });
    }

    // Requests its token, soon; without a thread, at the end. Any lock may be held.
    void tell(LossSource lost) noexcept {
        const std::lock_guard lock(desk_->mutex);
        desk_->told.splice(desk_->told.end(), lost.one_);
        desk_->changed.notify_one();
    }

    // How long before the end of a lease its loss is to be told, for telling takes a moment, too: as long as it took of
    // late, and as much again; and what it takes to tell everybody, for what is renewed together is lost together.
    Clock::duration notice() const noexcept {
        const Clock::duration all = one_telling * static_cast<std::int64_t>(desk_->timers.size());
        return std::min<Clock::duration>(desk_->lateness.notice() + all, Lateness::longest_notice);
    }

    // Tells what is still to be told, and ends the thread, unless it is the one that calls: then that ends by itself.
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
    // Shared with the thread, which may outlive us. `mutex` guards what follows it, and the start of the thread;
    // `changed` wakes the thread.
    struct Desk {
        Lateness lateness;
        Timers timers{[this] { wake(); }, Timers::Of::loss};
        std::mutex mutex;
        std::condition_variable changed;
        std::list<std::stop_source> told;
        bool woken = false;  // there is an earlier deadline
        bool ended = false;

        void wake() {
            const std::lock_guard lock(mutex);
            woken = true;
            changed.notify_one();
        }
    };

    static constexpr Milliseconds again{5};
    static constexpr std::chrono::microseconds one_telling{10};  // rather more than it takes

    static void work(Desk& desk) {
        while (sleep(desk, desk.timers.sleep_until())) {
            const Instant due = desk.timers.sleep_until();  // another one, perhaps, for which it was woken
            const Instant now = Clock::now();
            // One after another, so that nobody waits for what those behind it are up to.
            while (expire_first_due(desk, now)) tell_all(desk);
            tell_all(desk);
            if (due <= now) desk.lateness.add(due, Clock::now());
        }
        tell_all(desk);
    }

    // Whether there was one. When it returns, nothing of a client is referred to: user code runs next, which may end the
    // client.
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

    // Until there is something to do; false at the end.
    static bool sleep(Desk& desk, Instant until) {
        std::unique_lock lock(desk.mutex);
        while (!desk.ended && !desk.woken && desk.told.empty() && Clock::now() < until)
            wait_on(desk.changed, lock, until);
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

}  // namespace v0_1
}  // namespace redlatch
