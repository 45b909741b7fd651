// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/session/events.hpp"
#include "redlatch/session/registry.hpp"
#include "redlatch/session/remote_clock.hpp"
#include "redlatch/session/replica_acks.hpp"
#include "redlatch/session/subscriptions.hpp"
#include "redlatch/session/tracked_keys.hpp"
#include "redlatch/transport/transport.hpp"

#include <string>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What a session hears from its transport: passes everything on to the subscriptions, and tracks whether the server can
// be reached and whether it is another one.
class ConnectionListener final : public Listener {
public:
    ConnectionListener(Subscriptions& subscriptions, Events& events, Registry& registry, RemoteClock& clock,
                       ReplicaAcks& replicas, TrackedKeys& tracked)
        : subscriptions_(subscriptions),
          events_(events),
          registry_(registry),
          clock_(clock),
          replicas_(replicas),
          tracked_(tracked) {}
    ConnectionListener(const ConnectionListener&) = delete;
    ConnectionListener& operator=(const ConnectionListener&) = delete;

    void subscribed(const std::string& channel) override {
        events_.on_reconnect();
        subscriptions_.subscribed(channel);
    }

    void refused(const std::string& channel, const Reply& why) override { subscriptions_.refused(channel, why); }

    void message(const std::string& channel, std::string_view payload) override {
        subscriptions_.message(channel, payload);
    }

    void disconnected() override {
        clock_.disconnected();
        events_.on_disconnect("the connection to the server is lost");
        subscriptions_.disconnected();
    }

    void unreachable(const std::string& why) override { events_.on_disconnect(why); }

    void interrupted(const std::string& channel) override {
        clock_.disconnected();
        subscriptions_.interrupted(channel);
    }

    void invalidated(const std::string& key) override { tracked_.invalidated(key); }

    // Holds may be lost on the new server. Waiters wake when their subscription is made again.
    void on_failover() override {
        replicas_.forget();
        clock_.doubt();
        registry_.on_failover();
        events_.raise(Event::Kind::moved, {}, "another server is the master now");
    }

private:
    Subscriptions& subscriptions_;
    Events& events_;
    Registry& registry_;
    RemoteClock& clock_;
    ReplicaAcks& replicas_;
    TrackedKeys& tracked_;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
