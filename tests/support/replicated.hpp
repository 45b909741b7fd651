// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "raw_redis.hpp"
#include "redis_server.hpp"
#include "wait.hpp"

namespace redlatch::test {

/// A master and its replicas, which are connected when the constructor returns. One thread at a time may use it.
class Replicated {
public:
    explicit Replicated(std::size_t replicas = 1) {
        // Replication has a user of its own. Deleting it cuts the link to a replica for good.
        add({});
        for (std::size_t i = 0; i < replicas; ++i)
            add({"--replicaof", "127.0.0.1 " + std::to_string(master().port()), "--masteruser", "repl", "--masterauth",
                 "secret"});
        if (!confirmed_by(static_cast<long long>(replicas)))
            throw std::runtime_error("the replicas do not come:\n" + master().log());
    }

    /// The initial master, whatever its role is now, and its n-th initial replica.
    RedisServer& master() { return *servers_.front(); }
    RedisServer& replica(std::size_t n = 0) { return *servers_.at(n + 1); }

    /// Returns how many replicas are connected to it and up to date.
    static long long replicas_of(RedisServer& server) {
        return static_cast<long long>(RawRedis{server}.command({"ROLE"}).elements.at(2).elements.size());
    }

    /// Waits until that many replicas confirm a write on the first master.
    bool confirmed_by(long long replicas) {
        RawRedis redis{master()};
        const auto confirmed = [&] {
            redis.call("SET", "confirmed", "?");
            return redis.integer("WAIT", replicas, 1000) >= replicas && redis.integer("DEL", "confirmed") == 1;
        };
        return eventually(confirmed, std::chrono::seconds{30});
    }

    /// Writes on the first master from here on reach no replica.
    void cut_replication() {
        RawRedis{master()}.call("ACL", "DELUSER", "repl");
        if (!eventually([&] { return replicas_of(master()) == 0; }, std::chrono::seconds{10}))
            throw std::runtime_error("the replica is still there");
    }

private:
    void add(std::vector<std::string> args) {
        for (const char* word : {"--user", "repl", "on", ">secret", "+psync", "+replconf", "+ping"})
            args.push_back(word);
        // A replica that receives nothing for the time-out considers its link dead. So the master pings more often.
        for (const char* word : {"--repl-diskless-sync-delay", "0", "--repl-timeout", "3"}) args.push_back(word);
        for (const char* word : {"--repl-ping-replica-period", "1"}) args.push_back(word);
        servers_.push_back(std::make_unique<RedisServer>(RedisServerOptions{.tcp = true, .args = std::move(args)}));
    }

    std::vector<std::unique_ptr<RedisServer>> servers_;
};

}  // namespace redlatch::test
