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
    HiredisTransport(HiredisTransport&&) noexcept;
    HiredisTransport& operator=(HiredisTransport&&) noexcept;
    ~HiredisTransport();

    Reply call(const Command& command, Instant deadline);
    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline);
    void post(const Command& command, Completion done);
    void post_all(std::span<const Command> commands, std::span<Completion> done);
    void post_attended(const Command& command, Completion done);
    void attend();

    void subscribe(const std::string& channel);
    void unsubscribe(const std::string& channel);
    void run(Listener& listener, Instant deadline);
    void wake();
    bool watch(Listener& listener, Instant deadline, std::uint64_t seen);
    std::uint64_t interrupts() const noexcept;
    void interrupt_watch();

    std::uint32_t route(std::string_view key) const noexcept;
    std::string_view publish_command() const;

    HiredisTransport clone_after_fork();

    // Returns how many command connections were made, and below how many of them replaced an earlier one.
    std::uint64_t connections() const;
    std::uint64_t reconnects() const;

private:
    Url url_;
    Milliseconds timeout_;
    PubSub pubsub_;
    std::unique_ptr<detail::Deployment> deployment_;  // stays where it is when the transport is moved
};

static_assert(Transport<HiredisTransport> && PostsSeveral<HiredisTransport>);

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/redis/hiredis_transport.ipp"
#endif
