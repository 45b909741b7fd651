// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "raw_redis.hpp"
#include "redis_server.hpp"
#include "wait.hpp"

/// Faults of a running server. Each begins, and ends on request or after the given time. They use a connection of the
/// test's own, past any proxy.
namespace redlatch::test {

/// The server refuses commands that may use more memory.
inline void refuse_memory(RawRedis& redis, bool on) { redis.text("CONFIG", "SET", "maxmemory", on ? "1" : "0"); }

/// The server refuses all writes: NOREPLICAS.
inline void miss_replicas(RawRedis& redis, bool on) {
    redis.text("CONFIG", "SET", "min-replicas-to-write", on ? "1" : "0");
}

/// The server runs no script for the default user, and the error does not announce that this may pass.
inline void forbid_scripts(RawRedis& redis, bool on) {
    redis.text("ACL", "SETUSER", "default", on ? "-@scripting" : "+@scripting");
}

/// Takes a command away from the default user, also within scripts. Returns false if that had no effect.
inline bool take_right(RawRedis& redis, const std::string& command) {
    redis.text("ACL", "SETUSER", "default", "-" + command);
    return redis.list("ACL", "GETUSER", "default").at(5).find("-" + command) != std::string::npos;
}

inline void give_right(RawRedis& redis, const std::string& command) {
    redis.text("ACL", "SETUSER", "default", "+" + command);
}

/// All commands, or only those that write, wait for that time.
inline void pause_commands(RawRedis& redis, std::chrono::milliseconds time, bool only_writes) {
    redis.text("CLIENT", "PAUSE", time.count(), only_writes ? "WRITE" : "ALL");
}

/// The whole server sleeps for that time. Needs --enable-debug-command yes. Does not await the reply.
inline void sleep_server(RawRedis& redis, std::chrono::milliseconds time) {
    redis.send({"DEBUG", "SLEEP", std::to_string(static_cast<double>(time.count()) / 1000)});
}

/// A snapshot fails, and then the server refuses all writes: MISCONF.
class FailedSnapshot {
public:
    explicit FailedSnapshot(const RedisServer& server) : obstacle_(server.directory() + "/dump.rdb") {}

    /// Returns false if the server did not get that far.
    bool begin(RawRedis& redis) {
        std::filesystem::remove(obstacle_);
        std::filesystem::create_directory(obstacle_);
        redis.text("CONFIG", "SET", "save", "36000 1000000");
        redis.call("BGSAVE");
        return eventually([&] { return redis.info("persistence", "rdb_last_bgsave_status") == "err"; });
    }

    void end(RawRedis& redis) {
        redis.text("CONFIG", "SET", "save", "");
        std::filesystem::remove_all(obstacle_);
    }

private:
    std::filesystem::path obstacle_;
};

/// A foreign script that runs longer than any test waits (but ends within a minute if it is not killed): the server
/// answers BUSY to all others. Start the server with a short --busy-reply-threshold.
class EndlessScript {
public:
    explicit EndlessScript(const RedisServer& server) : server_(server), runner_(server) {
        runner_.send({"EVAL", "for i = 1, 3e9 do end", "0"});
    }

    /// Waits until it has run for longer than the threshold.
    bool is_noticed() {
        RawRedis redis{server_};
        return eventually([&] { return redis.call("PING").string.starts_with("BUSY"); }, std::chrono::seconds{10});
    }

    /// Retries until it has ended: the server does not answer while the script is younger than the threshold.
    void end() {
        const auto is_over = [&] {
            try {
                const std::string said = RawRedis{server_}.call("SCRIPT", "KILL").string;
                return said == "OK" || said.starts_with("NOTBUSY");
            } catch (const std::exception&) {
                return false;
            }
        };
        if (!eventually(is_over, std::chrono::seconds{60})) throw std::runtime_error("the endless script does not end");
        runner_.receive();
    }

private:
    const RedisServer& server_;
    RawRedis runner_;
};

}  // namespace redlatch::test
