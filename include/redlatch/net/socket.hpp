// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/convert.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/base/url.hpp"
#include "redlatch/net/resolver.hpp"
#include "redlatch/net/tls_session.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Returns the time-out for poll() until `deadline`, in ms: rounded up, so that poll() never returns early and spins.
inline int poll_timeout(Instant deadline, Instant now = Clock::now()) {
    if (deadline == never) return -1;
    if (deadline <= now) return 0;
    const auto ms = std::chrono::ceil<Milliseconds>(deadline - now).count();
    return static_cast<int>(std::min<Milliseconds::rep>(ms, 3'600'000));
}

// A connected stream socket. We do not use those of hiredis: they leak into exec'd children, give each address of a
// host the full time-out, and are written to without MSG_NOSIGNAL.
//
// With a TlsSession all bytes pass through it, in both directions. One thread may receive while another sends.
class Socket {
public:
    Socket() = default;
    explicit Socket(int fd) : fd_(fd) {}
    Socket(Socket&& other) noexcept
        : fd_(std::exchange(other.fd_, -1)),
          failed_(other.failed_),
          tls_(std::move(other.tls_)),
          sealed_(std::exchange(other.sealed_, {})) {}
    Socket& operator=(Socket&& other) noexcept {
        if (this != &other) {
            close();
            fd_ = std::exchange(other.fd_, -1);
            failed_ = other.failed_;
            tls_ = std::move(other.tls_);
            sealed_ = std::exchange(other.sealed_, {});
        }
        return *this;
    }
    ~Socket() { close(); }

    // Connects before the deadline, or returns a closed socket with the reason in `why`. The deadline covers the
    // look-up of the host and all of its addresses together. `abandoned`: true when another thread no longer wants this
    // server.
    static Socket connect(const Url& url, Instant deadline, std::string& why, const std::atomic<bool>& abandoned) {
        return url.path.empty() ? connect_tcp(url, deadline, why, abandoned)
                                : connect_unix(url, deadline, why, abandoned);
    }

    // Begins to connect without waiting. The socket becomes writable when there is a result; connect_error() returns
    // it. Returns a closed socket if connecting fails at once.
    static Socket begin_connect(const addrinfo& to) noexcept {
        Socket socket = make(to.ai_family);
        if (!socket.is_open()) return socket;
        const int flags = ::fcntl(socket.fd_, F_GETFL);
        const bool set = flags >= 0 && ::fcntl(socket.fd_, F_SETFL, flags | O_NONBLOCK) == 0;
        if (!set || (::connect(socket.fd_, to.ai_addr, to.ai_addrlen) != 0 && errno != EINPROGRESS)) socket.close();
        if (socket.is_open()) socket.set_tcp_options();
        return socket;
    }

    // Returns 0 if connected, otherwise the error number.
    int connect_error() const noexcept {
        int error = 0;
        socklen_t length = sizeof error;
        return ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
    }

    int fd() const noexcept { return fd_; }
    bool is_open() const noexcept { return fd_ >= 0; }

    // Closes in order; after fail(), by a reset.
    void close() noexcept {
        if (fd_ < 0) return;
        if (std::exchange(failed_, false))
            reset();
        else if (tls_)
            say_goodbye();
        tls_.reset();
        sealed_ = {};
        ::close(std::exchange(fd_, -1));
    }

    // For the child after a fork. The parent still uses the session, so nothing is sent in it. Its memory is not freed,
    // because its locks may be in any state.
    void close_inherited() noexcept {
        static_cast<void>(tls_.release());
        failed_ = false;
        close();
    }

    // Marks the connection as unusable and wakes a thread that sleeps in a read. The descriptor stays valid until
    // close(), which drops the unsent bytes in the kernel: these would be delivered for another half a minute. fail()
    // does not shut down our sending side, because that end would follow the unsent bytes. The exception is a thread
    // that is `writing`, which nothing else wakes.
    void fail(bool writing = false) noexcept {
        if (fd_ < 0) return;
        failed_ = true;
        ::shutdown(fd_, writing ? SHUT_RDWR : SHUT_RD);
    }

    // From now on all bytes are encrypted. The handshake comes first: call handshake() until it no longer returns
    // unfinished.
    void secure_by(std::unique_ptr<TlsSession> session) noexcept { tls_ = std::move(session); }

    // Does one step with the bytes that have arrived. Our bytes are few: a new connection has room for them.
    TlsSession::Handshake handshake() const noexcept {
        std::array<char, 4096> bytes;
        const ssize_t got = receive_as_is(bytes.data(), bytes.size(), false);
        if (got < 0) return TlsSession::Handshake::failed;
        std::string_view to_send;
        const auto outcome = tls_->handshake({bytes.data(), static_cast<std::size_t>(got)}, to_send);
        return send_as_is(to_send) == Sent::all ? outcome : TlsSession::Handshake::failed;
    }

    // Returns why TLS has failed, if it has.
    Reply tls_refusal() const { return tls_->refusal(); }

    enum class Sent { all, some, failed };

    // Sends as many bytes as there is room for, without waiting, and removes them from `bytes`. After `some`, the
    // connection waits for room (POLLOUT), and the next call must begin with the remaining bytes. Never raises SIGPIPE.
    Sent send_some(std::string_view& bytes) noexcept {
        if (!tls_) return send_as_is(bytes);
        // In pieces, so that a long pipeline is not copied in memory as a whole.
        constexpr std::size_t piece = 64 * 1024;
        for (;;) {
            if (const Sent sent = send_as_is(sealed_); sent != Sent::all) return sent;
            if (bytes.empty()) return Sent::all;
            sealed_ = tls_->encrypt(bytes.substr(0, piece));
            if (sealed_.empty()) return Sent::failed;
            bytes.remove_prefix(std::min(piece, bytes.size()));
        }
    }

    // Sends all bytes before the deadline, or returns false.
    bool send_all(std::string_view bytes, Instant deadline) noexcept {
        for (;;) {
            const Sent sent = send_some(bytes);
            if (sent != Sent::some) return sent == Sent::all;
            if (!wait(POLLOUT, deadline)) return false;
        }
    }

    // Returns the number of received bytes, 0 if there are none (yet), -1 if the connection has ended. Waits only if
    // `blocking`, and then at most the time-out given to set_receive_timeout(). With TLS there may be more bytes for
    // the next call, which poll() does not report. There are none if `room` was TlsSession::full_room, or larger than
    // the number returned.
    ssize_t receive(char* bytes, std::size_t room, bool blocking) const noexcept {
        return tls_ ? receive_decrypted(bytes, room, blocking) : receive_as_is(bytes, room, blocking);
    }

    // Returns true if there is something to read, or the connection has ended. Only for a connection that should be
    // idle: with TLS this consumes the byte.
    bool has_news() const noexcept {
        char byte;
        if (tls_) return receive_decrypted(&byte, 1, false) != 0;
        return ::recv(fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT) >= 0;
    }

    // Returns true if the socket is ready (or has failed, which the next read or write returns), false at the deadline.
    bool wait(short events, Instant deadline) const noexcept {
        pollfd ready{fd_, events, 0};
        for (;;) {
            const int n = ::poll(&ready, 1, poll_timeout(deadline));
            if (n > 0) return true;
            if (n < 0 && errno != EINTR) return false;
            if (Clock::now() >= deadline) return false;
        }
    }

    // The same, but returns false soon after another thread has set `abandoned`. It polls for that, because nothing can
    // wake it.
    bool wait(short events, Instant deadline, const std::atomic<bool>& abandoned) const noexcept {
        for (;;) {
            if (abandoned.load(std::memory_order_relaxed)) return false;
            const Instant now = Clock::now();
            const bool is_last = deadline <= now + look_again;
            if (wait(events, is_last ? deadline : now + look_again)) return true;
            if (is_last) return false;
        }
    }

    void set_receive_timeout(Milliseconds timeout) const noexcept {
        const timeval tv{converted<time_t>(timeout.count() / 1000),
                         converted<suseconds_t>(timeout.count() % 1000 * 1000)};
        ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv);
    }

private:
    static constexpr Milliseconds look_again{20};

    // A send to a connection that the server has closed must not end the program.
#ifdef MSG_NOSIGNAL
    static constexpr int no_signal = MSG_NOSIGNAL;
#else
    static constexpr int no_signal = 0;  // make() sets SO_NOSIGPIPE
#endif

    Sent send_as_is(std::string_view& bytes) const noexcept {
        while (!bytes.empty()) {
            const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), no_signal | MSG_DONTWAIT);
            if (sent > 0)
                bytes.remove_prefix(static_cast<std::size_t>(sent));
            else if (sent < 0 && would_block(errno))
                return Sent::some;
            else if (!(sent < 0 && errno == EINTR))
                return Sent::failed;
        }
        return Sent::all;
    }

    ssize_t receive_as_is(char* bytes, std::size_t room, bool blocking) const noexcept {
        for (;;) {
            const ssize_t got = ::recv(fd_, bytes, room, blocking ? 0 : MSG_DONTWAIT);
            if (got > 0) return got;
            if (got == 0) return -1;
            if (would_block(errno)) return 0;
            if (errno != EINTR) return -1;
            if (blocking) return 0;  // a retry would start the time-out again: the caller checks its deadline
        }
    }

    ssize_t receive_decrypted(char* bytes, std::size_t room, bool blocking) const noexcept {
        if (const ssize_t rest = tls_->decrypt({}, bytes, room)) return rest;
        std::array<char, TlsSession::most_fed> sealed;
        const ssize_t got = receive_as_is(sealed.data(), sealed.size(), blocking);
        // An end without close_notify is a normal end: replies show by themselves whether they are complete.
        if (got <= 0) return got;
        return tls_->decrypt({sealed.data(), static_cast<std::size_t>(got)}, bytes, room);
    }

    // Sends close_notify if there is room, without waiting. Not after a partly sent record.
    void say_goodbye() const noexcept {
        if (!sealed_.empty()) return;
        std::string_view words = tls_->goodbye();
        send_as_is(words);
    }

    // On Linux, connecting to AF_UNSPEC resets the connection, even if a forked child also has the descriptor.
    // Elsewhere the last close() resets it. A unix socket has no unsent bytes.
    void reset() const noexcept {
        const linger none{1, 0};
        ::setsockopt(fd_, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        sockaddr nothing{};
        nothing.sa_family = AF_UNSPEC;
        if (::connect(fd_, &nothing, sizeof nothing) != 0) ::shutdown(fd_, SHUT_RDWR);
    }

    static Socket make(int family) noexcept {
#ifdef SOCK_CLOEXEC
        Socket socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
#else
        Socket socket(::socket(family, SOCK_STREAM, 0));
        if (socket.is_open()) ::fcntl(socket.fd_, F_SETFD, FD_CLOEXEC);
#endif
#ifdef SO_NOSIGPIPE
        socket.set_option(SOL_SOCKET, SO_NOSIGPIPE, 1);
#endif
        return socket;
    }

    static std::string reason(const Url& url, int error) {
        return "cannot connect to " + url.display() + ": " + std::generic_category().message(error);
    }

    static Socket connect_unix(const Url& url, Instant deadline, std::string& why, const std::atomic<bool>& abandoned) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        if (url.path.size() >= sizeof address.sun_path) {
            why = "the path of the unix socket is too long for this system";
            return {};
        }
        std::memcpy(address.sun_path, url.path.data(), url.path.size());
        Socket socket = make(AF_UNIX);
        if (const int error = socket.finish_connect(reinterpret_cast<const sockaddr*>(&address), sizeof address,
                                                    deadline, abandoned)) {
            why = reason(url, error);
            return {};
        }
        return socket;
    }

    static Socket connect_tcp(const Url& url, Instant deadline, std::string& why, const std::atomic<bool>& abandoned) {
        int no_address = 0;
        const auto lookup = Resolver::run(url.host, url.port, deadline, no_address);
        if (no_address != 0) {
            why = "cannot resolve the host " + in_quotes(url.host) + ": " + ::gai_strerror(no_address);
            return {};
        }
        for (const addrinfo* a = lookup->addresses(); a != nullptr; a = a->ai_next) {
            // Leave a share of the time for the addresses that follow.
            const Instant now = Clock::now();
            const Instant mine = a->ai_next && deadline != never ? now + (deadline - now) / 2 : deadline;
            Socket socket = make(a->ai_family);
            const int error = socket.finish_connect(a->ai_addr, a->ai_addrlen, mine, abandoned);
            if (error == 0) {
                socket.set_tcp_options();
                return socket;
            }
            why = reason(url, error);
        }
        return {};
    }

    // Returns 0 or the error number.
    int finish_connect(const sockaddr* address, socklen_t size, Instant deadline,
                       const std::atomic<bool>& abandoned) noexcept {
        if (fd_ < 0) return errno;
        const int flags = ::fcntl(fd_, F_GETFL);
        if (flags < 0 || ::fcntl(fd_, F_SETFL, flags | O_NONBLOCK) < 0) return errno;
        // connect() to a unix socket with a full backlog fails with EAGAIN and must be retried.
        while (::connect(fd_, address, size) != 0) {
            if (errno == EISCONN) break;
            if (errno == EINTR) continue;
            if (errno == EAGAIN && address->sa_family == AF_UNIX) {
                if (abandoned || Clock::now() >= deadline) return ETIMEDOUT;
                ::poll(nullptr, 0, 1);
                continue;
            }
            if (errno != EINPROGRESS && errno != EALREADY) return errno;
            if (!wait(POLLOUT, deadline, abandoned)) return ETIMEDOUT;
            int error = 0;
            socklen_t length = sizeof error;
            if (::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
            if (error != 0) return error;
            break;
        }
        return ::fcntl(fd_, F_SETFL, flags) < 0 ? errno : 0;
    }

    void set_option(int level, int option, int value) const noexcept {
        ::setsockopt(fd_, level, option, &value, sizeof value);
    }

    // Sends small commands at once. Notices within 30 s that the peer has vanished, even if nothing is sent.
    void set_tcp_options() const noexcept {
        set_option(IPPROTO_TCP, TCP_NODELAY, 1);
        set_option(SOL_SOCKET, SO_KEEPALIVE, 1);
#ifdef TCP_KEEPIDLE
        set_option(IPPROTO_TCP, TCP_KEEPIDLE, 15);
        set_option(IPPROTO_TCP, TCP_KEEPINTVL, 5);
        set_option(IPPROTO_TCP, TCP_KEEPCNT, 3);
#endif
#ifdef TCP_USER_TIMEOUT
        set_option(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
#endif
    }

    int fd_ = -1;
    bool failed_ = false;
    std::unique_ptr<TlsSession> tls_;  // null: no TLS
    std::string_view sealed_;          // encrypted bytes that are not sent yet
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
