// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/time.hpp"
#include "redlatch/base/wait_on.hpp"
#include "redlatch/testing/in_memory_connection.hpp"
#include "redlatch/testing/server_model.hpp"
#include "redlatch/transport/reply.hpp"
#include "redlatch/transport/transport.hpp"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// The state that an InMemoryServer shares with its transports: the model of a server, its clock, its clients and its
// faults. Thread-safe: mutex_ guards all members. Only a call() to a server that refuses waits.
class InMemoryRedis {
public:
    using Words = ServerModel::Words;

    InMemoryRedis() {
        model_.commands.publish = [this](std::string_view channel, std::string_view payload) {
            return publish(channel, payload);
        };
        model_.commands.subscribers = [this](std::string_view channel) {
            return std::count_if(clients_.begin(), clients_.end(), [&](const auto& entry) {
                return entry.second.channels.contains(std::string(channel));
            });
        };
        // Old enough to vote for a RedLock.
        model_.started = now() - std::chrono::hours(24);
    }
    InMemoryRedis(const InMemoryRedis&) = delete;
    InMemoryRedis& operator=(const InMemoryRedis&) = delete;

    // --- clients ------------------------------------------------------------------------------------------------

    std::shared_ptr<InMemoryConnection> connect() {
        auto connection = std::make_shared<InMemoryConnection>();
        const std::lock_guard lock(mutex_);
        clients_.emplace(connection.get(), Client{});
        return connection;
    }

    void disconnect(InMemoryConnection& connection) {
        const std::lock_guard lock(mutex_);
        clients_.erase(&connection);
    }

    Reply call(InMemoryConnection& from, Words words, Instant deadline) {
        std::unique_lock lock(mutex_);
        while (refuses_ && Clock::now() < deadline) wait_on(refuses_no_more_, lock, deadline);
        return refuses_ ? refusal() : carry_out(from, words);
    }

    void post(InMemoryConnection& from, Words words, Completion done) {
        const std::lock_guard lock(mutex_);
        // The reply keeps its place among the messages: scripts publish, too.
        Reply reply = refuses_ ? refusal() : carry_out(from, words);
        from.add(std::move(done), std::move(reply));
    }

    void subscribe(InMemoryConnection& from, const std::string& channel) {
        const std::lock_guard lock(mutex_);
        clients_[&from].channels.insert(channel);
        if (!refuses_) confirm(from, channel);
    }

    void unsubscribe(InMemoryConnection& from, const std::string& channel) {
        const std::lock_guard lock(mutex_);
        clients_[&from].channels.erase(channel);
    }

    // --- the test -----------------------------------------------------------------------------------------------

    Reply command(Words words) {
        const std::lock_guard lock(mutex_);
        return at_present().execute(words);
    }

    std::vector<std::string> keys() {
        const std::lock_guard lock(mutex_);
        return at_present().keyspace.keys();
    }

    std::vector<std::string> channels() const {
        const std::lock_guard lock(mutex_);
        std::set<std::string> all;
        for (const auto& [_, client] : clients_) all.insert(client.channels.begin(), client.channels.end());
        return {all.begin(), all.end()};
    }

    std::chrono::nanoseconds time() const {
        const std::lock_guard lock(mutex_);
        return now();
    }

    void advance(std::chrono::nanoseconds by) {
        const std::lock_guard lock(mutex_);
        offset_ += by;
        for (auto& [connection, client] : clients_) {
            client.knows_time = false;
            look_again(*connection, client);
        }
    }

    void freeze_clock(bool frozen) {
        const std::lock_guard lock(mutex_);
        if (frozen == frozen_) return;
        const auto running = Clock::now().time_since_epoch();
        offset_ += frozen ? running : -running;
        frozen_ = frozen;
    }

    void refuse(bool refuses) {
        const std::lock_guard lock(mutex_);
        if (refuses == std::exchange(refuses_, refuses)) return;
        for (auto& [connection, client] : clients_) {
            if (client.channels.empty()) continue;
            if (refuses) connection->add([](Listener& listener) { listener.disconnected(); });
            for (const std::string& channel : client.channels)
                if (!refuses) confirm(*connection, channel);
        }
        refuses_no_more_.notify_all();
    }

    void drop_replies(std::size_t count) {
        const std::lock_guard lock(mutex_);
        replies_to_drop_ = count;
    }

    void flush() {
        const std::lock_guard lock(mutex_);
        at_present().keyspace.clear();
    }

    void fail_over() {
        const std::lock_guard lock(mutex_);
        for (auto& [connection, client] : clients_) {
            connection->add([](Listener& listener) { listener.on_failover(); });
            look_again(*connection, client);
        }
    }

private:
    struct Client {
        std::set<std::string> channels{};  // that it subscribes to
        bool knows_time = true;            // it has learned the time since the clock was moved
    };

    // Since 1970.
    std::chrono::nanoseconds now() const { return frozen_ ? offset_ : offset_ + Clock::now().time_since_epoch(); }

    ServerModel& at_present() {
        model_.keyspace.set_time(now());
        return model_;
    }

    static Reply refusal() { return Reply::of(Reply::Kind::not_sent, "the in-memory server refuses connections"); }

    Reply carry_out(InMemoryConnection& from, Words words) {
        ServerModel& model = at_present();
        Client& client = clients_[&from];
        if (names_old_instant(client, words)) return late(client);
        Reply reply = model.execute(words);
        if (words[0] == "TIME") client.knows_time = true;
        if (reply.text.starts_with("LATE ") || reply.text.starts_with("OK ")) client.knows_time = true;
        // What the library asks on the way does not count: the test means the command that changes something.
        if (replies_to_drop_ == 0 || words[0] == "TIME" || reply.text.starts_with("NOSCRIPT")) return reply;
        --replies_to_drop_;
        return Reply::of(Reply::Kind::unanswered, "the in-memory server dropped the reply");
    }

    // A Mutex names the end of its lease by a reading of the clock that is younger than a second. On a real server that
    // is enough, because its clock does not jump. Here it would end at once, and two clients would hold the Mutex.
    static bool names_old_instant(const Client& client, Words words) {
        if (client.knows_time || words[0] != "SET") return false;
        for (const std::string_view word : words)
            if (word == "PXAT") return true;
        return false;
    }

    Reply late(Client& client) {
        client.knows_time = true;
        return Reply::of(Reply::Kind::error, "LATE " + std::to_string(model_.keyspace.now_ms()));
    }

    std::int64_t publish(std::string_view channel, std::string_view payload) {
        std::int64_t receivers = 0;
        for (auto& [connection, client] : clients_) {
            const auto found = client.channels.find(std::string(channel));
            if (found == client.channels.end()) continue;
            ++receivers;
            connection->add([channel = *found, payload = std::string(payload)](Listener& listener) {
                listener.message(channel, payload);
            });
        }
        return receivers;
    }

    static void confirm(InMemoryConnection& connection, const std::string& channel) {
        connection.add([channel](Listener& listener) { listener.subscribed(channel); });
    }

    // Makes the waiters of a client try again, as after an interruption of their subscriptions.
    void look_again(InMemoryConnection& connection, const Client& client) {
        if (refuses_) return;
        for (const std::string& channel : client.channels) {
            connection.add([channel](Listener& listener) { listener.interrupted(channel); });
            confirm(connection, channel);
        }
    }

    mutable std::mutex mutex_;
    std::condition_variable refuses_no_more_;
    ScriptHost scripts_;
    ServerModel model_{scripts_};
    std::map<InMemoryConnection*, Client> clients_;
    // Added to the steady clock, unless the clock of the server is frozen; then it is the time.
    std::chrono::nanoseconds offset_ =
        std::chrono::system_clock::now().time_since_epoch() - Clock::now().time_since_epoch();
    bool frozen_ = false;
    bool refuses_ = false;
    std::size_t replies_to_drop_ = 0;
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
