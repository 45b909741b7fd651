// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstddef>
#include <fstream>
#include <list>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "process.hpp"
#include "raw_redis.hpp"
#include "redis_server.hpp"
#include "replicated.hpp"
#include "socket.hpp"
#include "temp_dir.hpp"
#include "wait.hpp"

namespace redlatch::test {

/// Starts a sentinel with this configuration and waits until it answers at the URL. Returns nothing if it does not,
/// most likely because another process took the port in the meantime.
inline std::optional<ChildProcess> start_sentinel(const std::string& configuration, const std::string& log,
                                                  const std::string& url) {
    std::optional<ChildProcess> process =
        ChildProcess::exec({.path = redis_server_program(), .args = {configuration, "--sentinel"}, .output = log});
    const bool answers = eventually(
        [&] {
            if (!process->running()) return true;
            try {
                return RawRedis{url}.text("PING") == "PONG";
            } catch (const std::exception&) {
                return false;
            }
        },
        std::chrono::seconds{20}, std::chrono::milliseconds{5});
    if (!answers || !process->running()) process.reset();
    return process;
}

/// Returns one field of what the sentinel at the URL reports about the master "orders".
inline std::string sentinel_field(const std::string& url, const std::string& name) {
    const std::vector<std::string> fields = RawRedis{url}.list("SENTINEL", "MASTER", "orders");
    for (std::size_t i = 0; i + 1 < fields.size(); i += 2)
        if (fields[i] == name) return fields[i + 1];
    return {};
}

/// A private redis-server --sentinel that watches one master under the name "orders".
class SentinelProcess {
public:
    explicit SentinelProcess(int master_port) {
        for (int tries = 0; !process_ && tries < 20; ++tries) launch(master_port);
        if (!process_) throw std::runtime_error("no sentinel:\n" + log());
    }
    SentinelProcess(const SentinelProcess&) = delete;
    SentinelProcess& operator=(const SentinelProcess&) = delete;

    int port() const { return port_; }
    std::string url() const { return Endpoint{{}, port_}.url(); }
    void kill() { process_->kill(); }
    void stop() { process_->stop(); }
    void cont() { process_->cont(); }

    std::string log() const {
        std::ostringstream text;
        text << std::ifstream{dir_.file("sentinel.log")}.rdbuf();
        return text.str();
    }

    /// Returns one field of SENTINEL MASTER.
    std::string field(const std::string& name) const { return sentinel_field(url(), name); }

    int master_port() const {
        RawRedis redis{url()};
        return std::stoi(redis.list("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "orders").at(1));
    }

private:
    void launch(int master_port) {
        port_ = pick_free_port();
        const std::string file = dir_.file("sentinel.conf");
        std::ofstream{file} << "bind 127.0.0.1\nport " << port_ << "\ndir " << dir_.path()
                            << "\nsentinel monitor orders 127.0.0.1 " << master_port << " 2"
                            << "\nsentinel down-after-milliseconds orders 1000"
                            << "\nsentinel failover-timeout orders 3000\n";
        process_ = start_sentinel(file, dir_.file("sentinel.log"), url());
    }

    int port_ = 0;
    TempDir dir_;
    std::optional<ChildProcess> process_;  // after the directory: the process ends first
};

/// A master, its replicas, and three sentinels that know each other and all servers. A failover takes two to four
/// seconds. One thread at a time may use it.
class Sentinels3 : public Replicated {
public:
    explicit Sentinels3(std::size_t replicas = 1) : Replicated(replicas) {
        for (int i = 0; i < 3; ++i) sentinels_.emplace_back(master().port());
        const auto ready = [&] {
            for (const SentinelProcess& one : sentinels_)
                if (one.field("num-other-sentinels") != "2" || one.field("num-slaves") != std::to_string(replicas))
                    return false;
            return true;
        };
        if (!eventually(ready, std::chrono::seconds{60}, std::chrono::milliseconds{20}))
            throw std::runtime_error("the sentinels do not find each other:\n" + sentinels_.front().log());
    }

    std::string url() const {
        std::string hosts;
        for (const SentinelProcess& one : sentinels_)
            hosts += (hosts.empty() ? "" : ",") + ("127.0.0.1:" + std::to_string(one.port()));
        return "redis-sentinel://" + hosts + "/orders";
    }

    std::list<SentinelProcess>& sentinels() { return sentinels_; }

    /// Waits until a sentinel names the server, and the server itself reports the role of a master.
    bool is_master_by(RedisServer& server, std::chrono::milliseconds bound) {
        return eventually(
            [&] {
                return sentinels_.front().master_port() == server.port() &&
                       RawRedis{server}.command({"ROLE"}).elements.at(0).string == "master";
            },
            bound, std::chrono::milliseconds{5});
    }

private:
    std::list<SentinelProcess> sentinels_;
};

}  // namespace redlatch::test
