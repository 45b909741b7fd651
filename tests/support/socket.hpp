// SPDX-License-Identifier: MIT
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace redlatch::test {

[[noreturn]] inline void throw_errno(const std::string& what) {
    throw std::system_error(errno, std::generic_category(), what);
}

/// Repeats the call as long as a signal interrupts it.
template <class Call>
auto without_eintr(Call&& call) {
    while (true) {
        const auto result = call();
        if (result != -1 || errno != EINTR) return result;
    }
}

/// Owns a file descriptor.
class Fd {
public:
    Fd() = default;
    explicit Fd(int fd) noexcept : fd_(fd) {}
    Fd(Fd&& other) noexcept : fd_(other.release()) {}
    Fd& operator=(Fd&& other) noexcept {
        if (this != &other) reset(other.release());
        return *this;
    }
    ~Fd() { reset(); }

    int get() const noexcept { return fd_; }
    explicit operator bool() const noexcept { return fd_ >= 0; }
    int release() noexcept { return std::exchange(fd_, -1); }
    void reset(int fd = -1) noexcept {
        if (fd_ >= 0) ::close(fd_);
        fd_ = fd;
    }

private:
    int fd_ = -1;
};

/// An address to listen on: a unix socket, or a port of 127.0.0.1.
struct Endpoint {
    std::string path = {};
    int port = 0;

    /// Takes unix:///path, redis://127.0.0.1:port, or a bare path.
    static Endpoint parse(const std::string& url) {
        constexpr std::string_view unix_scheme = "unix://";
        constexpr std::string_view tcp_scheme = "redis://";
        if (url.starts_with(unix_scheme)) return {url.substr(unix_scheme.size(), url.find('?') - unix_scheme.size())};
        if (!url.starts_with(tcp_scheme)) return {url};
        const auto colon = url.rfind(':');
        if (colon < tcp_scheme.size()) throw std::invalid_argument("no port in " + url);
        return {{}, std::atoi(url.c_str() + colon + 1)};
    }

    std::string url() const { return path.empty() ? "redis://127.0.0.1:" + std::to_string(port) : "unix://" + path; }
};

namespace detail {

/// A socket address of either family, for bind and connect.
struct Address {
    explicit Address(const Endpoint& endpoint) {
        if (endpoint.path.empty()) {
            size = sizeof in;
            in.sin_family = AF_INET;
            in.sin_port = htons(static_cast<std::uint16_t>(endpoint.port));
            in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        } else {
            if (endpoint.path.size() >= sizeof un.sun_path) throw std::invalid_argument("too long: " + endpoint.path);
            size = sizeof un;
            un.sun_family = AF_UNIX;
            endpoint.path.copy(un.sun_path, sizeof un.sun_path - 1);
        }
    }

    int family() const { return size == sizeof in ? AF_INET : AF_UNIX; }
    const sockaddr* get() const {
        return family() == AF_INET ? reinterpret_cast<const sockaddr*>(&in) : reinterpret_cast<const sockaddr*>(&un);
    }

    socklen_t size = 0;
    sockaddr_in in{};
    sockaddr_un un{};
};

inline Fd new_socket(int family) {
    Fd fd{::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)};
    if (!fd) throw_errno("socket");
    const int on = 1;
    if (family == AF_INET) ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

}  // namespace detail

/// Non-blocking, close-on-exec. Throws when the address is taken.
inline Fd listen_on(const Endpoint& endpoint) {
    const detail::Address address{endpoint};
    Fd fd = detail::new_socket(address.family());
    const int on = 1;
    if (address.family() == AF_INET) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (::bind(fd.get(), address.get(), address.size) != 0) throw_errno("bind " + endpoint.url());
    if (::listen(fd.get(), 512) != 0) throw_errno("listen " + endpoint.url());
    return fd;
}

/// Begins to connect, non-blocking. The result is empty if nothing listens there (errno has the reason).
inline Fd begin_connect(const Endpoint& endpoint) {
    const detail::Address address{endpoint};
    Fd fd = detail::new_socket(address.family());
    if (::connect(fd.get(), address.get(), address.size) == 0 || errno == EINPROGRESS || errno == EINTR) return fd;
    const int error = errno;
    fd.reset();
    errno = error;
    return fd;
}

/// Returns true when one of the events (or an error) occurs, false at the deadline.
inline bool wait_for(const Fd& fd, short events, std::chrono::steady_clock::time_point deadline) {
    while (true) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
        pollfd poll_for{fd.get(), events, 0};
        const int ready = ::poll(&poll_for, 1, left.count() > 0 ? static_cast<int>(left.count()) : 0);
        if (ready > 0) return true;
        if (ready == 0) return false;
        if (errno != EINTR) throw_errno("poll");
    }
}

/// Connects. Throws if nothing listens there or the deadline passes. The result is non-blocking and close-on-exec.
inline Fd connect_to(const Endpoint& endpoint, std::chrono::steady_clock::time_point deadline) {
    while (true) {
        Fd fd = begin_connect(endpoint);
        if (fd) {
            int error = 0;
            socklen_t size = sizeof error;
            if (!wait_for(fd, POLLOUT, deadline)) error = ETIMEDOUT;
            if (error == 0) ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
            if (error == 0) return fd;
            errno = error;
        }
        // EAGAIN: the queue of a unix socket is full.
        if (errno != EAGAIN || std::chrono::steady_clock::now() >= deadline) throw_errno("connect " + endpoint.url());
        std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
}

/// Writes everything or throws; never raises SIGPIPE.
inline void send_all(const Fd& fd, std::string_view bytes, std::chrono::steady_clock::time_point deadline) {
    while (!bytes.empty()) {
        const ssize_t sent = without_eintr([&] { return ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); });
        if (sent >= 0) {
            bytes.remove_prefix(static_cast<std::size_t>(sent));
        } else if (errno != EAGAIN && errno != ENOTCONN) {
            throw_errno("send");
        } else if (!wait_for(fd, POLLOUT, deadline)) {
            errno = ETIMEDOUT;
            throw_errno("send");
        }
    }
}

enum class ReadState { data, would_block, closed };

/// Appends the bytes that are available now, at most `most`. A reset counts as closed.
inline ReadState read_some(const Fd& fd, std::string& to, std::size_t most = 64 * 1024) {
    const auto before = to.size();
    to.resize(before + most);
    const ssize_t got = without_eintr([&] { return ::recv(fd.get(), to.data() + before, most, 0); });
    const int error = errno;
    to.resize(before + (got > 0 ? static_cast<std::size_t>(got) : 0));
    if (got > 0) return ReadState::data;
    if (got == 0) return ReadState::closed;
    return error == EAGAIN || error == ENOTCONN ? ReadState::would_block : ReadState::closed;
}

/// Returns a port of 127.0.0.1 that was free a moment ago. Another program may take it, so be ready to try again.
///
/// Chooses it below the range that the kernel uses for outgoing connections. A client that keeps connecting to a dead
/// server on a port of that range is, sooner or later, connected to itself, and then occupies the port.
inline int pick_free_port() {
    int first_outgoing = 0;
    std::ifstream{"/proc/sys/net/ipv4/ip_local_port_range"} >> first_outgoing;
    std::random_device random;
    for (int attempt = 0; attempt < 200; ++attempt) {
        int port = 0;
        if (first_outgoing > 12'000) port = std::uniform_int_distribution{10'000, first_outgoing - 1}(random);
        const detail::Address address{Endpoint{{}, port}};
        const Fd fd = detail::new_socket(AF_INET);
        if (::bind(fd.get(), address.get(), address.size) != 0) continue;
        sockaddr_in bound{};
        socklen_t size = sizeof bound;
        if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) throw_errno("getsockname");
        return ntohs(bound.sin_port);
    }
    throw std::runtime_error("no free port on 127.0.0.1");
}

}  // namespace redlatch::test
