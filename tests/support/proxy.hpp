// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
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

/// A proxy between clients and a server, in a thread of its own. It causes network faults, and its counts prove that
/// they happened. Any thread may call any function, which has taken effect when it returns.
///
/// It does not know the protocol: a rule matches if its bytes occur in the data that a client sends (of a rule for messages:
/// that the server sends), also across reads.
/// Data that a client sends at once counts as one request. So with several commands in flight, a rule also affects the
/// commands around the matching one, as a real cut would. TCP loses no message in the middle of a stream. So nothing
/// follows a dropped message: the connection is closed, or silent from there on.
///
/// A dropped reply means that the server did execute the request. The connection is closed after the reply has come
/// back and the server has read and answered everything that was sent to it.
class Proxy {
public:
    /// `upstream` is unix:///path, redis://127.0.0.1:port, or a bare path.
    explicit Proxy(const std::string& upstream, bool tcp = false);
    ~Proxy();

    std::string socket_path() const;
    std::string url() const;
    std::string tcp_url() const;
    int port() const;

    /// The server never receives these requests.
    void drop_next_requests(int count, std::string containing = {}, Then then = Then::close);

    /// The server executes these requests; the client never receives the replies.
    void drop_next_replies(int count, std::string containing = {}, Then then = Then::close);

    /// The server receives that many bytes of the next such request. Then both ends are closed.
    void cut_after_request_bytes(std::size_t bytes, std::string containing = {});

    /// The client receives that many bytes of the next such reply. Then both ends are closed.
    void cut_after_reply_bytes(std::size_t bytes, std::string containing = {});

    /// These requests wait in the proxy until release(), or for `hold_for`.
    void hold_next_requests(int count, std::string containing = {},
                            std::optional<std::chrono::milliseconds> hold_for = std::nullopt);

    /// The server executes these requests, and their replies wait in the proxy until release().
    void hold_next_replies(int count, std::string containing = {});

    /// The clients never receive these messages. Nor do they receive what follows.
    void drop_next_messages(int count, std::string containing, Then then = Then::close);

    /// These messages wait in the proxy until release(), or for `hold_for`.
    void hold_next_messages(int count, std::string containing,
                            std::optional<std::chrono::milliseconds> hold_for = std::nullopt);

    /// Returns the processes whose messages hold_next_messages() has held back since the last call. Knows only clients on a
    /// unix socket.
    std::vector<pid_t> take_recipients();

    void release();

    /// Returns all requests so far that hold_next_requests() held back and that have been let go since.
    std::vector<LateArrival> late_arrivals();

    void add(ProxyRule rule);

    /// Removes all rules for requests, also those that matched a request whose reply is still to come.
    void clear_rules();

    /// Removes the rules for messages for which `which` returns true.
    void clear_message_rules(const std::function<bool(const ProxyRule&)>& which);

    /// From now on delays each message by that time.
    void delay(std::chrono::milliseconds to_server, std::chrono::milliseconds to_client);

    /// From now on sends replies in pieces of that many bytes, with a pause after each. 0: whole again, and at once
    /// what has gathered.
    void trickle(std::size_t bytes, std::chrono::milliseconds pause);

    /// On: no byte passes in either direction, and neither side is notified. Off: the traffic continues.
    void blackhole(bool on);

    /// On: new connections are closed as soon as they are accepted.
    void refuse(bool on);

    /// That side of every connection receives the end of the stream, but its own bytes are still accepted.
    void half_close(Side side);

    /// Closes all connections. Over TCP the clients receive a reset.
    void kill_all();

    /// Connects to this server from now on.
    void upstream(const std::string& url);

    ProxyCounts counts();

private:
    struct Direction;
    struct Connection;

    std::optional<TimePoint> prepare(std::vector<pollfd>& fds);

    void ready(const std::vector<pollfd>& fds);

    void accept_all(const Fd& listener);

    /// Reads everything available, so that a request that was sent at once is matched at once.
    static std::string read_all(const Fd& fd, Direction& direction);

    void from_client(Connection& connection);

    void strike(Connection& connection, const ProxyRule& rule, std::string& bytes);

    void from_server(Connection& connection);

    void strike_message(Connection& connection, const ProxyRule& rule, std::string& bytes);

    /// Counts a dropped message. Nothing follows it.
    void end_after_drop(Connection& connection, Direction& direction, Then then);

    void push(Direction& direction, std::string bytes, std::chrono::milliseconds delay, std::size_t piece);

    /// Sends the server all data and the end of the stream. The server closes the connection when it has answered.
    static void drain(Connection& connection);

    /// Ends a hold whose time is over.
    void let_go(const Connection& connection, Direction& direction);

    void write_out(Connection& connection, Direction& direction, const Fd& to, std::uint64_t& count);

    static void finish(Direction& direction, const Fd& to);

    TempDir dir_;
    int port_ = 0;
    std::vector<Fd> listeners_;
    Endpoint upstream_;
    std::list<Connection> connections_;
    ProxyRules rules_;
    ProxyRules message_rules_;
    std::vector<pid_t> recipients_;
    ProxyCounts counts_;
    std::vector<LateArrival> late_arrivals_;
    std::chrono::milliseconds delay_up_{0};
    std::chrono::milliseconds delay_down_{0};
    std::size_t piece_ = 0;
    std::chrono::milliseconds pause_{0};
    bool blackhole_ = false;
    bool refuse_ = false;
    std::optional<PollThread> thread_;  // last: the thread ends before the members that it uses
};

}  // namespace redlatch::test
