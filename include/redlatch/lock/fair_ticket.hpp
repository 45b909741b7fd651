// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/base/wait_on.hpp"
#include "redlatch/session/background_task.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/transport/reply.hpp"

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// One thread's channel of one fair lock, on which the thread sleeps while it stands in the queue.
//
// No wake-up is lost. Each event (a message, a confirmed subscription, a lost slot, a stop request) increments the
// generation, and the thread remembers the generation from before its last command.
//
// mutex_ guards all members except channel_. changed_ wakes the one thread that waits here. The thread sleeps in the
// transport where possible, to receive the message itself.
template <class T>
class FairTicket final : public BackgroundTask {
public:
    FairTicket(Session<T>& session, std::string channel) : session_(session), channel_(std::move(channel)) {}
    ~FairTicket() override { session_.subscriptions().remove(channel_, *this); }

    // --- the waiting thread -----------------------------------------------------------------------------------

    void begin() {
        const std::lock_guard lock(mutex_);
        waiting_ = true;
        ask_at_ = never;
        refusal_.reset();
        thread_ = std::this_thread::get_id();
        const bool confirmed = session_.subscriptions().acquire(channel_, *this);
        if (confirmed && !confirmed_) ++generation_;
        confirmed_ = confirmed;
    }

    // `keep_listening`: True to stay subscribed for a while, because the thread is likely to come again.
    void end(bool keep_listening, Instant now) {
        const std::lock_guard lock(mutex_);
        waiting_ = false;
        idle_since_ = now;
        if (keep_listening)
            session_.subscriptions().release(channel_, *this);
        else
            session_.subscriptions().remove(channel_, *this);
    }

    // Returns when the thread has to ask at the latest, according to a message. ask() clears it.
    Instant ask_at() {
        const std::lock_guard lock(mutex_);
        return ask_at_;
    }
    void ask() {
        const std::lock_guard lock(mutex_);
        ask_at_ = never;
    }

    std::uint64_t generation() {
        const std::lock_guard lock(mutex_);
        return generation_;
    }

    // Sleeps until an event after generation `seen`, or until `until`. Returns the server's reply if it refused the
    // subscription: then waiting cannot succeed.
    std::optional<Reply> sleep(std::uint64_t seen, Instant until) {
        std::unique_lock lock(mutex_);
        bool may_watch = true;
        while (!refusal_ && generation_ == seen && Clock::now() < std::min(until, ask_at_)) {
            if (confirmed_ && std::exchange(may_watch, false)) {
                watching_ = true;
                const Instant latest = std::min(until, ask_at_);
                // Events from here on are not missed, though another thread may consume the interrupt.
                const std::uint64_t interrupts = session_.interrupts();
                lock.unlock();
                const bool watched = session_.watch(latest, interrupts);
                lock.lock();
                watching_ = false;
                may_watch = watched;
                continue;
            }
            may_watch = true;
            wait_on(changed_, lock, std::min(until, ask_at_));
        }
        return refusal_;
    }

    // --- any thread -------------------------------------------------------------------------------------------

    void notify() {
        const std::lock_guard lock(mutex_);
        tell();
    }

    bool is_waiting() {
        const std::lock_guard lock(mutex_);
        return waiting_;
    }

    // Returns when the last wait ended; `never` while a thread waits.
    Instant idle_since() {
        const std::lock_guard lock(mutex_);
        return waiting_ ? never : idle_since_;
    }

    // --- background -------------------------------------------------------------------------------------------

    void subscribed() override {
        const std::lock_guard lock(mutex_);
        confirmed_ = true;
        tell();
    }

    void subscription_refused(const Reply& why) override {
        const std::lock_guard lock(mutex_);
        confirmed_ = false;
        if (!waiting_) return;
        refusal_ = why;
        tell();
    }

    // The payload reports that the lock is free, or, to the new head of the queue, in how many ms the new holder's
    // lease is over.
    void message(std::string_view payload) override {
        std::int64_t lease = 0;
        const auto [end, error] = std::from_chars(payload.data(), payload.data() + payload.size(), lease);
        if (error != std::errc{} || end != payload.data() + payload.size() || lease < 2) return notify();
        const std::lock_guard lock(mutex_);
        // One ms more: the key exists until the end of its last millisecond.
        ask_at_ = deadline_after(Clock::now(), Milliseconds(lease) + Milliseconds(1));
        wake_up();
    }

    void disconnected() override {
        const std::lock_guard lock(mutex_);
        confirmed_ = false;
    }

    // It needs no timer: the lock's state maintains the slots and the holds.
    void on_timer(Instant, Instant, std::vector<Renewal>&) override {}
    void renewed(const Renewal&, Renewed, Instant) override {}

private:
    void tell() {
        ++generation_;
        wake_up();
    }

    void wake_up() {
        changed_.notify_one();
        if (watching_ && thread_ != std::this_thread::get_id()) session_.interrupt_watch();
    }

    Session<T>& session_;
    const std::string channel_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::uint64_t generation_ = 1;
    Instant ask_at_ = never;
    bool waiting_ = false;
    bool confirmed_ = false;  // True if the server confirmed the subscription, so messages arrive
    bool watching_ = false;   // True while the thread sleeps in the transport
    std::thread::id thread_{};
    std::optional<Reply> refusal_;
    Instant idle_since_{};
};

}  // namespace v0_1
}  // namespace redlatch
