// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/url.hpp"
#include "redlatch/redis/cluster.hpp"
#include "redlatch/redis/deployment.hpp"
#include "redlatch/redis/sentinel_deployment.hpp"
#include "redlatch/redis/standalone.hpp"
#include "redlatch/transport/transport.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

// The Transport over Redis, on hiredis (0.14.1 or newer). The URL selects the deployment, which does the work: one
// server, the present master that sentinels name, or a cluster.
class HiredisTransport {
public:
    // Connects to nothing yet. `command_timeout`: how long a server may take to answer before its connection counts as
    // dead. `tls`: the TLS implementation; throws Error(errc::unsupported) if the URL demands TLS and there is none.
    // `pubsub`: for clusters only.
    explicit HiredisTransport(Url url, Milliseconds command_timeout = std::chrono::seconds(3),
                              std::shared_ptr<const detail::TlsConnector> tls = nullptr,
                              PubSub pubsub = PubSub::automatic)
        : url_(with_tls(std::move(url), std::move(tls))),
          timeout_(command_timeout),
          pubsub_(pubsub),
          deployment_(make_deployment(url_, timeout_, pubsub_)) {}

    Reply call(const Command& command, Instant deadline) { return deployment_->call(command, deadline); }
    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) {
        return deployment_->call_all(commands, deadline);
    }
    void post(const Command& command, Completion done) { deployment_->post(command, std::move(done)); }
    void post_all(std::span<const Command> commands, std::span<Completion> done) {
        deployment_->post_all(commands, done);
    }
    void post_attended(const Command& command, Completion done) {
        deployment_->post_attended(command, std::move(done));
    }
    void attend() { deployment_->attend(); }

    void subscribe(const std::string& channel) { deployment_->subscribe(channel); }
    void unsubscribe(const std::string& channel) { deployment_->unsubscribe(channel); }
    void run(Listener& listener, Instant deadline) { deployment_->run(listener, deadline); }
    void wake() { deployment_->wake(); }
    bool watch(Listener& listener, Instant deadline, std::uint64_t seen) {
        return deployment_->watch(listener, deadline, seen);
    }
    std::uint64_t interrupts() const noexcept { return deployment_->interrupts(); }
    void interrupt_watch() { deployment_->interrupt_watch(); }

    std::uint32_t route(std::string_view key) const noexcept { return deployment_->route(key); }
    std::string_view publish_command() const { return deployment_->publish_command(); }

    HiredisTransport clone_after_fork() {
        deployment_->close_inherited();
        return HiredisTransport(url_, timeout_, url_.tls_connector, pubsub_);
    }

    // Returns how many command connections were made, and below how many of them replaced an earlier one.
    std::uint64_t connections() const { return deployment_->connections(); }
    std::uint64_t reconnects() const { return deployment_->reconnects(); }

private:
    static Url with_tls(Url url, std::shared_ptr<const detail::TlsConnector> tls) {
        if (tls) url.tls_connector = std::move(tls);
        if (url.tls && !url.tls_connector)
            throw Error(errc::unsupported, {},
                        "this program has no TLS support; include redlatch/tls.hpp, set ClientOptions::tls to "
                        "redlatch::tls(), and link OpenSSL (Debian, Ubuntu: libssl-dev; Fedora: openssl-devel; CMake: "
                        "redlatch::tls)");
        return url;
    }

    static std::unique_ptr<detail::Deployment> make_deployment(const Url& url, Milliseconds timeout, PubSub pubsub) {
        if (!url.cluster.empty()) return std::make_unique<detail::Cluster>(url, timeout, pubsub);
        if (!url.sentinels.empty()) return std::make_unique<detail::SentinelDeployment>(url, timeout);
        return std::make_unique<detail::Standalone>(url, timeout);
    }

    Url url_;
    Milliseconds timeout_;
    PubSub pubsub_;
    std::unique_ptr<detail::Deployment> deployment_;  // stays where it is when the transport is moved
};

static_assert(Transport<HiredisTransport> && PostsSeveral<HiredisTransport>);

}  // namespace v0_1
}  // namespace redlatch
