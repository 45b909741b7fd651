// SPDX-License-Identifier: MIT
#pragma once

#include "simulation/library.hpp"
#include "simulation/scheduler.hpp"

#include <redlatch/testing/server_model.hpp>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace sim {

// The faults of the network and the servers, and their rates. The seed draws them all.
struct Faults {
    Nanos least_delay = 20 * us;
    Nanos most_delay = 200 * us;
    unsigned slow = 0;  // per mille of the messages that take up to slow_delay
    Nanos slow_delay = 0;
    unsigned cuts = 0;      // per mille of the messages that end their connection
    unsigned silences = 0;  // per mille of the attempts to connect that get no answer
    bool lates = false;     // some commands arrive late; their connection ends
    Nanos latest_copy = 0;  // how late a command may reach the server after the end of its connection
    bool restarts = false;
    bool loses_data = false;
    bool crashes = false;

    bool any() const { return cuts > 0 || lates || silences > 0 || restarts || crashes; }
};

class Server;

// One connection between a client and a server. It keeps messages in order and loses none before its end. But both
// sides notice the end at different times, and messages under way may get lost or arrive late.
struct Connection : std::enable_shared_from_this<Connection> {
    Connection(Server& s, std::uint64_t n) : server(s), number(n) {}

    using Words = std::vector<std::string>;
    void send(Words words, std::function<void(redlatch::Reply)> answered);
    void push(std::function<void()> arrived);  // from the server to the client
    void cut(bool late = false);
    void close();  // by the client

    Server& server;
    const std::uint64_t number;
    int process = 0;
    bool requests_pass = true;
    bool replies_pass = true;
    bool cut_short = false;
    bool closed = false;     // the client knows
    bool forgotten = false;  // the server knows, but may still read messages under way
    Nanos copies_late = 0;
    Nanos last_request = 0;
    Nanos last_reply = 0;
    std::function<void()> on_closed;
    std::function<void(const std::string& channel, const std::string& payload)> on_message;
};

// One Redis server and the network around it.
class Server {
public:
    Server(std::string name, const Faults& faults, Nanos clock_offset);
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    // Returns null if the server is down.
    std::shared_ptr<Connection> connect(int process);
    redlatch::Reply execute(Connection& from, const Connection::Words& words);

    void restart(bool keeps_data, Nanos away);
    void cut_connections(int process);   // all connections of a process, at once
    void lose_connections(int process);  // the same, but each side notices it later

    // Converts our time to that of its clock, and back.
    Nanos clock_at(Nanos now) const { return now + clock_offset_; }
    Nanos instant_of(Nanos clock) const { return clock - clock_offset_; }

    redlatch::detail::ServerModel& model();  // at the present time
    redlatch::detail::Keyspace& keyspace() { return model().keyspace; }
    const Faults& faults() const { return faults_; }
    void calm() { faults_ = Faults{}; }
    Nanos delay();
    // Per mille of the commands like this one that arrive late. Drawn by command, so that rare ones come late, too.
    unsigned late_rate(const Connection::Words& words);
    std::uint64_t commands() const { return commands_; }
    std::size_t subscriptions() const;
    bool is_up() const { return up_; }
    const std::string& name() const { return name_; }

private:
    friend struct Connection;
    std::int64_t publish(std::string_view channel, std::string_view payload);
    void forget(Connection& connection);

    const std::string name_;
    Faults faults_;
    const Nanos clock_offset_;
    bool up_ = true;
    redlatch::detail::ServerModel model_;
    std::uint64_t commands_ = 0;
    std::uint64_t connections_so_far_ = 0;
    std::map<std::string, std::vector<std::shared_ptr<Connection>>, std::less<>> subscribers_;
    std::vector<std::weak_ptr<Connection>> connections_;
    std::map<std::string, unsigned, std::less<>> late_rates_;
};

}  // namespace sim
