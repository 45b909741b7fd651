// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/options.hpp"
#include "redlatch/session/operation.hpp"
#include "redlatch/transport/transport.hpp"
#include "redlatch/transport/transport_port.hpp"

#include <chrono>
#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
class SessionHandle;
struct ClientAccess;
}  // namespace detail

// Connects to Redis and owns everything that the primitives made from it share: one identity, one watchdog and the
// background threads. The threads start with the first try, wait or posted command. They end when the client and the
// last of its primitives are gone. Any number of threads may use a client at once. A primitive keeps alive what it needs,
// so it may outlive its client.
//
// The constructor does not connect; the first use does. If the server cannot be reached, the call that needs it fails.
class Client {
public:
    // Connects by HiredisTransport. Accepts redis://[user[:password]@]host[:port][/db], unix:///path[?db=n] and the
    // other forms that Url parses. Throws Error for a URL or an option that cannot work, and errc::unsupported for
    // rediss:// without options.tls.
    explicit Client(std::string_view url, ClientOptions options = {});

    // Connects by a transport of your own.
    template <class T>
    requires(!std::convertible_to<const T&, std::string_view> &&
             !std::same_as<T, Client>) explicit Client(T transport, ClientOptions options = {})
        : Client(Port{}, port_of(std::move(transport)), std::move(options)) {}

    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;
    // Ends the threads and the connections, unless a primitive, a hold or an operation made from it still needs them: then
    // the last of these does. Waits for ClientOptions::credentials to return.
    ~Client();

    // Returns the random UUID of this client in this process. The owner of a hold is "<id>:<number>", with a new number
    // for each hold. If the user has no right to the queues of locks, the server names the owner with a 4 in the place of
    // the 8 of this UUID.
    std::string id() const;

    // Returns what the client has done since it was created, and the present state. Sends nothing. Thread-safe. The counts
    // are read one after another, so they may differ by what happens meanwhile.
    Stats stats() const;

    // Gives back every hold that this client has now, of threads and of Hold objects, and the permits of a
    // PermitExpirableSemaphore that its watchdog renews: for an orderly end of a service. Returns how many it gave back.
    // Permits with a lease of their own stay, and those of a Semaphore, which have no owner.
    //
    // The owners lose their holds: lost() is requested, hold_lost is raised, and their unlock() reports hold_lost
    // without a command. What other threads acquire meanwhile stays, so let them finish first. A MultiLock or RedLock
    // loses the members of this client.
    //
    // Sends one command for each hold, and one for each 1,000 permits of a semaphore, all in one round trip. Waits up to
    // command_timeout for the replies. Throws Error for what was not given back by then: unreachable, or what a server
    // replied. The client goes on delivering that in the background until its lease is over. With a std::error_code& it
    // stores the code, and still returns how many were given back. Thread-safe.
    std::size_t release_all();
    std::size_t release_all(std::error_code& ec);

    // Ends what the client does for objects, without a thread that waits: see Operation. The operations under way complete
    // at once with errc::cancelled, and so do those that are begun afterwards. Then gives back all holds as release_all()
    // does, with the same result, and waits up to `limit` for the replies: command_timeout by default. Calls that block a
    // thread are not ended; let those threads finish first.
    //   co_await redis.async_close();
    Operation<std::size_t> async_close();
    template <class Rep, class Period>
    Operation<std::size_t> async_close(std::chrono::duration<Rep, Period> limit) {
        return close_within(round_wait(limit));
    }

    // Returns one sentence for each property of the server that endangers the locks on it: eviction, persistence,
    // replicas, access rights, buffers. Returns an empty list if all is well. A property that this user has no right to
    // query is a warning, too. Takes about eight round trips. Creates a temporary key and deletes it. Meant for the
    // start of a service. Throws Error(errc::unreachable).
    std::vector<std::string> check_server() const;

private:
    friend struct detail::ClientAccess;

    struct Port {};

    template <class T>
    static std::unique_ptr<detail::TransportPort> port_of(T transport) {
        if constexpr (detail::explain_transport<T>())
            return std::make_unique<detail::TransportPortOf<T>>(std::move(transport));
    }

    Client(Port, std::unique_ptr<detail::TransportPort> transport, ClientOptions options);

    Operation<std::size_t> close_within(std::chrono::milliseconds limit);

    const std::shared_ptr<detail::SessionHandle> session_;
};

namespace detail {

// Used by the primitives.
struct ClientAccess {
    static const std::shared_ptr<SessionHandle>& session(const Client& client) { return client.session_; }
};

}  // namespace detail

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/client.ipp"
#endif
