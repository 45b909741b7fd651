// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/transport/transport.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace redlatch {
inline namespace v0_1 {

class TlsConnector;

// Something that no return value can tell, because it happens between two calls.
struct Event {
    enum class Kind {
        hold_lost,             // a hold ended before its unlock; its lost() token is requested
        unlock_not_delivered,  // a release could not be delivered before its lease was over
        disconnected,          // the server cannot be reached
        reconnected,           // and is back
        moved,                 // another server is the master now; every hold is asked for there
    };

    Kind kind;
    std::string name;    // of the primitive; empty for the connection
    std::string detail;  // in words, for a log
};

// Counters since the client was made.
struct Stats {
    std::uint64_t commands = 0;      // sent to the server by callers and in the background, resent ones included
    std::uint64_t acquisitions = 0;  // holds taken, by whatever way
    std::uint64_t waits = 0;         // acquisitions that had to wait for another holder
    std::uint64_t handoffs = 0;      // holds passed to a waiting thread of this process
    std::uint64_t renewals = 0;      // holds whose lease the watchdog prolonged, once each time
    std::uint64_t lost_holds = 0;
    std::uint64_t resends = 0;  // commands sent again after a lost connection or a refusal
    std::uint64_t reconnects = 0;
};

// For ClientOptions::require_replicas: every replica that the master has had since the client found it, and one at
// least.
inline constexpr unsigned all_replicas = ~0U;

struct ClientOptions {
    // The lease of a hold taken without one. It is renewed every third of it, so a crashed holder blocks others no
    // longer than this.
    Milliseconds watchdog_timeout = std::chrono::seconds(30);
    // How long a server may take to answer a command before its connection is taken for dead.
    Milliseconds command_timeout = std::chrono::seconds(3);
    // How long a call without a deadline goes on trying to reach a server before it throws errc::unreachable.
    Milliseconds unreachable_timeout = std::chrono::seconds(30);
    // Put before every name: the namespace of an application on a shared server.
    std::string key_prefix = {};
    // How often in a row a released lock goes to a waiting thread of this process before other processes get a turn.
    unsigned local_handoff_limit = 16;
    // How many replicas have to confirm every hold and every permit, within a quarter of command_timeout, so that a
    // failover to one of them does not forget it. With fewer it is given back, and the operation fails with
    // errc::not_replicated; a renewal that they do not confirm counts as none. A command more with each, in the same
    // round trip.
    unsigned require_replicas = 0;
    // For a rediss:// URL, which is the one that says whether there is TLS: redlatch::tls(...) of redlatch/tls.hpp.
    std::shared_ptr<const TlsConnector> tls = {};
    // Of a redis-cluster:// URL: the kind of channels by which waiters are woken. All clients of a lock must use the
    // same.
    PubSub pubsub = PubSub::automatic;
    // Called on a thread of the client's, one event at a time, with no lock held. What it throws is swallowed. It may
    // use the library; while it blocks, later events wait, but renewals, wake-ups and lost() requests do not.
    std::function<void(const Event&)> on_event = {};
};

}  // namespace v0_1
}  // namespace redlatch
