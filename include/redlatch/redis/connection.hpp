// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/ids.hpp"
#include "redlatch/base/time.hpp"
#include "redlatch/base/url.hpp"
#include "redlatch/net/socket.hpp"
#include "redlatch/redis/encode.hpp"
#include "redlatch/redis/reply_reader.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The role that a server must have.
enum class ServerRole { any, master };

// Returns whether this reply to ROLE is a master's.
inline bool says_master(const Reply& role) {
    return role.kind == Reply::Kind::array && !role.elements.empty() && role.elements[0].text == "master";
}

// When the thread that serves a connection must do so: at these events of the descriptor (or -1), and at `due` anyway.
struct Duty {
    int fd = -1;
    short events = 0;
    Instant due = never;
};

// One logged-in connection: a socket and the reader of its replies. Not thread-safe.
struct Connection {
    Socket socket;
    ReplyReader reader;
    std::uint64_t place = 0;  // the epoch in which it was opened, if the server may change: see MasterTracker
    // May be set by any thread while another one is in open(), which then ends soon: another server is wanted by now.
    std::atomic<bool> abandoned{false};

    // Connects (over TLS if the URL demands it), logs in and selects the database, all before the deadline. Returns
    // nothing on success. Otherwise returns the reply for a command on this connection: not_sent, the error of the
    // server, or our reason for refusing the server. A server with the wrong role counts as unreachable, and so does one
    // for which Url::credentials throws. The time that this function takes prolongs the deadline.
    std::optional<Reply> open(const Url& url, Instant deadline, ServerRole role = ServerRole::any) {
        std::string why;
        reader.reset();
        socket = Socket::connect(url, deadline, why, abandoned);
        if (!socket.is_open()) return Reply::of(Reply::Kind::not_sent, std::move(why));
        auto refusal = url.tls ? secure(url, deadline) : std::nullopt;
        Credentials login{url.user, url.password};
        if (!refusal && url.credentials) refusal = ask_for(login, url, deadline);
        if (!refusal) refusal = log_in(url, login, deadline, role);
        if (refusal) socket.close();
        return refusal;
    }

private:
    std::optional<Reply> secure(const Url& url, Instant deadline) {
        std::string why = "TLS needs ClientOptions::tls";
        auto session = url.tls_connector ? url.tls_connector->session({url.host, url.port}, why) : nullptr;
        if (!session) return Reply::of(Reply::Kind::not_sent, "cannot connect to " + url.display() + ": " + why);
        socket.secure_by(std::move(session));
        for (;;) {
            switch (socket.handshake()) {
                case TlsSession::Handshake::done: return std::nullopt;
                case TlsSession::Handshake::failed: return socket.tls_refusal();
                case TlsSession::Handshake::unfinished: break;
            }
            if (!socket.wait(POLLIN, deadline, abandoned)) return socket.tls_refusal();
        }
    }

    // Calls Url::credentials.
    static std::optional<Reply> ask_for(Credentials& login, const Url& url, Instant& deadline) {
        const Instant asked = Clock::now();
        const auto failure = [&](const std::string& why) {
            return Reply::of(Reply::Kind::not_sent,
                             "cannot log in to " + url.display() + ": ClientOptions::credentials threw " + why);
        };
        try {
            login = (*url.credentials)();
        } catch (const std::exception& e) {
            return failure(in_quotes(e.what(), 160));
        } catch (...) {
            return failure("what is no std::exception");
        }
        if (deadline != never) deadline += Clock::now() - asked;
        return std::nullopt;
    }

    std::optional<Reply> log_in(const Url& url, const Credentials& login, Instant deadline, ServerRole role) {
        reader.withhold(login.password);
        std::string out;
        std::size_t expected = 0;
        const auto add = [&](std::vector<std::string_view> words) {
            append_command(out, Command{words, 0});
            ++expected;
        };
        if (!login.user.empty())
            add({"AUTH", login.user, login.password});
        else if (!login.password.empty())
            add({"AUTH", login.password});
        const NumberText database(url.database);
        if (url.database != 0) add({"SELECT", database});
        if (role == ServerRole::master) add({"ROLE"});
        // In TLS 1.3 a server reports only after the handshake that it wants a certificate of ours, or another one. Any
        // reply to PING will do, so this needs no access right.
        const bool only_asks = url.tls && expected == 0;
        if (only_asks) add({"PING"});
        // No one waits for the reply, and a refusal does not matter: a connection works without a name as well. It comes
        // last, so that its reply follows all others.
        if (!url.client_name.empty())
            append_command(out, Command{std::array<std::string_view, 3>{"CLIENT", "SETNAME", url.client_name}, 0});
        if (out.empty()) return std::nullopt;

        const bool sent = socket.send_all(out, deadline);
        std::fill(out.begin(), out.end(), '\0');  // keep the password no longer than needed
        if (!sent) return silence(url);
        while (expected > 0) {
            Reply reply;
            switch (reader.next(reply)) {
                case ReplyReader::Outcome::malformed:
                    return Reply::of(Reply::Kind::malformed, url.display() + " does not speak the Redis protocol");
                case ReplyReader::Outcome::reply:
                    if (reply.is_error() && !only_asks) return reply;
                    if (--expected == 0 && role == ServerRole::master && !says_master(reply))
                        return Reply::of(Reply::Kind::not_sent, url.display() + " is not the master");
                    break;
                case ReplyReader::Outcome::incomplete: {
                    std::array<char, TlsSession::full_room> bytes;
                    if (!socket.wait(POLLIN, deadline, abandoned)) return silence(url);
                    const ssize_t got = socket.receive(bytes.data(), bytes.size(), false);
                    if (got < 0 || !reader.feed(bytes.data(), static_cast<std::size_t>(got))) return silence(url);
                }
            }
        }
        if (!url.client_name.empty()) reader.skip_next();
        return std::nullopt;
    }

    Reply silence(const Url& url) const {
        if (url.tls) {
            // The server may have sent the reason before it closed, even if our bytes could not be sent any more.
            char byte;
            socket.receive(&byte, 1, false);
            if (Reply refusal = socket.tls_refusal(); refusal.is_error()) return refusal;
        }
        return Reply::of(Reply::Kind::not_sent, url.display() + " accepts the connection but does not reply");
    }
};

// Opens a connection to the server that is wanted at this moment, before the deadline. Returns the same as
// Connection::open().
using Connector = std::function<std::optional<Reply>(Connection& link, Instant deadline)>;

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
