// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/session/background_task.hpp"
#include "redlatch/session/server_errors.hpp"
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
inline namespace v0_1 {

// Which channels this client listens to and for whom. A subscription is shared by all who want its channel, and is
// kept for a while after the last of them lost interest: a contended lock would otherwise subscribe again and again.
//
// mutex_ guards all members. It may be taken while the mutex of a BackgroundTask is held, never the other way round: what
// is told to a BackgroundTask is told after mutex_ was released.
class Subscriptions final : public Listener {
public:
    static constexpr Milliseconds keep_warm = std::chrono::seconds(5);
    static constexpr Milliseconds try_again{200};

    // `subscribe(channel, wanted)` passes a wish on to the transport; `wake` makes the background thread look anew.
    Subscriptions(std::function<void(const std::string&, bool)> subscribe, std::function<void()> wake)
        : subscribe_(std::move(subscribe)), wake_(std::move(wake)) {}

    // From now on `who` is told of messages. True when the subscription is already confirmed; otherwise it will be
    // told when that is so.
    bool want(const std::string& channel, BackgroundTask& who) {
        const std::lock_guard lock(mutex_);
        auto [entry, is_new] = channels_.try_emplace(channel);
        Channel& c = entry->second;
        auto mine =
            std::find_if(c.listeners.begin(), c.listeners.end(), [&](const Interest& w) { return w.who == &who; });
        try {
            if (mine == c.listeners.end()) mine = c.listeners.insert(c.listeners.end(), Interest{&who, false});
            if (is_new) subscribe_(channel, true);
        } catch (...) {
            if (is_new) channels_.erase(entry);
            throw;
        }
        if (!mine->keen) {
            mine->keen = true;
            ++c.keen;
            ++keen_;
        }
        // Where another's subscription is still to be confirmed, perhaps nobody receives at the moment.
        if (!is_new && !c.confirmed) wake_();
        return c.confirmed;
    }

    // `who` can do without for now; it may still be told for a while.
    void rest(const std::string& channel, const BackgroundTask& who) {
        bool look_anew = false;
        {
            const std::lock_guard lock(mutex_);
            const auto entry = channels_.find(channel);
            if (entry == channels_.end()) return;
            for (Interest& w : entry->second.listeners)
                if (w.who == &who && w.keen) {
                    w.keen = false;
                    --keen_;
                    if (--entry->second.keen == 0) entry->second.idle_since = Clock::now();
                }
            look_anew = next_sweep_ == never;
            if (look_anew) next_sweep_ = Clock::now() + keep_warm;
        }
        if (look_anew) wake_();
    }

    // Whether more than one state has waiters, be it on different channels or, as both sides of a read-write lock, on
    // one.
    bool has_several_keen() {
        const std::lock_guard lock(mutex_);
        return keen_ > 1;
    }

    // For a destructor: after it, `who` is told nothing any more.
    void forget(const std::string& channel, const BackgroundTask& who) {
        const std::lock_guard lock(mutex_);
        const auto entry = channels_.find(channel);
        if (entry == channels_.end()) return;
        Channel& c = entry->second;
        std::erase_if(c.listeners, [&](const Interest& w) {
            if (w.who != &who) return false;
            if (w.keen) {
                --c.keen;
                --keen_;
            }
            return true;
        });
        if (c.listeners.empty()) drop(entry);
    }

    // --- the background thread --------------------------------------------------------------------------------

    // When sweep() has something to do.
    Instant due() {
        const std::lock_guard lock(mutex_);
        return next_sweep_;
    }

    // Gives up the channels that nobody has wanted for a while.
    void sweep(Instant now) {
        std::vector<std::shared_ptr<BackgroundTask>> dropped;
        sweep(now, dropped);
        for (const auto& who : dropped) who->disconnected();
    }

    void subscribed(const std::string& channel) override {
        for (const auto& who : listeners(channel, [](Channel& c) { c.confirmed = true; })) who->subscribed();
    }

    void refused(const std::string& channel, const Reply& why) override {
        std::vector<std::shared_ptr<BackgroundTask>> told;
        {
            const std::lock_guard lock(mutex_);
            const auto entry = channels_.find(channel);
            if (entry == channels_.end()) return;
            if (judge(why) == ReplyClass::refused_now) {
                // Busy, loading, too many clients: asked again in a moment. Waiters have their other means until then.
                entry->second.ask_again = true;
                next_sweep_ = std::min(next_sweep_, Clock::now() + try_again);
                return;
            }
            told = alive(entry->second);
            drop(entry);
        }
        for (const auto& who : told) who->subscription_refused(why);
    }

    void message(const std::string& channel, std::string_view payload) override {
        for (const auto& who : listeners(channel, [](Channel&) {})) who->message(payload);
    }

    void disconnected() override {
        std::vector<std::shared_ptr<BackgroundTask>> told;
        {
            const std::lock_guard lock(mutex_);
            for (auto& [_, c] : channels_) {
                c.confirmed = false;
                for (auto& who : alive(c)) told.push_back(std::move(who));
            }
        }
        for (const auto& who : told) who->disconnected();
    }

    void interrupted(const std::string& channel) override {
        for (const auto& who : listeners(channel, [](Channel& c) { c.confirmed = false; })) who->disconnected();
    }

private:
    struct Interest {
        BackgroundTask* who;
        bool keen;  // has waiters now
    };

    struct Channel {
        std::vector<Interest> listeners;
        std::size_t keen = 0;  // how many of them are
        bool confirmed = false;
        bool ask_again = false;  // refused for the moment
        Instant idle_since{};
    };

    using Channels = std::unordered_map<std::string, Channel>;

    void sweep(Instant now, std::vector<std::shared_ptr<BackgroundTask>>& dropped) {
        const std::lock_guard lock(mutex_);
        if (now < next_sweep_) return;
        next_sweep_ = never;
        for (auto entry = channels_.begin(); entry != channels_.end();) {
            const auto current = entry++;
            if (std::exchange(current->second.ask_again, false)) subscribe_(current->first, true);
            if (current->second.keen > 0) continue;
            if (now < current->second.idle_since + keep_warm) {
                next_sweep_ = std::min(next_sweep_, current->second.idle_since + keep_warm);
                continue;
            }
            for (auto& who : alive(current->second)) dropped.push_back(std::move(who));
            drop(current);
        }
    }

    void drop(Channels::iterator entry) noexcept {
        keen_ -= entry->second.keen;
        const auto dropped = channels_.extract(entry);
        try {
            subscribe_(dropped.key(), false);
        } catch (...) {  // no memory for it: messages that still come are for nobody
        }
    }

    static std::vector<std::shared_ptr<BackgroundTask>> alive(const Channel& c) {
        std::vector<std::shared_ptr<BackgroundTask>> found;
        for (const Interest& w : c.listeners)
            if (auto who = w.who->weak_from_this().lock()) found.push_back(std::move(who));
        return found;
    }

    template <class Change>
    std::vector<std::shared_ptr<BackgroundTask>> listeners(const std::string& channel, Change change) {
        const std::lock_guard lock(mutex_);
        const auto entry = channels_.find(channel);
        if (entry == channels_.end()) return {};
        change(entry->second);
        return alive(entry->second);
    }

    const std::function<void(const std::string&, bool)> subscribe_;
    const std::function<void()> wake_;
    std::mutex mutex_;
    Channels channels_;
    std::size_t keen_ = 0;  // wishes, of all channels
    Instant next_sweep_ = never;
};

}  // namespace v0_1
}  // namespace redlatch
