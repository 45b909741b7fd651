// SPDX-License-Identifier: MIT
#include "proxy.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "history.hpp"

namespace redlatch::test {

namespace {

constexpr std::size_t most_queued = 1 << 20;

TimePoint until(const ProxyRule& rule) {
    return rule.hold_for ? std::chrono::steady_clock::now() + *rule.hold_for : TimePoint::max();
}

// Returns the process at the other end of a unix socket; 0 if that is not known.
pid_t peer_of(const Fd& socket) {
#ifdef SO_PEERCRED
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0) return peer.pid;
#else
    static_cast<void>(socket);
#endif
    return 0;
}

}  // namespace

struct Proxy::Direction {
    Outgoing out = {};
    bool eof = false;           // the source has ended
    bool finished = false;      // the target knows that: further bytes are discarded
    TimePoint held_until = {};  // max: held until release(); the default: not held

    bool is_held(TimePoint now) const { return now < held_until; }
    bool silent = false;
};

struct Proxy::Connection {
    Fd client;
    Fd server;
    Direction up = {};
    Direction down = {};
    std::string window = {};          // the last bytes that the client sent, as many as a match may need
    std::string message_window = {};  // those that the server sent
    std::optional<ProxyRule> drop_reply = {};
    bool draining = false;  // the client gets no more bytes, and is closed when the server has closed
    bool broken = false;
    std::size_t slot = 0;  // index of the client among the polled descriptors; the server's is the next
};

Proxy::Proxy(const std::string& upstream, bool tcp) : upstream_(Endpoint::parse(upstream)) {
    listeners_.push_back(listen_on({socket_path()}));
    while (tcp && port_ == 0) {
        const int port = pick_free_port();
        try {
            listeners_.push_back(listen_on({{}, port}));
            port_ = port;
        } catch (const std::system_error&) {  // another process was faster
        }
    }
    thread_.emplace([this](auto& fds) { return prepare(fds); }, [this](const auto& fds) { ready(fds); });
}

Proxy::~Proxy() = default;

std::string Proxy::socket_path() const { return dir_.file("proxy.sock"); }

std::string Proxy::url() const { return "unix://" + socket_path(); }

std::string Proxy::tcp_url() const { return Endpoint{{}, port()}.url(); }

int Proxy::port() const {
    if (port_ == 0) throw std::logic_error("this proxy was made without tcp");
    return port_;
}

void Proxy::drop_next_requests(int count, std::string containing, Then then) {
    add({ProxyRule::Fault::drop_request, std::move(containing), count, 0, then, 0, {}});
}

void Proxy::drop_next_replies(int count, std::string containing, Then then) {
    add({ProxyRule::Fault::drop_reply, std::move(containing), count, 0, then, 0, {}});
}

void Proxy::cut_after_request_bytes(std::size_t bytes, std::string containing) {
    add({ProxyRule::Fault::drop_request, std::move(containing), 1, 0, Then::close, bytes, {}});
}

void Proxy::cut_after_reply_bytes(std::size_t bytes, std::string containing) {
    add({ProxyRule::Fault::drop_reply, std::move(containing), 1, 0, Then::close, bytes, {}});
}

void Proxy::hold_next_requests(int count, std::string containing, std::optional<std::chrono::milliseconds> hold_for) {
    add({ProxyRule::Fault::hold_request, std::move(containing), count, 0, Then::close, 0, hold_for});
}

void Proxy::hold_next_replies(int count, std::string containing) {
    add({ProxyRule::Fault::hold_reply, std::move(containing), count, 0, Then::close, 0, {}});
}

void Proxy::drop_next_messages(int count, std::string containing, Then then) {
    add({ProxyRule::Fault::drop_message, std::move(containing), count, 0, then, 0, {}});
}

void Proxy::hold_next_messages(int count, std::string containing, std::optional<std::chrono::milliseconds> hold_for) {
    add({ProxyRule::Fault::hold_message, std::move(containing), count, 0, Then::close, 0, hold_for});
}

std::vector<pid_t> Proxy::take_recipients() {
    std::vector<pid_t> result;
    thread_->call([&] { result = std::exchange(recipients_, {}); });
    return result;
}

void Proxy::release() {
    thread_->call([this] {
        const TimePoint now = std::chrono::steady_clock::now();
        for (Connection& connection : connections_)
            for (Direction* direction : {&connection.up, &connection.down})
                direction->held_until = std::min(direction->held_until, now);
    });
}

std::vector<LateArrival> Proxy::late_arrivals() {
    std::vector<LateArrival> result;
    thread_->call([&] { result = late_arrivals_; });
    return result;
}

void Proxy::add(ProxyRule rule) {
    const bool is_for_messages =
        rule.fault == ProxyRule::Fault::drop_message || rule.fault == ProxyRule::Fault::hold_message;
    thread_->call([&] { (is_for_messages ? message_rules_ : rules_).add(std::move(rule)); });
}

void Proxy::clear_rules() {
    thread_->call([this] {
        rules_.clear();
        for (Connection& connection : connections_) connection.drop_reply.reset();
    });
}

void Proxy::clear_message_rules(const std::function<bool(const ProxyRule&)>& which) {
    thread_->call([&] { message_rules_.clear_if(which); });
}

void Proxy::delay(std::chrono::milliseconds to_server, std::chrono::milliseconds to_client) {
    thread_->call([&] {
        delay_up_ = to_server;
        delay_down_ = to_client;
    });
}

void Proxy::trickle(std::size_t bytes, std::chrono::milliseconds pause) {
    thread_->call([&] {
        piece_ = bytes;
        pause_ = pause;
        // What has gathered would go on trickling, and hold up all that comes after it.
        if (bytes != 0) return;
        for (Connection& connection : connections_)
            for (Direction* direction : {&connection.up, &connection.down}) direction->out.hurry();
    });
}

void Proxy::blackhole(bool on) {
    thread_->call([&] { blackhole_ = on; });
}

void Proxy::refuse(bool on) {
    thread_->call([&] { refuse_ = on; });
}

void Proxy::half_close(Side side) {
    thread_->call([&] {
        for (Connection& connection : connections_) {
            Direction& direction = side == Side::client ? connection.down : connection.up;
            finish(direction, side == Side::client ? connection.client : connection.server);
        }
    });
}

void Proxy::kill_all() {
    thread_->call([this] {
        const linger reset{1, 0};
        for (const Connection& connection : connections_) {
            ::setsockopt(connection.client.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        }
        connections_.clear();
    });
}

void Proxy::upstream(const std::string& url) {
    thread_->call([&] { upstream_ = Endpoint::parse(url); });
}

ProxyCounts Proxy::counts() {
    ProxyCounts result;
    thread_->call([&] {
        result = counts_;
        result.open = connections_.size();
        const TimePoint now = std::chrono::steady_clock::now();
        for (const Connection& connection : connections_) {
            result.held += (connection.up.is_held(now) && !connection.up.out.empty()) ||
                           (connection.down.is_held(now) && !connection.down.out.empty());
        }
    });
    return result;
}

std::optional<TimePoint> Proxy::prepare(std::vector<pollfd>& fds) {
    std::optional<TimePoint> until;
    const TimePoint now = std::chrono::steady_clock::now();
    const auto events = [&](bool read, const Direction& write) {
        short wanted = read ? POLLIN : short{0};
        auto due = write.out.due();
        if (due && write.held_until != TimePoint::max()) {
            due = std::max(*due, write.held_until);
            if (*due <= now)
                wanted = static_cast<short>(wanted | POLLOUT);
            else
                until = std::min(until.value_or(*due), *due);
        }
        return wanted;
    };
    // Leave out a descriptor without wanted events: poll would report its hang-up again and again.
    const auto add = [&](const Fd& fd, short wanted) { fds.push_back({wanted != 0 ? fd.get() : -1, wanted, 0}); };
    for (const Fd& listener : listeners_) add(listener, blackhole_ ? short{0} : POLLIN);
    for (Connection& connection : connections_) {
        connection.slot = fds.size();
        const bool read_client = !connection.up.eof && !connection.draining && connection.up.out.size() < most_queued;
        const bool read_server = !connection.down.eof && connection.down.out.size() < most_queued;
        add(connection.client, blackhole_ ? short{0} : events(read_client, connection.down));
        add(connection.server, blackhole_ ? short{0} : events(read_server, connection.up));
    }
    return until;
}

void Proxy::ready(const std::vector<pollfd>& fds) {
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

void Proxy::accept_all(const Fd& listener) {
    while (true) {
        Fd client{::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
        if (!client) return;
        const int on = 1;
        ::setsockopt(client.get(), IPPROTO_TCP, TCP_NODELAY, &on,
                     sizeof on);  // fails on a unix socket, which is harmless
        ++counts_.accepted;
        Fd server = refuse_ ? Fd{} : begin_connect(upstream_);
        if (server)
            connections_.push_back({std::move(client), std::move(server)});
        else
            ++counts_.refused;
    }
}

std::string Proxy::read_all(const Fd& fd, Direction& direction) {
    std::string bytes;
    ReadState state = ReadState::data;
    while (state == ReadState::data && bytes.size() < most_queued) state = read_some(fd, bytes);
    if (state == ReadState::closed) direction.eof = true;
    return bytes;
}

void Proxy::from_client(Connection& connection) {
    std::string bytes = read_all(connection.client, connection.up);
    if (bytes.empty() || connection.up.silent) return;
    // One fault at a time: a second request in flight is lost with the first, and the rule waits for its retry.
    if (connection.drop_reply) return push(connection.up, std::move(bytes), delay_up_, 0);
    if (const auto rule = rules_.match(connection.window, bytes)) {
        // Replies that have arrived already are older than this request.
        from_server(connection);
        strike(connection, *rule, bytes);
    }
    push(connection.up, std::move(bytes), delay_up_, 0);
}

void Proxy::strike(Connection& connection, const ProxyRule& rule, std::string& bytes) {
    ++counts_.matched;
    switch (rule.fault) {
        case ProxyRule::Fault::hold_request: connection.up.held_until = until(rule); break;
        case ProxyRule::Fault::hold_reply: connection.down.held_until = until(rule); break;
        case ProxyRule::Fault::drop_reply: connection.drop_reply = rule; break;
        case ProxyRule::Fault::drop_request:
            bytes.resize(rule.then == Then::silence ? 0 : std::min(bytes.size(), rule.bytes));
            end_after_drop(connection, connection.up, rule.then);
            break;
        case ProxyRule::Fault::drop_message:
        case ProxyRule::Fault::hold_message: break;  // see strike_message()
    }
}

void Proxy::strike_message(Connection& connection, const ProxyRule& rule, std::string& bytes) {
    ++counts_.messages;
    if (rule.fault == ProxyRule::Fault::hold_message) {
        connection.down.held_until = until(rule);
        if (const pid_t recipient = peer_of(connection.client); recipient > 0) recipients_.push_back(recipient);
        return;
    }
    bytes.clear();
    end_after_drop(connection, connection.down, rule.then);
}

void Proxy::end_after_drop(Connection& connection, Direction& direction, Then then) {
    ++counts_.dropped;
    if (then == Then::silence)
        direction.silent = true;
    else
        drain(connection);
}

void Proxy::from_server(Connection& connection) {
    std::string bytes = read_all(connection.server, connection.down);
    if (bytes.empty() || connection.draining || connection.down.silent) return;
    if (connection.drop_reply) {
        ProxyRule& rule = *connection.drop_reply;
        const std::size_t passed = rule.then == Then::silence ? 0 : std::min(bytes.size(), rule.bytes);
        rule.bytes -= passed;
        if (rule.then == Then::silence || rule.bytes == 0) {
            bytes.resize(passed);
            end_after_drop(connection, connection.down, rule.then);
            connection.drop_reply.reset();
        }
    }
    if (const auto rule = message_rules_.match(connection.message_window, bytes))
        strike_message(connection, *rule, bytes);
    push(connection.down, std::move(bytes), delay_down_, piece_);
}

void Proxy::push(Direction& direction, std::string bytes, std::chrono::milliseconds delay, std::size_t piece) {
    if (direction.finished || bytes.empty()) return;
    direction.out.push(std::move(bytes), std::chrono::steady_clock::now() + delay, piece, pause_);
}

void Proxy::drain(Connection& connection) {
    connection.draining = true;
    connection.up.eof = true;
}

void Proxy::let_go(const Connection& connection, Direction& direction) {
    if (direction.held_until == TimePoint{}) return;
    direction.held_until = {};
    if (&direction == &connection.up && !direction.out.empty())
        late_arrivals_.push_back({monotonic_ns(), direction.out.text()});
}

void Proxy::write_out(Connection& connection, Direction& direction, const Fd& to, std::uint64_t& count) {
    if (connection.broken || direction.is_held(std::chrono::steady_clock::now())) return;
    let_go(connection, direction);
    if (const auto sent = direction.out.flush(to))
        count += *sent;
    else
        connection.broken = true;
    const bool kept_open = direction.silent || (connection.draining && &direction == &connection.down);
    if (direction.eof && direction.out.empty() && !direction.finished && !kept_open) finish(direction, to);
}

void Proxy::finish(Direction& direction, const Fd& to) {
    ::shutdown(to.get(), SHUT_WR);
    direction.finished = true;
    direction.out.clear();
}

}  // namespace redlatch::test
