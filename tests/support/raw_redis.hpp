// SPDX-License-Identifier: MIT
#pragma once

#include <hiredis/hiredis.h>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "redis_server.hpp"
#include "socket.hpp"

namespace redlatch::test {

/// A reply, copied out of hiredis. `string` is also the text of a status or an error.
struct RawReply {
    enum class Type { nil, integer, string, status, error, list };

    Type type = Type::nil;
    long long integer = 0;
    std::string string = {};
    std::vector<RawReply> elements = {};

    bool is_nil() const { return type == Type::nil; }
    bool is_error() const { return type == Type::error; }
    bool operator==(const RawReply&) const = default;
};

/// Commands to examine a server. Every function throws std::runtime_error if the reply is of the wrong kind. Only
/// `command` returns error replies instead of throwing.
class RawCommands {
public:
    virtual RawReply command(const std::vector<std::string>& words) = 0;

    /// The same with words of several types: redis.call("HGET", key, 7).
    template <class... Words>
    RawReply call(const Words&... words) {
        return command({word(words)...});
    }

    /// Returns the reply as a number. A string of digits counts, too.
    template <class... Words>
    long long integer(const Words&... words) {
        const RawReply reply = checked({word(words)...});
        if (reply.type == RawReply::Type::integer) return reply.integer;
        if (reply.type == RawReply::Type::string) return std::stoll(reply.string);
        throw std::runtime_error("not a number");
    }

    template <class... Words>
    std::string text(const Words&... words) {
        RawReply reply = checked({word(words)...});
        if (reply.type == RawReply::Type::string || reply.type == RawReply::Type::status) return reply.string;
        throw std::runtime_error("not a string");
    }

    template <class... Words>
    std::vector<std::string> list(const Words&... words) {
        const RawReply reply = checked({word(words)...});
        if (reply.type != RawReply::Type::list) throw std::runtime_error("not a list");
        std::vector<std::string> result;
        for (const RawReply& element : reply.elements) {
            result.push_back(element.type == RawReply::Type::integer ? std::to_string(element.integer)
                                                                     : element.string);
        }
        return result;
    }

    std::vector<std::string> keys(std::string_view pattern = "*") { return list("KEYS", pattern); }
    bool exists(std::string_view key) { return integer("EXISTS", key) == 1; }
    long long pttl(std::string_view key) { return integer("PTTL", key); }

    /// Returns the server's time in milliseconds since 1970.
    long long now() {
        const std::vector<std::string> time = list("TIME");
        return std::stoll(time.at(0)) * 1000 + std::stoll(time.at(1)) / 1000;
    }

    std::map<std::string, std::string> hgetall(std::string_view key) {
        const std::vector<std::string> flat = list("HGETALL", key);
        std::map<std::string, std::string> result;
        for (std::size_t i = 0; i + 1 < flat.size(); i += 2) result[flat[i]] = flat[i + 1];
        return result;
    }

    std::vector<std::string> pubsub_channels(std::string_view pattern = "*") {
        return list("PUBSUB", "CHANNELS", pattern);
    }

    /// Returns how many clients of this server listen to the channel.
    long long subscribers(const std::string& channel) { return std::stoll(list("PUBSUB", "NUMSUB", channel).at(1)); }

    /// Returns how many subscriptions there are to a lock: to its channel, and to those of its waiting clients. `sharded`:
    /// of a cluster's node.
    long long lock_listeners(const std::string& channel, bool sharded = false) {
        long long sum = 0;
        for (const std::string& one : list("PUBSUB", sharded ? "SHARDCHANNELS" : "CHANNELS", channel + "*"))
            sum += std::stoll(list("PUBSUB", sharded ? "SHARDNUMSUB" : "NUMSUB", one).at(1));
        return sum;
    }

protected:
    ~RawCommands() = default;

    static std::string field_of(const std::string& info, std::string_view field) {
        std::istringstream lines{info};
        for (std::string line; std::getline(lines, line);) {
            if (line.starts_with(field) && line.size() > field.size() && line[field.size()] == ':')
                return line.substr(field.size() + 1, line.find('\r') - field.size() - 1);
        }
        return {};
    }

    static std::string word(std::string_view text) { return std::string{text}; }
    static std::string word(std::integral auto number) { return std::to_string(number); }

    RawReply checked(const std::vector<std::string>& words) {
        RawReply reply = command(words);
        if (reply.is_error()) throw std::runtime_error(words.at(0) + ": " + reply.string);
        return reply;
    }
};

/// A plain connection to examine a server, independent of the library under test. hiredis encodes and decodes; the
/// socket is ours (close-on-exec, a deadline for everything, no SIGPIPE). One thread at a time may use it.
///
/// Every function throws std::runtime_error if the connection breaks.
class RawRedis final : public RawCommands {
public:
    explicit RawRedis(const RedisServer& server) : RawRedis(server.url()) {}

    /// Takes unix:///path, redis://127.0.0.1:port, or a bare path.
    explicit RawRedis(const std::string& url, std::chrono::milliseconds timeout = std::chrono::seconds{10})
        : endpoint_(Endpoint::parse(url)), timeout_(timeout) {
        reconnect();
    }

    void reconnect() {
        reader_.reset(redisReaderCreate());
        fd_ = connect_to(endpoint_, std::chrono::steady_clock::now() + timeout_);
    }

    RawReply command(const std::vector<std::string>& words) override {
        send(words);
        return receive();
    }

    /// Returns one field of INFO, such as info("server", "run_id"), or an empty string if there is none.
    std::string info(std::string_view section, std::string_view field) {
        return field_of(text("INFO", section), field);
    }

    /// The same in the reply to CLUSTER INFO.
    std::string cluster_info(std::string_view field) { return field_of(text("CLUSTER", "INFO"), field); }

    /// Returns the number of connections other than this one.
    long long connected_clients() { return std::stoll(info("clients", "connected_clients")) - 1; }

    /// Closes the connections of this type ("normal", "pubsub") except this one. Returns how many.
    long long kill_clients(std::string_view type) { return integer("CLIENT", "KILL", "TYPE", type, "SKIPME", "yes"); }

    /// Returns the calls by command in lower case ("evalsha", "client
    /// kill"), as the server has counted them since it started, without those of this connection. They include calls by
    /// scripts, and a PING for each (re)start by RedisServer.
    std::map<std::string, long long> command_calls() {
        constexpr std::string_view prefix = "cmdstat_";
        std::istringstream lines{text("INFO", "commandstats")};
        std::map<std::string, long long> calls;
        for (std::string line; std::getline(lines, line);) {
            const auto colon = line.find(":calls=");
            if (line.starts_with(prefix) && colon != std::string::npos)
                calls[line.substr(prefix.size(), colon - prefix.size())] = std::stoll(line.substr(colon + 7));
        }
        // INFO reports the calls before itself, but own_ counts it already.
        for (const auto& [name, count] : own_) {
            if (const auto found = calls.find(name); found != calls.end()) {
                found->second -= count - (name == "info" ? 1 : 0);
                if (found->second <= 0) calls.erase(found);
            }
        }
        return calls;
    }

    /// Returns the number of scripts that clients sent. Exact: a script cannot call these commands.
    long long script_calls() { return sum_of({"evalsha", "eval", "evalsha_ro", "eval_ro", "fcall", "fcall_ro"}); }

    /// Exact, for the same reason.
    long long subscribe_calls() { return sum_of({"subscribe", "psubscribe", "ssubscribe"}); }

    /// Returns how many commands clients have sent since the server started, as far as its counters allow.
    ///
    /// The server counts calls by clients and by scripts together. So this adds up the commands that a script cannot
    /// call or has no reason to call (EVAL and its kin, SCRIPT, subscriptions, AUTH, HELLO, SELECT, CLIENT, PING, ECHO,
    /// WAIT, MULTI, ...), which is exact, and those named in `also`. Name there the plain commands that the library
    /// sends (HEXISTS, PTTL) and that no script of the test calls. A `CommandMonitor` counts without this limit.
    long long client_commands(const std::vector<std::string>& also = {}) {
        std::vector<std::string> names{
            "evalsha",   "eval",        "evalsha_ro", "eval_ro",      "fcall",      "fcall_ro",     "script",
            "subscribe", "unsubscribe", "psubscribe", "punsubscribe", "ssubscribe", "sunsubscribe", "auth",
            "hello",     "select",      "client",     "quit",         "reset",      "ping",         "echo",
            "wait",      "multi",       "exec",       "watch",        "role",       "command",      "config"};
        names.insert(names.end(), also.begin(), also.end());
        return sum_of(names);
    }

    /// For subscriptions and MONITOR: send, then receive as often as replies come.
    void send(const std::vector<std::string>& words) {
        std::vector<const char*> argv;
        std::vector<std::size_t> sizes;
        for (const std::string& word : words) {
            argv.push_back(word.data());
            sizes.push_back(word.size());
        }
        char* encoded = nullptr;
        const auto size = redisFormatCommandArgv(&encoded, static_cast<int>(words.size()), argv.data(), sizes.data());
        if (size < 0) throw std::bad_alloc{};
        const std::unique_ptr<char, decltype(&redisFreeCommand)> owner{encoded, redisFreeCommand};
        send_all(fd_, {encoded, static_cast<std::size_t>(size)}, std::chrono::steady_clock::now() + timeout_);
        ++own_[stats_name(words)];
    }

    RawReply receive() {
        auto reply = receive_within(timeout_);
        if (!reply) throw std::runtime_error("no reply from " + endpoint_.url());
        return *std::move(reply);
    }

    std::optional<RawReply> receive_within(std::chrono::milliseconds timeout) {
        const auto deadline = std::chrono::steady_clock::now() + timeout;
        while (true) {
            void* raw = nullptr;
            if (redisReaderGetReply(reader_.get(), &raw) != REDIS_OK) throw std::runtime_error(reader_->errstr);
            if (raw != nullptr) {
                const std::unique_ptr<void, decltype(&freeReplyObject)> owner{raw, freeReplyObject};
                return copy(*static_cast<const redisReply*>(raw));
            }
            if (!wait_for(fd_, POLLIN, deadline)) return std::nullopt;
            std::string bytes;
            if (read_some(fd_, bytes) == ReadState::closed) throw std::runtime_error("closed by " + endpoint_.url());
            redisReaderFeed(reader_.get(), bytes.data(), bytes.size());
        }
    }

private:
    static RawReply copy(const redisReply& reply) {
        RawReply result;
        switch (reply.type) {
            case REDIS_REPLY_INTEGER: result.type = RawReply::Type::integer; break;
            case REDIS_REPLY_STRING: result.type = RawReply::Type::string; break;
            case REDIS_REPLY_STATUS: result.type = RawReply::Type::status; break;
            case REDIS_REPLY_ERROR: result.type = RawReply::Type::error; break;
            case REDIS_REPLY_ARRAY: result.type = RawReply::Type::list; break;
            default: return result;
        }
        result.integer = reply.integer;
        if (reply.str != nullptr) result.string.assign(reply.str, reply.len);
        for (std::size_t i = 0; i < reply.elements; ++i) result.elements.push_back(copy(*reply.element[i]));
        return result;
    }

    /// Returns the name under which the server counts a command: lower case, with the subcommand if it has one.
    static std::string stats_name(const std::vector<std::string>& words) {
        static const std::vector<std::string> containers{"client",  "config",  "pubsub", "script",
                                                         "command", "memory",  "object", "acl",
                                                         "latency", "cluster", "xinfo",  "function"};
        std::string name = lower(words.at(0));
        const bool container = std::find(containers.begin(), containers.end(), name) != containers.end();
        return container && words.size() > 1 ? name + "|" + lower(words[1]) : name;
    }

    static std::string lower(std::string text) {
        for (char& letter : text)
            letter = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
        return text;
    }

    long long sum_of(const std::vector<std::string>& names) {
        long long sum = 0;
        for (const auto& [name, count] : command_calls()) {
            if (std::find(names.begin(), names.end(), name.substr(0, name.find('|'))) != names.end()) sum += count;
        }
        return sum;
    }

    struct FreeReader {
        void operator()(redisReader* reader) const { redisReaderFree(reader); }
    };

    Endpoint endpoint_;
    std::chrono::milliseconds timeout_;
    Fd fd_;
    std::unique_ptr<redisReader, FreeReader> reader_;
    std::map<std::string, long long> own_;
};

}  // namespace redlatch::test
