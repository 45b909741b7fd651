// SPDX-License-Identifier: MIT
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "poll_thread.hpp"
#include "proxy_rules.hpp"
#include "socket.hpp"
#include "temp_dir.hpp"

namespace redlatch::test {

enum class Side { client, server };

/// A proxy in a thread of its own between clients and a server, to make faults in the network and to prove, by its
/// counts, that they happened. Every function may be called by any thread, and has its effect when it returns.
///
/// It knows nothing of the protocol: a rule matches when its bytes turn up in what a client sends, also across reads.
/// What a client has sent in one go counts as one request, so a rule on a connection with several commands in flight
/// also takes the commands around the matching one, as a real cut would. TCP loses no message in the middle of a
/// stream; therefore nothing follows a dropped message: the connection is closed, or silent from there on.
///
/// A dropped reply means that the server did execute the request: the connection is closed when the reply has come back
/// and the server has read and answered all that was sent to it.
class Proxy {
public:
    /// `upstream` is unix:///path, redis://127.0.0.1:port, or a bare path.
    explicit Proxy(const std::string& upstream, bool tcp = false) : upstream_(Endpoint::parse(upstream)) {
        listeners_.push_back(listen_on({socket_path()}));
        while (tcp && port_ == 0) {
            const int port = pick_free_port();
            try {
                listeners_.push_back(listen_on({{}, port}));
                port_ = port;
            } catch (const std::system_error&) {  // somebody else was faster
            }
        }
        thread_.emplace([this](auto& fds) { return prepare(fds); }, [this](const auto& fds) { ready(fds); });
    }

    std::string socket_path() const { return dir_.file("proxy.sock"); }
    std::string url() const { return "unix://" + socket_path(); }
    std::string tcp_url() const { return Endpoint{{}, port()}.url(); }
    int port() const {
        if (port_ == 0) throw std::logic_error("this proxy was made without tcp");
        return port_;
    }

    /// The server never sees these requests.
    void drop_next_requests(int count, std::string containing = {}, Then then = Then::close) {
        add({ProxyRule::Fault::drop_request, std::move(containing), count, 0, then, 0});
    }

    /// The server executes these requests, the client never sees the replies.
    void drop_next_replies(int count, std::string containing = {}, Then then = Then::close) {
        add({ProxyRule::Fault::drop_reply, std::move(containing), count, 0, then, 0});
    }

    /// The server gets that many bytes of the next such request, then both ends are closed.
    void cut_after_request_bytes(std::size_t bytes, std::string containing = {}) {
        add({ProxyRule::Fault::drop_request, std::move(containing), 1, 0, Then::close, bytes});
    }

    /// The client gets that many bytes of the next such reply, then both ends are closed.
    void cut_after_reply_bytes(std::size_t bytes, std::string containing = {}) {
        add({ProxyRule::Fault::drop_reply, std::move(containing), 1, 0, Then::close, bytes});
    }

    /// These requests wait in the proxy until release().
    void hold_next_requests(int count, std::string containing = {}) {
        add({ProxyRule::Fault::hold_request, std::move(containing), count, 0, Then::close, 0});
    }

    /// The server executes these requests, and their replies wait in the proxy until release().
    void hold_next_replies(int count, std::string containing = {}) {
        add({ProxyRule::Fault::hold_reply, std::move(containing), count, 0, Then::close, 0});
    }

    void release() {
        thread_->call([this] {
            for (Connection& connection : connections_) connection.up.held = connection.down.held = false;
        });
    }

    void add(ProxyRule rule) {
        thread_->call([&] { rules_.add(std::move(rule)); });
    }

    /// Forgets the rules, also those that struck a request whose reply is still to come.
    void clear_rules() {
        thread_->call([this] {
            rules_.clear();
            for (Connection& connection : connections_) connection.drop_reply.reset();
        });
    }

    /// Each message, from now on, waits this long.
    void delay(std::chrono::milliseconds to_server, std::chrono::milliseconds to_client) {
        thread_->call([&] {
            delay_up_ = to_server;
            delay_down_ = to_client;
        });
    }

    /// Replies, from now on, come in pieces of that many bytes, with a pause after each; 0: whole again.
    void trickle(std::size_t bytes, std::chrono::milliseconds pause) {
        thread_->call([&] {
            piece_ = bytes;
            pause_ = pause;
        });
    }

    /// On: nothing moves in either direction, and nobody is told. Off: everything goes on.
    void blackhole(bool on) {
        thread_->call([&] { blackhole_ = on; });
    }

    /// On: new connections are closed as soon as they are accepted.
    void refuse(bool on) {
        thread_->call([&] { refuse_ = on; });
    }

    /// That side of every connection sees the end of the stream, while its own bytes are still taken.
    void half_close(Side side) {
        thread_->call([&] {
            for (Connection& connection : connections_) {
                Direction& direction = side == Side::client ? connection.down : connection.up;
                finish(direction, side == Side::client ? connection.client : connection.server);
            }
        });
    }

    /// Closes all connections; over TCP the clients see a reset.
    void kill_all() {
        thread_->call([this] {
            const linger reset{1, 0};
            for (const Connection& connection : connections_) {
                ::setsockopt(connection.client.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
            }
            connections_.clear();
        });
    }

    /// New connections go to this server.
    void upstream(const std::string& url) {
        thread_->call([&] { upstream_ = Endpoint::parse(url); });
    }

    ProxyCounts counts() {
        ProxyCounts result;
        thread_->call([&] {
            result = counts_;
            result.open = connections_.size();
            for (const Connection& connection : connections_) {
                result.held += (connection.up.held && !connection.up.out.empty()) ||
                               (connection.down.held && !connection.down.out.empty());
            }
        });
        return result;
    }

private:
    struct Direction {
        Outgoing out = {};
        bool eof = false;       // the source has ended
        bool finished = false;  // the target has been told so: further bytes are thrown away
        bool held = false;
        bool silent = false;
    };

    struct Connection {
        Fd client;
        Fd server;
        Direction up = {};
        Direction down = {};
        std::string window = {};  // the end of what the client sent before, as long as a match may need
        std::optional<ProxyRule> drop_reply = {};
        bool draining = false;  // the client gets nothing more, and is closed when the server has closed
        bool broken = false;
        std::size_t slot = 0;  // of the client in the polled descriptors; the server comes next
    };

    static constexpr std::size_t most_queued = 1 << 20;

    std::optional<TimePoint> prepare(std::vector<pollfd>& fds) {
        std::optional<TimePoint> until;
        const TimePoint now = std::chrono::steady_clock::now();
        const auto events = [&](bool read, const Direction& write) {
            short wanted = read ? POLLIN : short{0};
            const auto due = write.out.due();
            if (due && !write.held) {
                if (*due <= now)
                    wanted = static_cast<short>(wanted | POLLOUT);
                else
                    until = std::min(until.value_or(*due), *due);
            }
            return wanted;
        };
        // A descriptor without a wish is left out: poll would report its hang-up again and again.
        const auto add = [&](const Fd& fd, short wanted) { fds.push_back({wanted != 0 ? fd.get() : -1, wanted, 0}); };
        for (const Fd& listener : listeners_) add(listener, blackhole_ ? short{0} : POLLIN);
        for (Connection& connection : connections_) {
            connection.slot = fds.size();
            const bool read_client =
                !connection.up.eof && !connection.draining && connection.up.out.size() < most_queued;
            const bool read_server = !connection.down.eof && connection.down.out.size() < most_queued;
            add(connection.client, blackhole_ ? short{0} : events(read_client, connection.down));
            add(connection.server, blackhole_ ? short{0} : events(read_server, connection.up));
        }
        return until;
    }

    void ready(const std::vector<pollfd>& fds) {
        for (Connection& connection : connections_) {
            const short client = fds[connection.slot].revents;
            const short server = fds[connection.slot + 1].revents;
            if ((server & ~POLLOUT) != 0) from_server(connection);
            if ((client & ~POLLOUT) != 0 && !connection.up.eof && !connection.draining) from_client(connection);
            if (!blackhole_) {
                write_out(connection, connection.down, connection.client, counts_.bytes_to_client);
                write_out(connection, connection.up, connection.server, counts_.bytes_to_server);
            }
        }
        std::erase_if(connections_, [](const Connection& connection) {
            const bool over = connection.down.eof && connection.down.out.empty();
            return connection.broken || (over && (connection.draining || connection.up.finished));
        });
        for (std::size_t i = 0; i < listeners_.size(); ++i) {
            if (fds[i + 1].revents != 0) accept_all(listeners_[i]);
        }
    }

    void accept_all(const Fd& listener) {
        while (true) {
            Fd client{::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
            if (!client) return;
            const int on = 1;
            ::setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // fails on a unix socket, and may
            ++counts_.accepted;
            Fd server = refuse_ ? Fd{} : begin_connect(upstream_);
            if (server)
                connections_.push_back({std::move(client), std::move(server)});
            else
                ++counts_.refused;
        }
    }

    /// All there is, so that a request that was sent in one go is looked at in one go.
    static std::string read_all(const Fd& fd, Direction& direction) {
        std::string bytes;
        ReadState state = ReadState::data;
        while (state == ReadState::data && bytes.size() < most_queued) state = read_some(fd, bytes);
        if (state == ReadState::closed) direction.eof = true;
        return bytes;
    }

    void from_client(Connection& connection) {
        std::string bytes = read_all(connection.client, connection.up);
        if (bytes.empty() || connection.up.silent) return;
        // One fault at a time: a second request in flight is lost with the first, and the rule is kept for its retry.
        if (connection.drop_reply) return push(connection.up, std::move(bytes), delay_up_, 0);
        if (const auto rule = rules_.match(connection.window, bytes)) {
            // Replies that are here already are older than this request.
            from_server(connection);
            strike(connection, *rule, bytes);
        }
        push(connection.up, std::move(bytes), delay_up_, 0);
    }

    void strike(Connection& connection, const ProxyRule& rule, std::string& bytes) {
        ++counts_.matched;
        switch (rule.fault) {
            case ProxyRule::Fault::hold_request: connection.up.held = true; break;
            case ProxyRule::Fault::hold_reply: connection.down.held = true; break;
            case ProxyRule::Fault::drop_reply: connection.drop_reply = rule; break;
            case ProxyRule::Fault::drop_request:
                ++counts_.dropped;
                bytes.resize(rule.then == Then::silence ? 0 : std::min(bytes.size(), rule.bytes));
                if (rule.then == Then::silence)
                    connection.up.silent = true;
                else
                    drain(connection);
        }
    }

    void from_server(Connection& connection) {
        std::string bytes = read_all(connection.server, connection.down);
        if (bytes.empty() || connection.draining || connection.down.silent) return;
        if (connection.drop_reply) {
            ProxyRule& rule = *connection.drop_reply;
            const std::size_t passed = rule.then == Then::silence ? 0 : std::min(bytes.size(), rule.bytes);
            rule.bytes -= passed;
            if (rule.then == Then::silence || rule.bytes == 0) {
                ++counts_.dropped;
                bytes.resize(passed);
                if (rule.then == Then::silence)
                    connection.down.silent = true;
                else
                    drain(connection);
                connection.drop_reply.reset();
            }
        }
        push(connection.down, std::move(bytes), delay_down_, piece_);
    }

    void push(Direction& direction, std::string bytes, std::chrono::milliseconds delay, std::size_t piece) {
        if (direction.finished || bytes.empty()) return;
        direction.out.push(std::move(bytes), std::chrono::steady_clock::now() + delay, piece, pause_);
    }

    /// Lets the server read all that it was sent and then the end of the stream; it closes when it has answered.
    static void drain(Connection& connection) {
        connection.draining = true;
        connection.up.eof = true;
    }

    static void write_out(Connection& connection, Direction& direction, const Fd& to, std::uint64_t& count) {
        if (connection.broken || direction.held) return;
        if (const auto sent = direction.out.flush(to))
            count += *sent;
        else
            connection.broken = true;
        const bool kept_open = direction.silent || (connection.draining && &direction == &connection.down);
        if (direction.eof && direction.out.empty() && !direction.finished && !kept_open) finish(direction, to);
    }

    static void finish(Direction& direction, const Fd& to) {
        ::shutdown(to.get(), SHUT_WR);
        direction.finished = true;
        direction.out.clear();
    }

    TempDir dir_;
    int port_ = 0;
    std::vector<Fd> listeners_;
    Endpoint upstream_;
    std::list<Connection> connections_;
    ProxyRules rules_;
    ProxyCounts counts_;
    std::chrono::milliseconds delay_up_{0};
    std::chrono::milliseconds delay_down_{0};
    std::size_t piece_ = 0;
    std::chrono::milliseconds pause_{0};
    bool blackhole_ = false;
    bool refuse_ = false;
    std::optional<PollThread> thread_;  // last: the thread ends before what it uses
};

}  // namespace redlatch::test
