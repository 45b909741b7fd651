// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/config.hpp"
#include "redlatch/base/quoted.hpp"
#include "redlatch/base/url.hpp"
#include "redlatch/error.hpp"

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {

REDLATCH_INLINE std::string HostPort::display() const {
    return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

REDLATCH_INLINE std::string Url::display() const {
    if (!path.empty()) return "unix://" + path;
    if (!sentinels.empty()) return "the master " + detail::in_quotes(master, 60);
    if (!cluster.empty()) return "the cluster of " + cluster.front().display();
    return HostPort{host, port}.display();
}

REDLATCH_INLINE Url Url::at(const HostPort& place) const {
    Url url = *this;
    url.host = place.host;
    url.port = place.port;
    url.sentinels.clear();
    url.master.clear();
    url.cluster.clear();
    return url;
}

namespace detail {

[[noreturn]] inline void bad_url(const std::string& what) {
    throw Error(errc::invalid_argument, {},
                what +
                    "; a URL has the form redis://[user[:password]@]host[:port][/db], unix:///path?db=n, "
                    "redis-sentinel://[user[:password]@]host[:port],.../master[/db] or "
                    "redis-cluster://[user[:password]@]host[:port],...; for TLS, it begins with rediss");
}

inline std::string percent_decoded(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '%') {
            out += text[i];
            continue;
        }
        unsigned byte = 0;
        const std::string_view hex = text.substr(i + 1, 2);
        const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), byte, 16);
        if (error != std::errc{} || hex.size() != 2 || end != hex.data() + 2)
            bad_url("a % must be followed by two hex digits");
        out += static_cast<char>(byte);
        i += 2;
    }
    return out;
}

inline std::uint32_t url_number(std::string_view text, std::uint32_t least, std::uint32_t most, const char* what) {
    std::uint32_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || end != text.data() + text.size() || number < least || number > most)
        bad_url(std::string(what) + " must be a number from " + std::to_string(least) + " to " + std::to_string(most));
    return number;
}

// Redis itself decides which databases exist; the limit only keeps the number in range.
inline std::uint32_t url_database(std::string_view text) { return url_number(text, 0, 1'000'000, "the database"); }

// Removes the part before the '@', if there is one, and stores its user and password in `url`.
inline void take_login(Url& url, std::string_view& rest) {
    const auto at = rest.rfind('@');
    if (at == std::string_view::npos) return;
    const std::string_view login = rest.substr(0, at);
    const auto colon = login.find(':');
    url.user = percent_decoded(login.substr(0, colon));
    if (colon != std::string_view::npos) url.password = percent_decoded(login.substr(colon + 1));
    if (!url.user.empty() && url.password.empty()) bad_url("a URL with a user needs a password");
    rest = rest.substr(at + 1);
}

inline HostPort host_port(std::string_view rest, std::uint16_t usual_port) {
    HostPort place{{}, usual_port};
    std::string_view port;
    bool has_port = false;
    if (rest.starts_with('[')) {
        const auto close = rest.find(']');
        if (close == std::string_view::npos) bad_url("an IPv6 address needs its closing bracket");
        place.host = rest.substr(1, close - 1);
        rest = rest.substr(close + 1);
        if (!rest.empty() && !rest.starts_with(':')) bad_url("only a port may follow the bracket");
        has_port = !rest.empty();
        if (has_port) port = rest.substr(1);
    } else {
        const auto colon = rest.find(':');
        place.host = rest.substr(0, colon);
        has_port = colon != std::string_view::npos;
        if (has_port) port = rest.substr(colon + 1);
    }
    if (place.host.empty()) bad_url("the host is missing");
    for (const char c : place.host)
        if (static_cast<unsigned char>(c) <= 0x20 || c == 0x7f)
            bad_url("the host contains a blank or a control character");
    if (has_port) place.port = static_cast<std::uint16_t>(url_number(port, 1, 65535, "the port"));
    return place;
}

// Parses a list separated by commas.
inline std::vector<HostPort> host_ports(std::string_view hosts, std::uint16_t usual_port) {
    std::vector<HostPort> places;
    for (bool more = true; more;) {
        const auto comma = hosts.find(',');
        places.push_back(host_port(hosts.substr(0, comma), usual_port));
        more = comma != std::string_view::npos;
        if (more) hosts = hosts.substr(comma + 1);
    }
    return places;
}

inline Url parse_unix_url(std::string_view rest) {
    Url url;
    if (const auto query = rest.find('?'); query != std::string_view::npos) {
        const std::string_view db = rest.substr(query + 1);
        if (!db.starts_with("db=")) bad_url("the only option of a unix URL is ?db=n");
        url.database = url_database(db.substr(3));
        rest = rest.substr(0, query);
    }
    if (!rest.starts_with('/')) take_login(url, rest);
    url.path = percent_decoded(rest);
    if (!url.path.starts_with('/')) bad_url("the path of a unix socket must be absolute");
    if (url.path.find('\0') != std::string::npos) bad_url("the path of a unix socket must not contain a zero byte");
    // sun_path has room for 107 characters and the zero at the end (104 in all on BSD and macOS).
    if (url.path.size() > 107) bad_url("the path of a unix socket must not exceed 107 bytes");
    return url;
}

inline Url parse_tcp_url(std::string_view rest) {
    Url url;
    take_login(url, rest);
    if (const auto slash = rest.find('/'); slash != std::string_view::npos) {
        if (slash + 1 < rest.size()) url.database = url_database(rest.substr(slash + 1));
        rest = rest.substr(0, slash);
    }
    const HostPort place = host_port(rest, 6379);
    url.host = place.host;
    url.port = place.port;
    return url;
}

inline Url parse_sentinel_url(std::string_view rest) {
    Url url;
    take_login(url, rest);
    const auto slash = rest.find('/');
    if (slash == std::string_view::npos) bad_url("the name of the master is missing");
    std::string_view hosts = rest.substr(0, slash);
    rest = rest.substr(slash + 1);
    const auto second = rest.find('/');
    url.master = percent_decoded(rest.substr(0, second));
    if (url.master.empty()) bad_url("the name of the master is missing");
    if (second != std::string_view::npos && second + 1 < rest.size())
        url.database = url_database(rest.substr(second + 1));
    url.sentinels = host_ports(hosts, 26379);
    return url;
}

inline Url parse_cluster_url(std::string_view rest) {
    Url url;
    take_login(url, rest);
    if (const auto slash = rest.find('/'); slash != std::string_view::npos) {
        if (slash + 1 < rest.size()) bad_url("a cluster has only database 0; leave out the number");
        rest = rest.substr(0, slash);
    }
    url.cluster = host_ports(rest, 6379);
    return url;
}

inline Url by_tls(Url url) {
    url.tls = true;
    return url;
}

}  // namespace detail

REDLATCH_INLINE Url Url::parse(std::string_view text) {
    const auto mark = text.find("://");
    if (mark == std::string_view::npos) detail::bad_url("the scheme is missing");
    const std::string_view scheme = text.substr(0, mark);
    const std::string_view rest = text.substr(mark + 3);
    if (scheme == "redis") return detail::parse_tcp_url(rest);
    if (scheme == "unix") return detail::parse_unix_url(rest);
    if (scheme == "redis-sentinel") return detail::parse_sentinel_url(rest);
    if (scheme == "redis-cluster") return detail::parse_cluster_url(rest);
    if (scheme == "rediss") return detail::by_tls(detail::parse_tcp_url(rest));
    if (scheme == "rediss-sentinel") return detail::by_tls(detail::parse_sentinel_url(rest));
    if (scheme == "rediss-cluster") return detail::by_tls(detail::parse_cluster_url(rest));
    // Not quoted: in a mangled URL a password may stand where the scheme should be.
    detail::bad_url("the scheme is unknown");
}

}  // namespace REDLATCH_ABI
}  // namespace redlatch
