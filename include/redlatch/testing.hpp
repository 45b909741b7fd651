// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/testing/in_memory_connection.hpp"
#include "redlatch/testing/in_memory_redis.hpp"
#include "redlatch/transport/reply.hpp"
#include "redlatch/transport/transport.hpp"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

// A Redis server inside the process, for unit tests of programs that use redlatch. Not part of redlatch.hpp, because it
// needs Lua 5.1 to run the library's scripts: link redlatch::testing, or -llua5.1.
//
//     redlatch::testing::InMemoryServer server;
//     redlatch::Client shop{server.transport()}, rival{server.transport()};
//     redlatch::RLock order{shop, "order"}, same_order{rival, "order"};
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace testing {

// Connects one client to an InMemoryServer, which it may outlive. Replies arrive at once. After a fork() the child has
// no server: its commands fail as they do if a server cannot be reached.
class InMemoryTransport {
public:
    // Connects to the server. InMemoryServer::transport() does it.
    explicit InMemoryTransport(std::shared_ptr<detail::InMemoryRedis> server)
        : server_(std::move(server)), connection_(server_->connect()) {}
    // Takes over the connection.
    InMemoryTransport(InMemoryTransport&&) = default;
    InMemoryTransport& operator=(InMemoryTransport&&) = delete;

    // Ends the connection. Completes the posted commands that no run() will complete.
    ~InMemoryTransport() {
        // First, because completions may post more.
        if (connection_) connection_->end();
        if (server_) server_->disconnect(*connection_);
    }

    // Carries the command out: see CallsAndWaits.
    Reply call(const Command& command, Instant deadline) {
        if (server_) return server_->call(*connection_, command.words, deadline);
        if (deadline != never) std::this_thread::sleep_until(deadline);
        return no_server();
    }

    // Carries the commands out, one after another: see CallsSeveral.
    std::vector<Reply> call_all(std::span<const Command> commands, Instant deadline) {
        std::vector<Reply> replies;
        for (const Command& command : commands) replies.push_back(call(command, deadline));
        return replies;
    }

    // Carries the command out; run() calls the completion: see Posts.
    void post(const Command& command, Completion done) {
        if (server_) return server_->post(*connection_, command.words, std::move(done));
        connection_->add(std::move(done), no_server());
    }

    // Subscribes to the channel: see Subscribes.
    void subscribe(const std::string& channel) {
        if (server_) server_->subscribe(*connection_, channel);
    }

    // Ends the subscription to the channel: see Subscribes.
    void unsubscribe(const std::string& channel) {
        if (server_) server_->unsubscribe(*connection_, channel);
    }

    // Delivers messages and completions: see Subscribes.
    void run(Listener& listener, Instant deadline) { connection_->run(listener, deadline); }

    // Makes run() return: see Subscribes.
    void wake() { connection_->wake(); }

    // Returns 0: there is one place for all keys.
    std::uint32_t route(std::string_view) const noexcept { return 0; }

    // Returns PUBLISH.
    std::string_view publish_command() const noexcept { return "PUBLISH"; }

    // Returns the beginning of time: it is always the same one. See TellsServer.
    std::optional<Instant> same_server_since() const noexcept { return Instant{}; }

    // Returns a transport for a forked child, where there is no server: see SurvivesFork.
    InMemoryTransport clone_after_fork() { return InMemoryTransport(); }

private:
    InMemoryTransport() : connection_(std::make_shared<detail::InMemoryConnection>()) {}

    static Reply no_server() {
        return Reply::of(Reply::Kind::not_sent, "an in-memory server does not outlive a fork()");
    }

    std::shared_ptr<detail::InMemoryRedis> server_;
    std::shared_ptr<detail::InMemoryConnection> connection_;
};

static_assert(Transport<InMemoryTransport>);

// A Redis server without a socket. All primitives work on it, between any number of clients; for a RedLock use several
// servers. It has no replicas and no disk, so a client or an object with require_replicas or require_fsync is refused.
// Any thread may call any function.
//
// Time. The server has a clock of its own. It starts at the present and runs with real time; advance() moves it. What
// the server decides follows this clock: keys expire, permits end, late commands are refused. What a client decides
// follows the steady clock of the process, which advance() does not move: when the watchdog renews, when a wait is
// over, when lost() is requested because a lease may have ended. So after advance():
//   - Waiters look again at once, and get what has expired.
//   - The holder of an expired lock finds out when it next asks the server: at its next renewal (a third of
//     ClientOptions::watchdog_timeout, so choose a short one), at is_held(), at unlock(), or soon after
//     fail_over(). Then lost() is requested.
//   - A hold that is renewed in time never expires by itself. advance() by more than its lease is a process that was
//     paused for as long. The lease of a hold that a release handed on is 2 s until its first renewal.
class InMemoryServer {
public:
    // Starts an empty server.
    InMemoryServer() = default;
    InMemoryServer(const InMemoryServer&) = delete;
    InMemoryServer& operator=(const InMemoryServer&) = delete;

    // Returns a connection for a new client: Client client{server.transport()}.
    InMemoryTransport transport() const { return InMemoryTransport(server_); }

    // --- the clock ------------------------------------------------------------------------------------------------

    // Returns the server's time.
    std::chrono::system_clock::time_point now() const {
        return std::chrono::system_clock::time_point(
            std::chrono::duration_cast<std::chrono::system_clock::duration>(server_->time()));
    }

    // Moves the clock. It goes on from there.
    void advance(std::chrono::nanoseconds by) { server_->advance(by); }

    // Stops the clock, except for advance(), or lets it run again.
    void freeze_clock(bool frozen = true) { server_->freeze_clock(frozen); }

    // --- faults ---------------------------------------------------------------------------------------------------

    // Makes the server unreachable, or reachable again. Subscriptions end, and are made again. A call waits for the
    // server as it does for a real one, so choose a short ClientOptions::unreachable_timeout.
    void refuse(bool refuses = true) { server_->refuse(refuses); }

    // Carries out the next commands, but loses their replies. Queries of the time do not count.
    void drop_replies(std::size_t count) { server_->drop_replies(count); }

    // Deletes all data, as a restart without persistence does.
    void flush() { server_->flush(); }

    // Tells all clients that another server with the same data is the master now. They verify their holds at once, so a
    // hold that has expired, or that flush() deleted, is lost within a second. Raises Event::Kind::moved.
    void fail_over() { server_->fail_over(); }

    // --- the data -------------------------------------------------------------------------------------------------

    // Carries out a command as another program would: server.command({"GET", "key"}). Knows those that the library
    // sends; another one is an error.
    Reply command(std::span<const std::string_view> words) { return server_->command(words); }
    Reply command(std::initializer_list<std::string_view> words) {
        return command(std::span<const std::string_view>(words.begin(), words.size()));
    }

    // Returns all keys, sorted.
    std::vector<std::string> keys() const { return server_->keys(); }

    // Returns the channels to which some client subscribes, sorted.
    std::vector<std::string> channels() const { return server_->channels(); }

private:
    const std::shared_ptr<detail::InMemoryRedis> server_ = std::make_shared<detail::InMemoryRedis>();
};

}  // namespace testing
}  // namespace REDLATCH_ABI
}  // namespace redlatch
