// SPDX-License-Identifier: MIT
#include "simulation/server.hpp"

#include "simulation/late_arrivals.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

namespace sim {

namespace {

using redlatch::Reply;

std::string line_of(const Connection::Words& words) {
    std::string line;
    for (const std::string& word : words) line += " " + word.substr(0, 60);
    return line;
}

// All servers of all seeds run the same few scripts.
redlatch::detail::ScriptHost& scripts() {
    static redlatch::detail::ScriptHost host;
    return host;
}

std::chrono::nanoseconds since_start(Nanos instant) { return std::chrono::nanoseconds(instant); }

}  // namespace

// --- a connection ----------------------------------------------------------------------------------------------------

void Connection::send(Words words, std::function<void(Reply)> answered) {
    Scheduler& s = scheduler();
    if (!cut_short && s.random().chance(server.late_rate(words))) cut(true);
    if (!cut_short && s.random().chance(server.faults().cuts)) cut();
    last_request = std::max(last_request, s.now() + server.delay());
    auto deliver = [self = shared_from_this(), words = std::move(words), answered = std::move(answered)] {
        if (!self->requests_pass || !self->server.is_up()) return;
        if (self->copies_late > beyond_marks) late_arrivals().note(words);
        Reply reply = self->server.execute(*self, words);
        if (scheduler().random().chance(self->server.faults().cuts)) self->cut();
        self->push([answered, reply = std::move(reply)]() mutable { answered(std::move(reply)); });
    };
    s.at(last_request, [self = shared_from_this(), deliver = std::move(deliver)] {
        // The request is in the buffers of an ended connection, but may still reach the server.
        if (self->cut_short && self->copies_late > 0)
            scheduler().at(std::max(self->last_request, scheduler().now()) + self->copies_late, deliver);
        else
            deliver();
    });
}

void Connection::push(std::function<void()> arrived) {
    Scheduler& s = scheduler();
    last_reply = std::max(last_reply, s.now() + server.delay());
    s.at(last_reply, [self = shared_from_this(), arrived = std::move(arrived)] {
        if (self->replies_pass && !self->closed && !scheduler().has_crashed(self->process)) arrived();
    });
}

// Ends the connection for both sides, sooner or later. `late`: the server still receives what is under way, but late.
void Connection::cut(bool late) {
    if (std::exchange(cut_short, true)) return;
    Scheduler& s = scheduler();
    Random& random = s.random();
    s.trace("connection " + std::to_string(number) + " to " + server.name() + " is cut");
    requests_pass = late || random.below(2) == 0;
    replies_pass = requests_pass && random.below(4) == 0;
    // While the command is wanted, while its mark exists, or after all that it could refer to.
    if (requests_pass && server.faults().latest_copy > 0 && (late || random.below(3) == 0))
        copies_late = random.between(
            1, std::min(std::array{second, 40 * second, forever}[random.below(3)], server.faults().latest_copy));
    const Nanos silence = random.below(3) == 0 ? random.between(0, 2 * second) : random.between(0, 2 * ms);
    s.at(s.now() + silence, [self = shared_from_this()] { self->close(); });
    s.at(s.now() + silence + random.between(0, 500 * ms), [self = shared_from_this()] { self->server.forget(*self); });
}

void Connection::close() {
    if (std::exchange(closed, true)) return;
    if (!std::exchange(cut_short, true)) server.forget(*this);
    if (const auto told = std::exchange(on_closed, nullptr)) told();
}

// --- the server ------------------------------------------------------------------------------------------------------

Server::Server(std::string name, const Faults& faults, Nanos clock_offset)
    : name_(std::move(name)), faults_(faults), clock_offset_(clock_offset), model_(scripts()) {
    // Old enough to vote for a RedLock.
    model_.started = since_start(clock_at(scheduler().now()) - 600 * second);
    model_.commands.publish = [this](std::string_view channel, std::string_view payload) {
        return publish(channel, payload);
    };
    model_.commands.subscribers = [this](std::string_view channel) {
        const auto found = subscribers_.find(channel);
        return found == subscribers_.end() ? 0 : static_cast<std::int64_t>(found->second.size());
    };
}

Nanos Server::delay() {
    Random& random = scheduler().random();
    return random.chance(faults_.slow) ? random.between(faults_.most_delay, faults_.slow_delay)
                                       : random.between(faults_.least_delay, faults_.most_delay);
}

unsigned Server::late_rate(const Connection::Words& words) {
    if (!faults_.lates) return 0;
    const std::string& which = words[0] == "EVALSHA" ? words[1] : words[0];
    const auto [at, is_new] = late_rates_.try_emplace(which, 0);
    if (is_new) at->second = scheduler().random().below(3) == 0 ? 250 : 10;
    return at->second;
}

std::shared_ptr<Connection> Server::connect(int process) {
    if (!up_) return nullptr;
    auto connection = std::make_shared<Connection>(*this, ++connections_so_far_);
    connection->process = process;
    connections_.push_back(connection);
    return connection;
}

redlatch::detail::ServerModel& Server::model() {
    model_.keyspace.set_time(since_start(clock_at(scheduler().now())));
    return model_;
}

Reply Server::execute(Connection& from, const Connection::Words& words) {
    ++commands_;
    Reply reply;
    if (words[0] == "SUBSCRIBE") {
        auto& all = subscribers_[words[1]];
        if (!from.forgotten && std::find(all.begin(), all.end(), from.shared_from_this()) == all.end())
            all.push_back(from.shared_from_this());
    } else if (words[0] == "UNSUBSCRIBE") {
        std::erase_if(subscribers_[words[1]], [&](const auto& c) { return c.get() == &from; });
    } else {
        reply = model().execute(std::vector<std::string_view>(words.begin(), words.end()));
    }
    if (scheduler().tracing()) {
        std::string answer = reply.is_integer() ? std::to_string(reply.integer) : reply.text;
        for (const Reply& r : reply.elements) answer += " " + (r.is_integer() ? std::to_string(r.integer) : r.text);
        scheduler().trace(name_ + "/" + std::to_string(from.number) + ":" + line_of(words) + " -> " + answer + "   | " +
                          model_.keyspace.dump());
    }
    return reply;
}

std::int64_t Server::publish(std::string_view channel, std::string_view payload) {
    const auto found = subscribers_.find(channel);
    if (found == subscribers_.end()) return 0;
    for (const auto& connection : found->second)
        connection->push(
            [connection = connection.get(), channel = std::string(channel), payload = std::string(payload)] {
                if (connection->on_message) connection->on_message(channel, payload);
            });
    return static_cast<std::int64_t>(found->second.size());
}

void Server::forget(Connection& connection) {
    connection.forgotten = true;
    for (auto& [_, all] : subscribers_) std::erase_if(all, [&](const auto& c) { return c.get() == &connection; });
}

void Server::restart(bool keeps_data, Nanos away) {
    scheduler().trace(name_ + (keeps_data ? " restarts" : " restarts and forgets"));
    up_ = false;
    subscribers_.clear();
    model_.forget_scripts();
    if (!keeps_data) keyspace().clear();
    for (const auto& weak : std::exchange(connections_, {}))
        if (const auto connection = weak.lock(); connection && !connection->closed) {
            connection->cut_short = true;
            connection->requests_pass = connection->replies_pass = false;
            scheduler().at(scheduler().now() + delay(), [connection] { connection->close(); });
        }
    scheduler().at(scheduler().now() + away, [this] {
        up_ = true;
        model_.started = since_start(clock_at(scheduler().now()));
    });
}

void Server::cut_connections(int process) {
    for (const auto& weak : connections_)
        if (const auto connection = weak.lock(); connection && connection->process == process) {
            connection->requests_pass = scheduler().random().below(2) == 0;
            connection->close();
        }
}

void Server::lose_connections(int process) {
    for (const auto& weak : std::vector(connections_))
        if (const auto connection = weak.lock(); connection && connection->process == process && !connection->closed)
            connection->cut();
}

std::size_t Server::subscriptions() const {
    std::size_t sum = 0;
    for (const auto& [_, all] : subscribers_) sum += all.size();
    return sum;
}

}  // namespace sim
