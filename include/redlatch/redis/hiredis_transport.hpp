// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/base/url.hpp"
#include "redlatch/transport/reply.hpp"
#include "redlatch/transport/transport.hpp"

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
class Deployment;
class TlsConnector;
}  // namespace detail

// The Transport over Redis, on hiredis (0.14.1 or newer). The URL selects the deployment, which does the work: one
// server, the present master that sentinels name, or a cluster.
class HiredisTransport {
public:
    // Connects to nothing yet. `command_timeout`: how long a server may take to answer before its connection counts as
    // dead. `tls`: the TLS implementation; throws Error(errc::unsupported) if the URL demands TLS and there is none.
    // `pubsub`: for clusters only.
    explicit HiredisTransport(Url url, Milliseconds command_timeout = std::chrono::seconds(3),
                              std::shared_ptr<const detail::TlsConnector> tls = nullptr,
                              PubSub pubsub = PubSub::automatic);
    // Takes over the connections. The other one must not be used any more.
    HiredisTransport(HiredisTransport&&) noexcept;

    // Closes its own connections and takes over the others. The other one must not be used any more.
    HiredisTransport& operator=(HiredisTransport&&) noexcept;

    // Closes the connections.
    ~HiredisTransport();

    // Sends and waits for the reply: see CallsAndWaits.
    Reply call(const Command& command, Instant deadline);

    // Sends several commands in one write and waits for their replies: see CallsSeveral.
    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline);

    // Sends without waiting: see Posts.
    void post(const Command& command, Completion done);

    // Sends several commands in one write, without waiting: see PostsSeveral.
    void post_all(std::span<const Command> commands, std::span<Completion> done);

    // Sends a command of which this thread will receive the reply with attend(): see LetsAttend.
    void post_attended(const Command& command, Completion done);

    // Takes the replies that have arrived, and does not wait: see LetsAttend.
    void attend();

    // Subscribes to the channel; the listener of run() receives the outcome: see Subscribes.
    void subscribe(const std::string& channel);

    // Ends the subscription to the channel: see Subscribes.
    void unsubscribe(const std::string& channel);

    // Handles subscriptions and posted commands until the deadline, a notification or wake(): see Subscribes.
    void run(Listener& listener, Instant deadline);

    // Makes run() return, even if it is called later: see Subscribes.
    void wake();

    // Receives in place of run(), in the thread that waits for a message: see LetsWatch.
    bool watch(Listener& listener, Instant deadline, std::uint64_t seen);

    // Reads a key, and makes the server tell when it changes: see Tracks.
    void track(const Command& read, Completion done);

    // Receives in place of run(), in the thread that waits for a change of a key: see Tracks.
    bool watch_invalidations(Listener& listener, Instant deadline, std::uint64_t seen);

    // Returns how often interrupt_watch() was called: see LetsWatch.
    std::uint64_t interrupts() const noexcept;

    // Makes watch() return: see LetsWatch.
    void interrupt_watch();

    // Returns where the key lives, in a cluster its slot: see Routes.
    std::uint32_t route(std::string_view key) const noexcept;

    // Returns PUBLISH or SPUBLISH: see Routes.
    std::string_view publish_command() const;

    // Returns a transport to the same servers for a forked child: see SurvivesFork.
    HiredisTransport clone_after_fork();

    // Returns when the last command connection was opened that is not the first, and nothing for a cluster: see TellsServer.
    std::optional<Instant> same_server_since() const noexcept;

    // Returns how many command connections were made.
    std::uint64_t connections() const;

    // Returns how many of the command connections replaced an earlier one.
    std::uint64_t reconnects() const;

private:
    Url url_;
    Milliseconds timeout_;
    PubSub pubsub_;
    std::unique_ptr<detail::Deployment> deployment_;  // stays where it is when the transport is moved
};

static_assert(Transport<HiredisTransport> && PostsSeveral<HiredisTransport> && Tracks<HiredisTransport>);

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/redis/hiredis_transport.ipp"
#endif
