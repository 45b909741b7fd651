// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/error.hpp"
#include "redlatch/redis/cluster.hpp"
#include "redlatch/redis/deployment.hpp"
#include "redlatch/redis/hiredis_transport.hpp"
#include "redlatch/redis/sentinel_deployment.hpp"
#include "redlatch/redis/standalone.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {

inline Url with_tls(Url url, std::shared_ptr<const TlsConnector> tls) {
    if (tls) url.tls_connector = std::move(tls);
    if (url.tls && !url.tls_connector)
        throw Error(errc::unsupported, {},
                    "this program has no TLS support; include redlatch/tls.hpp, set ClientOptions::tls to "
                    "redlatch::tls(), and link OpenSSL (Debian, Ubuntu: libssl-dev; Fedora: openssl-devel; CMake: "
                    "redlatch::tls)");
    return url;
}

inline std::unique_ptr<Deployment> make_deployment(const Url& url, Milliseconds timeout, PubSub pubsub) {
    if (!url.cluster.empty()) return std::make_unique<Cluster>(url, timeout, pubsub);
    if (!url.sentinels.empty()) return std::make_unique<SentinelDeployment>(url, timeout);
    return std::make_unique<Standalone>(url, timeout);
}

}  // namespace detail

REDLATCH_INLINE HiredisTransport::HiredisTransport(Url url, Milliseconds command_timeout,
                                                   std::shared_ptr<const detail::TlsConnector> tls, PubSub pubsub)
    : url_(detail::with_tls(std::move(url), std::move(tls))),
      timeout_(command_timeout),
      pubsub_(pubsub),
      deployment_(detail::make_deployment(url_, timeout_, pubsub_)) {}

REDLATCH_INLINE HiredisTransport::HiredisTransport(HiredisTransport&&) noexcept = default;

REDLATCH_INLINE HiredisTransport& HiredisTransport::operator=(HiredisTransport&&) noexcept = default;

REDLATCH_INLINE HiredisTransport::~HiredisTransport() = default;

REDLATCH_INLINE Reply HiredisTransport::call(const Command& command, Instant deadline) {
    return deployment_->call(command, deadline);
}

REDLATCH_INLINE std::vector<Reply> HiredisTransport::call_all(std::span<const Command> commands, Instant deadline) {
    return deployment_->call_all(commands, deadline);
}

REDLATCH_INLINE void HiredisTransport::post(const Command& command, Completion done) {
    deployment_->post(command, std::move(done));
}

REDLATCH_INLINE void HiredisTransport::post_all(std::span<const Command> commands, std::span<Completion> done) {
    deployment_->post_all(commands, done);
}

REDLATCH_INLINE void HiredisTransport::post_attended(const Command& command, Completion done) {
    deployment_->post_attended(command, std::move(done));
}

REDLATCH_INLINE void HiredisTransport::attend() { deployment_->attend(); }

REDLATCH_INLINE void HiredisTransport::subscribe(const std::string& channel) { deployment_->subscribe(channel); }

REDLATCH_INLINE void HiredisTransport::unsubscribe(const std::string& channel) { deployment_->unsubscribe(channel); }

REDLATCH_INLINE void HiredisTransport::run(Listener& listener, Instant deadline) {
    deployment_->run(listener, deadline);
}

REDLATCH_INLINE void HiredisTransport::wake() { deployment_->wake(); }

REDLATCH_INLINE bool HiredisTransport::watch(Listener& listener, Instant deadline, std::uint64_t seen) {
    return deployment_->watch(listener, deadline, seen);
}

REDLATCH_INLINE void HiredisTransport::track(const Command& read, Completion done) {
    deployment_->track(read, std::move(done));
}

REDLATCH_INLINE bool HiredisTransport::watch_invalidations(Listener& listener, Instant deadline, std::uint64_t seen) {
    return deployment_->watch_invalidations(listener, deadline, seen);
}

REDLATCH_INLINE std::uint64_t HiredisTransport::interrupts() const noexcept { return deployment_->interrupts(); }

REDLATCH_INLINE void HiredisTransport::interrupt_watch() { deployment_->interrupt_watch(); }

REDLATCH_INLINE std::uint32_t HiredisTransport::route(std::string_view key) const noexcept {
    return deployment_->route(key);
}

REDLATCH_INLINE std::string_view HiredisTransport::publish_command() const { return deployment_->publish_command(); }

REDLATCH_INLINE std::optional<Instant> HiredisTransport::same_server_since() const noexcept {
    return deployment_->same_server_since();
}

REDLATCH_INLINE std::uint64_t HiredisTransport::connections() const { return deployment_->connections(); }

REDLATCH_INLINE std::uint64_t HiredisTransport::reconnects() const { return deployment_->reconnects(); }

REDLATCH_INLINE HiredisTransport HiredisTransport::clone_after_fork() {
    deployment_->close_inherited();
    return HiredisTransport(url_, timeout_, url_.tls_connector, pubsub_);
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
