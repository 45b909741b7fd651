// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/credentials.hpp"
#include "redlatch/base/time.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

namespace detail {
class TlsConnector;
}  // namespace detail

// The host and port of a server.
struct HostPort {
    std::string host;        // a name or an address, an IPv6 address without brackets
    std::uint16_t port = 0;  // 0: none

    // Returns true if host and port are the same text and number.
    bool operator==(const HostPort&) const = default;

    // Returns "host:port", with an IPv6 address in brackets.
    std::string display() const;
};

// Describes where a server is and how to log in:
//   redis://[user[:password]@]host[:port][/db]    host may be an IPv6 literal in brackets
//   redis://:password@host                        the default user
//   unix:///path/to/socket[?db=n]
//   redis-sentinel://[user[:password]@]host[:port][,host[:port]...]/master[/db]
//                                                 the sentinels and the master's name; the login is the master's
//   redis-cluster://[user[:password]@]host[:port][,host[:port]...]
//                                                 some nodes of a cluster; they report the others
//   rediss://…, rediss-sentinel://…, rediss-cluster://…
//                                                 the same over TLS; with Sentinel also to the sentinels
// User, password and path may be percent-encoded. No message of the parser quotes the part before an '@'.
struct Url {
    std::string host;                   // empty for a unix socket
    std::uint16_t port = 6379;          // ignored for a unix socket
    std::string path;                   // of the unix socket; empty for TCP
    std::string user;                   // empty: the default user
    std::string password;               // empty: no AUTH is sent
    std::uint32_t database = 0;         // the number for SELECT; always 0 in a cluster
    std::vector<HostPort> sentinels{};  // if set, host and path are empty
    std::string master{};               // Sentinel's name for the master
    std::vector<HostPort> cluster{};    // if set, host and path are empty
    bool tls = false;                   // if true, nothing is ever sent there unencrypted
    // Encrypts the connection. It is not part of the text; a transport sets it.
    std::shared_ptr<const detail::TlsConnector> tls_connector{};
    // The name of each connection, for CLIENT LIST; empty for none. It is not part of the text, either.
    std::string client_name{};
    // Returns the login of each connection in place of `user` and `password`; null for none. Not part of the text, either.
    std::shared_ptr<const std::function<Credentials()>> credentials{};
    // See ClientOptions::ping_interval. Not part of the text, either.
    Milliseconds ping_interval = std::chrono::seconds(15);

    // Parses a URL. Throws Error(errc::invalid_argument) if it is malformed.
    static Url parse(std::string_view text);

    // Returns a description of the server for messages and events, never with the login.
    std::string display() const;

    // Returns the same login for another server.
    Url at(const HostPort& place) const;
};

}  // namespace REDLATCH_ABI
}  // namespace redlatch

#ifndef REDLATCH_COMPILED
#include "redlatch/base/url.ipp"
#endif
