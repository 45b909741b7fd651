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

/// Troubles of a server that runs: each begins, and ends when it is told to, or by itself after the time that is given.
/// They go over a connection of the test's own, past any proxy.
namespace redlatch::test {

/// Nothing that writes more than it frees is accepted.
inline void refuse_memory(RawRedis& redis, bool on) { redis.text("CONFIG", "SET", "maxmemory", on ? "1" : "0"); }

/// No write is accepted: NOREPLICAS.
inline void miss_replicas(RawRedis& redis, bool on) {
    redis.text("CONFIG", "SET", "min-replicas-to-write", on ? "1" : "0");
}

/// No script is run for the default user: an error that does not say that it may pass.
inline void forbid_scripts(RawRedis& redis, bool on) {
    redis.text("ACL", "SETUSER", "default", on ? "-@scripting" : "+@scripting");
}

/// The default user may not use that command, in no script either: false when nothing came of it.
inline bool take_right(RawRedis& redis, const std::string& command) {
    redis.text("ACL", "SETUSER", "default", "-" + command);
    return redis.list("ACL", "GETUSER", "default").at(5).find("-" + command) != std::string::npos;
}

inline void give_right(RawRedis& redis, const std::string& command) {
    redis.text("ACL", "SETUSER", "default", "+" + command);
}

/// All commands, or those that write, wait for so long.
inline void pause_commands(RawRedis& redis, std::chrono::milliseconds time, bool only_writes) {
    redis.text("CLIENT", "PAUSE", time.count(), only_writes ? "WRITE" : "ALL");
}

/// The whole server sleeps for so long. Needs --enable-debug-command yes; the reply is not awaited.
inline void sleep_server(RawRedis& redis, std::chrono::milliseconds time) {
    redis.send({"DEBUG", "SLEEP", std::to_string(static_cast<double>(time.count()) / 1000)});
}

/// A snapshot fails, and then no write is accepted: MISCONF.
class FailedSnapshot {
public:
    explicit FailedSnapshot(const RedisServer& server) : obstacle_(server.directory() + "/dump.rdb") {}

    /// False when the server did not get that far.
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

/// A script of somebody's that does not end within any patience (but does in a minute, should it not be killed): the
/// server answers BUSY to everybody else. Start the server with a short --busy-reply-threshold.
class EndlessScript {
public:
    explicit EndlessScript(const RedisServer& server) : server_(server), runner_(server) {
        runner_.send({"EVAL", "for i = 1, 3e9 do end", "0"});
    }

    /// Once it has run for longer than the threshold.
    bool is_noticed() {
        RawRedis redis{server_};
        return eventually([&] { return redis.call("PING").string.starts_with("BUSY"); }, std::chrono::seconds{10});
    }

    /// However slowly the server answers; it listens to nobody while the script is younger than the threshold.
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
