// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "process.hpp"
#include "socket.hpp"
#include "temp_dir.hpp"
#include "wait.hpp"

namespace redlatch::test {

/// Returns the program that tests start as server and sentinel: the one named by REDLATCH_REDIS_SERVER (another
/// version, or a Valkey), or else the redis-server of the PATH.
inline std::string redis_server_program() {
    const char* chosen = std::getenv("REDLATCH_REDIS_SERVER");
    return chosen != nullptr && *chosen != '\0' ? chosen : "redis-server";
}

struct RedisServerOptions {
    bool tcp = false;                    // listen on a port of 127.0.0.1 too
    bool tls = false;                    // use TLS on this port; pass the certificates in `args`
    bool appendonly = false;             // with `appendfsync always`: data survives kill() and restart()
    std::vector<std::string> args = {};  // added at the end, as on the command line: {"--maxmemory", "1mb"}
    std::map<std::string, std::string> environment = {};  // added to that of this process
    std::chrono::milliseconds start_timeout{20'000};
    std::string program = redis_server_program();
};

/// A private redis-server: its socket, data and log are in a temporary directory, and it dies with the test process.
/// RedisServer server{{.tcp = true, .args = {"--maxmemory", "1mb"}}};
///
/// One thread at a time may control it; the URLs and paths never change, so every thread may read them.
class RedisServer {
public:
    /// Returns when the server answers. Throws with the end of its log if it does not.
    explicit RedisServer(RedisServerOptions options = {}) : options_(std::move(options)) {
        const auto deadline = std::chrono::steady_clock::now() + options_.start_timeout;
        do {
            if (options_.tcp || options_.tls) port_ = pick_free_port();
        } while (!launch(deadline));
    }
    RedisServer(const RedisServer&) = delete;
    RedisServer& operator=(const RedisServer&) = delete;
    // The members do it: the process is killed, frozen or not, and reaped before its directory is removed.
    ~RedisServer() = default;

    std::string url() const { return "unix://" + socket_path(); }
    /// Returns the URL for a user with the password "secret".
    std::string url_of(const std::string& user) const { return "unix://" + user + ":secret@" + socket_path(); }
    std::string tcp_url() const { return Endpoint{{}, port()}.url(); }
    std::string socket_path() const { return dir_.file("redis.sock"); }
    int port() const {
        if (port_ == 0) throw std::logic_error("this server was started without .tcp = true");
        return port_;
    }
    const std::string& directory() const { return dir_.path(); }

    pid_t pid() const { return process_->pid(); }
    bool running() { return process_->running(); }

    /// Sends SIGKILL. Returns when the process is gone; clients then find their connections closed.
    void kill() { process_->kill(); }

    /// Sends SIGSTOP: connections stay, and the kernel even accepts new ones, but the server does not answer.
    void stop() { process_->stop(); }
    void cont() { process_->cont(); }

    /// Ends it in order, as SIGTERM does. Kills it if that takes longer than the deadline.
    void shutdown(std::chrono::milliseconds deadline = std::chrono::seconds{10}) {
        process_->signal(SIGTERM);
        process_->cont();
        if (!process_->wait(deadline)) process_->kill();
    }

    /// Kills it if it still runs, and starts it again on the same directory, socket and port.
    void restart() {
        process_->kill();
        const auto deadline = std::chrono::steady_clock::now() + options_.start_timeout;
        while (!launch(deadline)) {
        }
    }

    /// Call this after kill(): the next start finds no data.
    void lose_data() {
        std::filesystem::remove_all(dir_.file("appendonlydir"));
        std::filesystem::remove(dir_.file("dump.rdb"));
    }

    /// Call this after kill() of a server with appendonly: the next start does not find the last bytes it wrote, as
    /// after a power cut. Returns how many bytes were cut off. Never leaves a part of a transaction (which is how a
    /// script is written): Redis 7.0 would keep it in the file, and the second start from now would execute it without
    /// its end.
    std::uintmax_t lose_last_bytes(std::uintmax_t bytes) {
        std::uintmax_t lost = 0;
        for (const auto& file : std::filesystem::directory_iterator{dir_.file("appendonlydir")}) {
            if (!file.path().string().ends_with(".incr.aof")) continue;
            const std::string before = text_of(file.path());
            std::string after = before.substr(
                0, before.size() - static_cast<std::size_t>(std::min<std::uintmax_t>(before.size(), bytes)));
            const std::size_t begun = after.rfind(transaction);
            const std::size_t ended = after.rfind("*1\r\n$4\r\nEXEC\r\n");
            // The file still ends in the middle of a command.
            if (begun != std::string::npos && (ended == std::string::npos || ended < begun))
                after.resize(begun + transaction.size() - 1);
            lost += before.size() - after.size();
            std::filesystem::resize_file(file.path(), after.size());
        }
        return lost;
    }

    /// Returns everything that the server has printed, over all restarts.
    std::string log() const { return text_of(dir_.file("redis.log")); }

private:
    static constexpr std::string_view transaction{"*1\r\n$5\r\nMULTI\r\n"};

    static std::string text_of(const std::filesystem::path& file) {
        std::ostringstream text;
        text << std::ifstream{file, std::ios::binary}.rdbuf();
        return text.str();
    }

    /// Returns false if another process took the port in the meantime. Then try again.
    bool launch(std::chrono::steady_clock::time_point deadline) {
        const auto log_size = log().size();
        process_.emplace(ChildProcess::exec({.path = options_.program,
                                             .args = arguments(),
                                             .environment = options_.environment,
                                             .output = dir_.file("redis.log")}));
        while (!answers()) {
            if (!process_->running()) {
                const std::string said = log().substr(log_size);
                if (said.find("Address already in use") == std::string::npos) fail("redis-server ended at once", said);
                if (std::chrono::steady_clock::now() >= deadline) fail("redis-server finds its port taken", said);
                std::this_thread::sleep_for(std::chrono::milliseconds{10});
                return false;
            }
            if (std::chrono::steady_clock::now() >= deadline)
                fail("redis-server does not answer", log().substr(log_size));
            std::this_thread::sleep_for(std::chrono::milliseconds{2});
        }
        return true;
    }

    std::vector<std::string> arguments() const {
        std::vector<std::string> args{"--bind",        "127.0.0.1",
                                      "--port",        std::to_string(options_.tls ? 0 : port_),
                                      "--dir",         dir_.path(),
                                      "--unixsocket",  socket_path(),
                                      "--daemonize",   "no",
                                      "--save",        "",
                                      "--appendonly",  options_.appendonly ? "yes" : "no",
                                      "--appendfsync", "always"};
        if (options_.tls) args.insert(args.end(), {"--tls-port", std::to_string(port_)});
        args.insert(args.end(), options_.args.begin(), options_.args.end());
        return args;
    }

    /// Any reply to PING counts, -NOAUTH for example, but not -LOADING.
    bool answers() const {
        const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds{200};
        const Fd fd = begin_connect({socket_path()});
        if (!fd) return false;
        try {
            send_all(fd, "PING\r\n", deadline);
        } catch (const std::system_error&) {
            return false;
        }
        std::string answer;
        while (answer.find('\n') == std::string::npos) {
            if (!wait_for(fd, POLLIN, deadline) || read_some(fd, answer) == ReadState::closed) return false;
        }
        return !answer.starts_with("-LOADING");
    }

    [[noreturn]] void fail(const std::string& what, const std::string& said) const {
        throw std::runtime_error(what + ":\n" + said.substr(said.size() > 2000 ? said.size() - 2000 : 0));
    }

    RedisServerOptions options_;
    int port_ = 0;
    TempDir dir_;
    std::optional<ChildProcess> process_;  // after the directory: the process ends first
};

}  // namespace redlatch::test
