// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/session/background_task.hpp"
#include "redlatch/transport/server_errors.hpp"
#include "redlatch/transport/transport.hpp"

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Tracks the channels that this client subscribes to and the tasks that listen to each. Tasks share a subscription. It
// is kept for a while after the last of them lost interest; otherwise a contended lock would subscribe again and again.
//
// mutex_ guards all members. It may be taken while the mutex of a BackgroundTask is held, never the other way round: a
// BackgroundTask is notified only after mutex_ was released. Nor does a reference to a task end while mutex_ is held: it
// may be the last one, and the destructor of a task takes mutex_.
class Subscriptions final : public Listener {
public:
    static constexpr Milliseconds keep_warm = std::chrono::seconds(5);
    static constexpr Milliseconds try_again{200};

    // `subscribe(channel, wanted)` passes a change on to the transport. `wake` makes the background thread check again.
    Subscriptions(std::function<void(const std::string&, bool)> subscribe, std::function<void()> wake)
        : subscribe_(std::move(subscribe)), wake_(std::move(wake)) {}

    // Registers `who` for the messages of a channel. Returns true if the subscription is already confirmed. Otherwise
    // subscribed() is called when it is. `receiver`: identifies the thread that may receive messages itself while it waits;
    // null if `who` has one such thread for all its channels.
    bool acquire(const std::string& channel, BackgroundTask& who, const void* receiver = nullptr) {
        const std::lock_guard lock(mutex_);
        auto [entry, is_new] = channels_.try_emplace(channel);
        Channel& c = entry->second;
        auto mine =
            std::find_if(c.listeners.begin(), c.listeners.end(), [&](const Interest& w) { return w.who == &who; });
        try {
            if (mine == c.listeners.end())
                mine = c.listeners.insert(c.listeners.end(), Interest{&who, receiver ? receiver : &who, false});
            if (is_new) subscribe_(channel, true);
        } catch (...) {
            if (is_new) channels_.erase(entry);
            throw;
        }
        if (!mine->active) {
            ++active_[mine->receiver];
            mine->active = true;
            ++c.active;
        }
        // Not confirmed yet, and perhaps no thread is receiving: wake the background thread.
        if (!is_new && !c.confirmed) wake_();
        return c.confirmed;
    }

    // Ends the active interest of `who`. It may still be notified for a while.
    void release(const std::string& channel, const BackgroundTask& who) {
        bool look_anew = false;
        {
            const std::lock_guard lock(mutex_);
            const auto entry = channels_.find(channel);
            if (entry == channels_.end()) return;
            for (Interest& w : entry->second.listeners)
                if (w.who == &who && w.active) {
                    w.active = false;
                    is_idle(w.receiver);
                    if (--entry->second.active == 0) entry->second.idle_since = Clock::now();
                }
            look_anew = next_sweep_ == never;
            if (look_anew) next_sweep_ = Clock::now() + keep_warm;
        }
        if (look_anew) wake_();
    }

    // Returns how many threads may want to receive. One may listen to several channels, and, like those of both sides of a
    // read-write lock, several to one.
    std::size_t active() {
        const std::lock_guard lock(mutex_);
        return active_.size();
    }

    // Removes `who`, which is not notified any more after this. Called by its destructor.
    void remove(const std::string& channel, const BackgroundTask& who) {
        const std::lock_guard lock(mutex_);
        const auto entry = channels_.find(channel);
        if (entry == channels_.end()) return;
        Channel& c = entry->second;
        std::erase_if(c.listeners, [&](const Interest& w) {
            if (w.who != &who) return false;
            if (w.active) {
                --c.active;
                is_idle(w.receiver);
            }
            return true;
        });
        if (c.listeners.empty()) drop(entry);
    }

    // --- the background thread --------------------------------------------------------------------------------

    // Returns when sweep() has work.
    Instant due() {
        const std::lock_guard lock(mutex_);
        return next_sweep_;
    }

    // Unsubscribes from channels without active listeners for a while.
    void sweep(Instant now) {
        std::vector<Told> dropped;
        sweep(now, dropped);
        tell_disconnected(dropped);
    }

    void subscribed(const std::string& channel) override {
        for (const auto& who : listeners(channel, [](Channel& c) { c.confirmed = true; })) who->subscribed(channel);
    }

    void refused(const std::string& channel, const Reply& why) override {
        Tasks told;
        {
            const std::lock_guard lock(mutex_);
            const auto entry = channels_.find(channel);
            if (entry == channels_.end()) return;
            if (classify(why) == ReplyClass::refused_now) {
                // Busy, loading, too many clients: retry in a moment. Until then waiters rely on their other means.
                entry->second.ask_again = true;
                next_sweep_ = std::min(next_sweep_, Clock::now() + try_again);
                return;
            }
            collect(entry->second, told);
            drop(entry);
        }
        for (const auto& who : told) who->subscription_refused(channel, why);
    }

    void message(const std::string& channel, std::string_view payload) override {
        for (const auto& who : listeners(channel, [](Channel&) {})) who->message(channel, payload);
    }

    void disconnected() override {
        std::vector<Told> told;
        {
            const std::lock_guard lock(mutex_);
            for (auto& [channel, c] : channels_) {
                c.confirmed = false;
                collect(c, told.emplace_back(channel).tasks);
            }
        }
        tell_disconnected(told);
    }

    void interrupted(const std::string& channel) override {
        for (const auto& who : listeners(channel, [](Channel& c) { c.confirmed = false; })) who->disconnected(channel);
    }

private:
    struct Interest {
        BackgroundTask* who;
        const void* receiver;
        bool active;  // true if it has waiters now
    };

    struct Channel {
        std::vector<Interest> listeners;
        std::size_t active = 0;  // the number of active listeners
        bool confirmed = false;
        bool ask_again = false;  // temporarily refused; retry
        Instant idle_since{};
    };

    using Channels = std::unordered_map<std::string, Channel>;

    using Tasks = std::vector<std::shared_ptr<BackgroundTask>>;

    // A channel, and the tasks that an event of it is for.
    struct Told {
        explicit Told(std::string name) : channel(std::move(name)) {}

        std::string channel;
        Tasks tasks{};
    };

    static void tell_disconnected(const std::vector<Told>& told) {
        for (const Told& t : told)
            for (const auto& who : t.tasks) who->disconnected(t.channel);
    }

    void sweep(Instant now, std::vector<Told>& dropped) {
        const std::lock_guard lock(mutex_);
        if (now < next_sweep_) return;
        next_sweep_ = never;
        for (auto entry = channels_.begin(); entry != channels_.end();) {
            const auto current = entry++;
            if (std::exchange(current->second.ask_again, false)) subscribe_(current->first, true);
            if (current->second.active > 0) continue;
            if (now < current->second.idle_since + keep_warm) {
                next_sweep_ = std::min(next_sweep_, current->second.idle_since + keep_warm);
                continue;
            }
            collect(current->second, dropped.emplace_back(current->first).tasks);
            drop(current);
        }
    }

    // `receiver` listens to one channel less.
    void is_idle(const void* receiver) noexcept {
        if (const auto entry = active_.find(receiver); entry != active_.end() && --entry->second == 0)
            active_.erase(entry);
    }

    void drop(Channels::iterator entry) noexcept {
        for (const Interest& w : entry->second.listeners)
            if (w.active) is_idle(w.receiver);
        const auto dropped = channels_.extract(entry);
        try {
            subscribe_(dropped.key(), false);
        } catch (...) {  // no memory: later messages have no listener and are dropped
        }
    }

    // Adds the tasks that are not being destroyed. The caller destroys `tasks` after mutex_ was released.
    static void collect(const Channel& c, Tasks& tasks) {
        tasks.reserve(tasks.size() + c.listeners.size());  // so that no reference ends here for want of memory
        for (const Interest& w : c.listeners)
            if (auto who = w.who->weak_from_this().lock()) tasks.push_back(std::move(who));
    }

    template <class Change>
    Tasks listeners(const std::string& channel, Change change) {
        Tasks found;
        const std::lock_guard lock(mutex_);
        const auto entry = channels_.find(channel);
        if (entry == channels_.end()) return found;
        change(entry->second);
        collect(entry->second, found);
        return found;
    }

    const std::function<void(const std::string&, bool)> subscribe_;
    const std::function<void()> wake_;
    std::mutex mutex_;
    Channels channels_;
    std::unordered_map<const void*, std::size_t> active_;  // on how many channels each receiver listens, if on any
    Instant next_sweep_ = never;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
