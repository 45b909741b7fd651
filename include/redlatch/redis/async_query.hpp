// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/url.hpp"
#include "redlatch/net/resolver.hpp"
#include "redlatch/net/socket.hpp"
#include "redlatch/net/tls_session.hpp"
#include "redlatch/redis/reply_reader.hpp"

#include <array>
#include <memory>
#include <string>
#include <utility>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// Queries a server without blocking: looks the host up, connects, sends commands and collects the replies, each as far
// as possible at the moment. So one thread can query many servers. Not thread-safe.
class AsyncQuery {
public:
    // `words`: encoded commands. `tls`: null for a connection without TLS.
    void begin(const HostPort& with, std::string words, std::unique_ptr<TlsSession> tls) {
        end();
        reader_.reset();
        words_ = std::move(words);
        tls_ = std::move(tls);
        refusal_ = {};
        secured_ = false;
        lookup_ = Resolver::start(with.host, with.port);
        proceed();
    }

    void end() noexcept {
        socket_.close();
        lookup_.reset();
        address_ = nullptr;
        connecting_ = false;
        shaking_hands_ = false;
    }

    void close_inherited() noexcept { socket_.close_inherited(); }

    bool is_over() const noexcept { return !lookup_; }

    // Returns the TLS error that ended the query, until the next one begins. Nil if it ended for another reason.
    const Reply& refusal() const noexcept { return refusal_; }

    // What to wait for. While the descriptor is -1, proceed() must be called again after look_again.
    pollfd watch() const noexcept { return {socket_.fd(), static_cast<short>(connecting_ ? POLLOUT : POLLIN), 0}; }
    Instant due(Instant now) const noexcept { return lookup_ && !socket_.is_open() ? now + look_again : never; }

    void proceed() {
        if (!lookup_) return;
        if (!socket_.is_open()) {
            if (!lookup_->is_done()) return;
            connect_to(lookup_->addresses());
        }
        while (connecting_) {
            if (!socket_.wait(POLLOUT, {})) return;
            if (socket_.connect_error() == 0)
                greet();
            else
                connect_to(address_->ai_next);
        }
        if (shaking_hands_) shake_hands();
        if (!shaking_hands_) receive();
    }

    // Takes the next reply that has arrived; returns false if there is none. A protocol error ends the query.
    bool next(Reply& reply) {
        if (is_over() || connecting_ || shaking_hands_ || !socket_.is_open()) return false;
        switch (reader_.next(reply)) {
            case ReplyReader::Outcome::reply: return true;
            case ReplyReader::Outcome::malformed: end(); return false;
            default: break;
        }
        if (closed_) end();
        return false;
    }

private:
    static constexpr Milliseconds look_again{10};

    void connect_to(const addrinfo* address) {
        connecting_ = false;
        for (; address; address = address->ai_next) {
            socket_ = Socket::begin_connect(*address);
            if (!socket_.is_open()) continue;
            address_ = address;
            connecting_ = true;
            return;
        }
        end();
    }

    void greet() {
        connecting_ = false;
        if (!tls_) return say();
        socket_.secure_by(std::move(tls_));
        secured_ = shaking_hands_ = true;
    }

    // Our part of the handshake is little more than a certificate, for which a new socket has room.
    void shake_hands() {
        const auto outcome = socket_.handshake();
        if (outcome == TlsSession::Handshake::unfinished) return;
        shaking_hands_ = false;
        if (outcome == TlsSession::Handshake::done) return say();
        refusal_ = socket_.tls_refusal();
        end();
    }

    // A new socket always has room for so few bytes.
    void say() { closed_ = !socket_.send_all(words_, {}); }

    void receive() {
        std::array<char, 4096> bytes;
        while (socket_.is_open() && !closed_) {
            const ssize_t got = socket_.receive(bytes.data(), bytes.size(), false);
            if (got == 0) return;
            closed_ = got < 0 || !reader_.feed(bytes.data(), static_cast<std::size_t>(got));
            // In TLS 1.3 a server reports only here that it rejects our certificate.
            if (got < 0 && secured_)
                if (Reply why = socket_.tls_refusal(); why.is_error()) refusal_ = std::move(why);
        }
    }

    std::shared_ptr<Resolver> lookup_;
    const addrinfo* address_ = nullptr;  // that we connect to
    std::string words_;
    Socket socket_;
    ReplyReader reader_;
    std::unique_ptr<TlsSession> tls_;  // until connected
    Reply refusal_;
    bool connecting_ = false;
    bool secured_ = false;
    bool shaking_hands_ = false;
    bool closed_ = false;  // by the other side; earlier replies can still be read
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
