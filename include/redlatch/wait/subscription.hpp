// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/session/background_task.hpp"
#include "redlatch/session/session.hpp"

#include <string>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The interest of one state in a channel, for as long as it wants messages. The mutex of that state guards it.
class Subscription {
public:
    // `listener` receives the messages of `channel`, and forwards them. `own_waiter`: True if a thread waits for this channel
    // alone; false if one thread waits for all channels of the listener.
    Subscription(Session& session, BackgroundTask& listener, std::string channel, bool own_waiter = false)
        : session_(session), listener_(listener), own_waiter_(own_waiter), channel_(std::move(channel)) {}
    Subscription(const Subscription&) = delete;
    Subscription& operator=(const Subscription&) = delete;
    ~Subscription() { session_.subscriptions().remove(channel_, listener_); }

    const std::string& channel() const noexcept { return channel_; }

    // Returns true if the server confirmed the subscription, so messages arrive.
    bool is_confirmed() const noexcept { return confirmed_; }

    // Returns true between listen() and stop(), unless the server refuses it.
    bool is_wanted() const noexcept { return listening_; }

    // Returns true if a thread that waits for messages may receive them itself.
    bool is_receivable() const noexcept { return listening_ && confirmed_; }

    // Begins to listen. Returns true if a message since the last query may have been missed: another state of this client
    // is already subscribed to this channel, and received it alone.
    bool listen() {
        if (listening_) return false;
        session_.start_background();
        const bool was_confirmed = confirmed_;
        confirmed_ = session_.subscriptions().acquire(channel_, listener_, own_waiter_ ? this : nullptr);
        listening_ = true;
        return confirmed_ && !was_confirmed;
    }

    void stop() {
        if (std::exchange(listening_, false)) session_.subscriptions().release(channel_, listener_);
    }

    // --- events of the channel --------------------------------------------------------------------------------

    void confirmed() noexcept { confirmed_ = true; }
    void disconnected() noexcept { confirmed_ = false; }
    void refused() noexcept { confirmed_ = listening_ = false; }

private:
    Session& session_;
    BackgroundTask& listener_;
    const bool own_waiter_;
    const std::string channel_;
    bool listening_ = false;  // true while it wants messages
    bool confirmed_ = false;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
