// SPDX-License-Identifier: MIT
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <list>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "poll_thread.hpp"
#include "socket.hpp"
#include "temp_dir.hpp"

namespace redlatch::test {

using CommandWords = std::vector<std::string>;

/// The reply of the scripted server to a command.
struct ScriptedReply {
    ScriptedReply(std::string raw = {}) : bytes(std::move(raw)) {}
    ScriptedReply(const char* raw) : bytes(raw) {}

    std::string bytes;                   // as sent over the connection; empty: no reply
    std::size_t piece = 0;               // bytes sent at a time; 0: all at once
    std::chrono::milliseconds pause{0};  // between the pieces
    bool close = false;                  // close the connection after the bytes
};

namespace detail {

/// Removes the first whole command from the buffer. Returns nothing if it is incomplete. Throws if it is no command.
inline std::optional<CommandWords> take_command(std::string& buffer) {
    const auto line_end = [&](std::size_t from) { return buffer.find("\r\n", from); };
    const auto number_at = [&](std::size_t at, char mark) {
        char* end = nullptr;
        const long value = std::strtol(buffer.c_str() + at + 1, &end, 10);
        if (buffer[at] != mark || *end != '\r' || value < 0) throw std::runtime_error("not a RESP command");
        return static_cast<std::size_t>(value);
    };
    std::size_t at = line_end(0);
    if (at == std::string::npos) return std::nullopt;
    CommandWords words;
    const std::size_t count = number_at(0, '*');
    at += 2;
    while (words.size() < count) {
        const std::size_t end = line_end(at);
        if (end == std::string::npos) return std::nullopt;
        const std::size_t size = number_at(at, '$');
        if (buffer.size() < end + 2 + size + 2) return std::nullopt;
        words.push_back(buffer.substr(end + 2, size));
        at = end + 2 + size + 2;
    }
    buffer.erase(0, at);
    return words;
}

}  // namespace detail

/// The reply to TIME, which clients send before the first command that is wanted for a limited time only.
inline constexpr const char* time_told = "*2\r\n$10\r\n1700000000\r\n$1\r\n0\r\n";

/// Answers TIME itself, and passes all other commands to the handler.
template <class Handler>
auto telling_time(Handler handler) {
    return [handler](const CommandWords& command) -> ScriptedReply {
        return command[0] == "TIME" ? ScriptedReply{time_told} : handler(command);
    };
}

/// A server on a private unix socket whose replies the test chooses, byte for byte: for replies that a real server does
/// not send. Any thread may call its functions.
class ScriptedServer {
public:
    /// Called for each command, one at a time, on the server's own thread.
    using Handler = std::function<ScriptedReply(const CommandWords& command)>;

    explicit ScriptedServer(Handler handler)
        : ScriptedServer(Numbered{}, [handler](std::size_t, const CommandWords& command) { return handler(command); }) {
    }

    /// The n-th command of each connection gets the n-th reply. One command more closes the connection.
    explicit ScriptedServer(std::vector<ScriptedReply> replies)
        : ScriptedServer(Numbered{}, [replies](std::size_t number, const CommandWords&) {
              if (number < replies.size()) return replies[number];
              ScriptedReply over;
              over.close = true;
              return over;
          }) {}

    std::string socket_path() const { return dir_.file("scripted.sock"); }
    std::string url() const { return "unix://" + socket_path(); }

    /// Sends the bytes to all connections, unrequested: messages of subscriptions, for example.
    void push(const std::string& bytes) {
        thread_->call([&] {
            for (Connection& connection : connections_) connection.out.push(bytes, std::chrono::steady_clock::now());
        });
    }

    void close_all() {
        thread_->call([this] { connections_.clear(); });
    }

    /// Returns the commands so far, of all connections, in the order of arrival.
    std::vector<CommandWords> received() {
        std::vector<CommandWords> result;
        thread_->call([&] { result = received_; });
        return result;
    }

    /// The number of connections that are open now, and the number of all connections so far.
    std::size_t open_connections() {
        std::size_t result = 0;
        thread_->call([&] { result = connections_.size(); });
        return result;
    }
    std::size_t accepted() {
        std::size_t result = 0;
        thread_->call([&] { result = accepted_; });
        return result;
    }

private:
    struct Numbered {};
    using Answer = std::function<ScriptedReply(std::size_t number, const CommandWords& command)>;

    struct Connection {
        Fd fd;
        std::string in = {};
        Outgoing out = {};
        std::size_t commands = 0;
        bool closing = false;  // as soon as everything is written
        bool closed = false;
        std::size_t slot = 0;
    };

    ScriptedServer(Numbered, Answer answer) : answer_(std::move(answer)), listener_(listen_on({socket_path()})) {
        thread_.emplace([this](auto& fds) { return prepare(fds); }, [this](const auto& fds) { ready(fds); });
    }

    std::optional<TimePoint> prepare(std::vector<pollfd>& fds) {
        std::optional<TimePoint> until;
        const TimePoint now = std::chrono::steady_clock::now();
        fds.push_back({listener_.get(), POLLIN, 0});
        for (Connection& connection : connections_) {
            connection.slot = fds.size();
            const auto due = connection.out.due();
            if (due && *due > now) until = std::min(until.value_or(*due), *due);
            const int events = POLLIN | (due && *due <= now ? POLLOUT : 0);
            fds.push_back({connection.fd.get(), static_cast<short>(events), 0});
        }
        return until;
    }

    void ready(const std::vector<pollfd>& fds) {
        for (Connection& connection : connections_) {
            if ((fds[connection.slot].revents & ~POLLOUT) != 0) read(connection);
            if (!connection.out.flush(connection.fd)) connection.closed = true;
            if (connection.closing && connection.out.empty()) connection.closed = true;
        }
        connections_.remove_if([](const Connection& connection) { return connection.closed; });
        if (fds[1].revents == 0) return;
        Fd fd{::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
        if (!fd) return;
        ++accepted_;
        connections_.push_back({std::move(fd)});
    }

    void read(Connection& connection) {
        if (read_some(connection.fd, connection.in) == ReadState::closed) connection.closed = true;
        try {
            while (const auto command = connection.closing ? std::nullopt : detail::take_command(connection.in)) {
                received_.push_back(*command);
                const ScriptedReply reply = answer_(connection.commands++, *command);
                connection.out.push(reply.bytes, std::chrono::steady_clock::now(), reply.piece, reply.pause);
                connection.closing = reply.close;
            }
        } catch (const std::exception& error) {
            std::cerr << "scripted server: " << error.what() << std::endl;
            connection.closed = true;
        }
    }

    TempDir dir_;
    Answer answer_;
    Fd listener_;
    std::list<Connection> connections_;
    std::vector<CommandWords> received_;
    std::size_t accepted_ = 0;
    std::optional<PollThread> thread_;  // last: the thread ends before the members that it uses
};

}  // namespace redlatch::test
