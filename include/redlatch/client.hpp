// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/url.hpp"
#include "redlatch/options.hpp"
#include "redlatch/session/server_check.hpp"
#include "redlatch/session/session_handle.hpp"
#include "redlatch/transport/transport.hpp"

#if __has_include(<hiredis/read.h>)
#include "redlatch/redis/hiredis_transport.hpp"
#endif

#include <concepts>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace v0_1 {

class HiredisTransport;

// Connects to Redis and owns everything that the primitives made from it share: one identity, one watchdog and the
// background threads. The threads start with the first hold or wait. They end when the client and the last of its
// primitives are gone. Any number of threads may use a client at once. A primitive keeps alive what it needs, so it may
// outlive its client.
//
// The constructor does not connect; the first use does. If the server cannot be reached, the call that needs it fails.
template <class T>
class BasicClient {
    static_assert(detail::explain_transport<T>());

public:
    // Accepts redis://[user[:password]@]host[:port][/db], unix:///path[?db=n] and the other forms that Url parses.
    // Throws Error for a URL or an option that cannot work, and errc::unsupported for rediss:// without options.tls.
    explicit BasicClient(std::string_view url,
                         ClientOptions options = {}) requires std::constructible_from<T, Url, Milliseconds>
        : BasicClient(transport(Url::parse(url), checked(options)), options) {}

    explicit BasicClient(T transport, ClientOptions options = {})
        : core_(std::make_shared<detail::SessionHandle<T>>(std::move(transport), checked(options))) {}

    BasicClient(const BasicClient&) = delete;
    BasicClient& operator=(const BasicClient&) = delete;

    // Returns the random UUID of this client in this process. The owner of a hold is "<id>:<number>", with a new number
    // for each hold.
    std::string id() const { return core_->session().uuid(); }

    Stats stats() const { return core_->session().stats(); }

    // Returns one sentence for each property of the server that endangers the locks on it: eviction, persistence,
    // replicas, access rights, buffers. Returns an empty list if all is well. A property that this user has no right to
    // query is a warning, too. Takes about eight round trips. Creates a temporary key and deletes it. Meant for the
    // start of a service. Throws Error(errc::unreachable).
    std::vector<std::string> check_server() const { return detail::check_server(core_->session()); }

    // Used by the primitives.
    const std::shared_ptr<detail::SessionHandle<T>>& core() const noexcept { return core_; }

private:
    static T transport(Url url, const ClientOptions& options) {
        if constexpr (std::constructible_from<T, Url, Milliseconds, std::shared_ptr<const detail::TlsConnector>,
                                              PubSub>)
            return T(std::move(url), options.command_timeout, options.tls, options.pubsub);
        else
            return T(std::move(url), options.command_timeout);
    }

    static const ClientOptions& checked(const ClientOptions& options) {
        static_cast<void>(Lease(options.watchdog_timeout));
        if (options.watchdog_timeout < Milliseconds(30))
            throw Error(errc::invalid_argument, {}, "watchdog_timeout must be at least 30 ms");
        if (options.command_timeout < Milliseconds(1) || options.command_timeout > std::chrono::hours(1))
            throw Error(errc::invalid_argument, {}, "command_timeout must be from 1 ms to 1 h");
        if (options.unreachable_timeout < Milliseconds(0))
            throw Error(errc::invalid_argument, {}, "unreachable_timeout must not be negative");
        if (options.require_replicas > 0 && !PostsSeveral<T>)
            throw Error(errc::unsupported, {}, "require_replicas needs a transport with post_all()");
        if (!options.key_prefix.empty()) detail::check_name(options.key_prefix + "x");
        return options;
    }

    std::shared_ptr<detail::SessionHandle<T>> core_;
};

// A URL in any string type selects HiredisTransport.
// The client on the library's own transport. Each primitive has such a type, too. With a transport of your own, use
// BasicClient, BasicRLock and so on, which deduce it.
using Client = BasicClient<HiredisTransport>;

}  // namespace v0_1
}  // namespace redlatch
