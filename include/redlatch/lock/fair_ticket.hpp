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

// One thread's own channel of one fair lock, and where the thread sleeps while it stands in the queue.
//
// No wake-up is lost, because every piece of news (a message, a confirmed subscription, a lost place, a stop request)
// counts the generation up, and the thread remembers the generation from before its last question.
//
// mutex_ guards all members but channel_; changed_ wakes the one thread that waits here. The thread sleeps in the
// transport where it can, to receive the message itself.
template <class T>
class FairTicket final : public BackgroundTask {
public:
    FairTicket(Session<T>& session, std::string channel) : session_(session), channel_(std::move(channel)) {}
    ~FairTicket() override { session_.subscriptions().forget(channel_, *this); }

    // --- the waiting thread -----------------------------------------------------------------------------------

    void begin() {
        const std::lock_guard lock(mutex_);
        waiting_ = true;
        ask_at_ = never;
        refusal_.reset();
        thread_ = std::this_thread::get_id();
        const bool confirmed = session_.subscriptions().want(channel_, *this);
        if (confirmed && !confirmed_) ++generation_;
        confirmed_ = confirmed;
    }

    // `keep_listening`: for a while, because the thread is likely to come again.
    void end(bool keep_listening, Instant now) {
        const std::lock_guard lock(mutex_);
        waiting_ = false;
        idle_since_ = now;
        if (keep_listening)
            session_.subscriptions().rest(channel_, *this);
        else
            session_.subscriptions().forget(channel_, *this);
    }

    // When a message said to ask at the latest. Forgotten when the question is asked.
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

    // Sleeps until there is news since `seen`, or until the instant has come. Gives the server's answer where it does
    // not let this thread listen: then waiting is in vain.
    std::optional<Reply> sleep(std::uint64_t seen, Instant until) {
        std::unique_lock lock(mutex_);
        bool may_watch = true;
        while (!refusal_ && generation_ == seen && Clock::now() < std::min(until, ask_at_)) {
            if (confirmed_ && std::exchange(may_watch, false)) {
                watching_ = true;
                const Instant latest = std::min(until, ask_at_);
                // News from here on is not missed, though another thread may take the interrupt.
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

    // --- anybody ----------------------------------------------------------------------------------------------

    void news() {
        const std::lock_guard lock(mutex_);
        tell();
    }

    bool is_waiting() {
        const std::lock_guard lock(mutex_);
        return waiting_;
    }

    // When it was last of use, for one that is not waiting.
    Instant idle_since() {
        const std::lock_guard lock(mutex_);
        return waiting_ ? never : idle_since_;
    }

    // --- the background ---------------------------------------------------------------------------------------

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

    // That the lock is free; or, for who has become the first, after how many ms the new holder's lease is over.
    void message(std::string_view payload) override {
        std::int64_t lease = 0;
        const auto [end, error] = std::from_chars(payload.data(), payload.data() + payload.size(), lease);
        if (error != std::errc{} || end != payload.data() + payload.size() || lease < 2) return news();
        const std::lock_guard lock(mutex_);
        // One more than told: the key is gone only in the millisecond after its last.
        ask_at_ = deadline_after(Clock::now(), Milliseconds(lease) + Milliseconds(1));
        wake_up();
    }

    void disconnected() override {
        const std::lock_guard lock(mutex_);
        confirmed_ = false;
    }

    // It has no times of its own: the lock's state looks after the slots and the holds.
    void tick(Instant, Instant, std::vector<Renewal>&) override {}
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
    bool confirmed_ = false;  // so messages do come
    bool watching_ = false;   // it sleeps in the transport
    std::thread::id thread_{};
    std::optional<Reply> refusal_;
    Instant idle_since_{};
};

}  // namespace v0_1
}  // namespace redlatch
