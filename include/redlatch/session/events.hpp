// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/options.hpp"
#include "redlatch/session/notifier.hpp"

#include <atomic>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Passes events on to the user's handler, and tracks whether the server can be reached: that is an event only when it
// changes. Any thread may call anything, with any lock held; the handler runs on the thread of the Notifier.
class Events {
public:
    explicit Events(const ClientOptions& options) : options_(options) {}
    Events(const Events&) = delete;
    Events& operator=(const Events&) = delete;

    // Starts the thread for the handler, if there is one. Throws std::system_error if it cannot.
    void start() {
        if (options_.on_event) notifier_.start();
    }

    // Notifies the user's handler. Drops the event if memory is short.
    void raise(Event::Kind kind, std::string_view name, std::string_view detail) noexcept {
        if (!options_.on_event) return;
        try {
            notifier_.notify([handler = options_.on_event,
                              event = Event{kind, std::string(name), std::string(detail)}] { handler(event); });
        } catch (...) {
        }
    }

    void on_disconnect(std::string_view why) noexcept {
        if (!away_.exchange(true)) raise(Event::Kind::disconnected, {}, why);
    }

    void on_reconnect() noexcept {
        if (away_.load(std::memory_order_relaxed) && away_.exchange(false))
            raise(Event::Kind::reconnected, {}, "the server replies again");
    }

private:
    const ClientOptions& options_;
    std::atomic<bool> away_{false};
    Notifier notifier_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
