// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
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
    explicit Proxy(const std::string& upstream, bool tcp = false);
    ~Proxy();

    std::string socket_path() const;
    std::string url() const;
    std::string tcp_url() const;
    int port() const;

    /// The server never sees these requests.
    void drop_next_requests(int count, std::string containing = {}, Then then = Then::close);

    /// The server executes these requests, the client never sees the replies.
    void drop_next_replies(int count, std::string containing = {}, Then then = Then::close);

    /// The server gets that many bytes of the next such request, then both ends are closed.
    void cut_after_request_bytes(std::size_t bytes, std::string containing = {});

    /// The client gets that many bytes of the next such reply, then both ends are closed.
    void cut_after_reply_bytes(std::size_t bytes, std::string containing = {});

    /// These requests wait in the proxy until release(), or for so long.
    void hold_next_requests(int count, std::string containing = {},
                            std::optional<std::chrono::milliseconds> hold_for = std::nullopt);

    /// The server executes these requests, and their replies wait in the proxy until release().
    void hold_next_replies(int count, std::string containing = {});

    void release();

    void add(ProxyRule rule);

    /// Forgets the rules, also those that struck a request whose reply is still to come.
    void clear_rules();

    /// Each message, from now on, waits this long.
    void delay(std::chrono::milliseconds to_server, std::chrono::milliseconds to_client);

    /// Replies, from now on, come in pieces of that many bytes, with a pause after each; 0: whole again.
    void trickle(std::size_t bytes, std::chrono::milliseconds pause);

    /// On: nothing moves in either direction, and nobody is told. Off: everything goes on.
    void blackhole(bool on);

    /// On: new connections are closed as soon as they are accepted.
    void refuse(bool on);

    /// That side of every connection sees the end of the stream, while its own bytes are still taken.
    void half_close(Side side);

    /// Closes all connections; over TCP the clients see a reset.
    void kill_all();

    /// New connections go to this server.
    void upstream(const std::string& url);

    ProxyCounts counts();

private:
    struct Direction;
    struct Connection;

    std::optional<TimePoint> prepare(std::vector<pollfd>& fds);

    void ready(const std::vector<pollfd>& fds);

    void accept_all(const Fd& listener);

    /// All there is, so that a request that was sent in one go is looked at in one go.
    static std::string read_all(const Fd& fd, Direction& direction);

    void from_client(Connection& connection);

    void strike(Connection& connection, const ProxyRule& rule, std::string& bytes);

    void from_server(Connection& connection);

    void push(Direction& direction, std::string bytes, std::chrono::milliseconds delay, std::size_t piece);

    /// Lets the server read all that it was sent and then the end of the stream; it closes when it has answered.
    static void drain(Connection& connection);

    static void write_out(Connection& connection, Direction& direction, const Fd& to, std::uint64_t& count);

    static void finish(Direction& direction, const Fd& to);

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
