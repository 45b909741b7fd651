// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/testing/commands.hpp"
#include "redlatch/testing/keyspace.hpp"
#include "redlatch/testing/script_host.hpp"
#include "redlatch/testing/sha1.hpp"
#include "redlatch/transport/reply.hpp"

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// A Redis server without a network: carries out everything that the library sends, except subscriptions. It runs the
// library's own scripts. The server inside the process (redlatch/testing.hpp) and the simulation are made of it. Not
// thread-safe.
class ServerModel {
public:
    using Words = Commands::Words;

    // `scripts` must live longer.
    explicit ServerModel(ScriptHost& scripts) : scripts_(scripts) {}
    ServerModel(const ServerModel&) = delete;
    ServerModel& operator=(const ServerModel&) = delete;

    Keyspace keyspace;
    Commands commands{keyspace};

    // When it was started, by its own clock.
    std::chrono::nanoseconds started{0};

    // Carries out one command at the time of the keyspace.
    Reply execute(Words words) {
        const std::string name = words.empty() ? std::string() : lowered(words[0]);
        if (name == "eval" || name == "evalsha") return run_script(words, name == "evalsha");
        if (name == "info") return Reply::of(info());
        if (name == "config") return config(words);
        if (words.empty()) return Reply::of(Reply::Kind::error, "ERR empty command");
        return commands.call(words);
    }

    // As after a restart.
    void forget_scripts() { known_.clear(); }

private:
    Reply run_script(Words words, bool by_digest) try {
        if (words.size() < 3) throw CommandError{"ERR wrong number of arguments for 'eval' command"};
        const auto keys = static_cast<std::size_t>(to_integer(words[2]));
        if (keys > words.size() - 3) throw CommandError{"ERR Number of keys can't be greater than number of args"};
        auto script = known_.find(by_digest ? words[1] : std::string_view(digest_of(words[1])));
        if (script == known_.end()) {
            if (by_digest) throw CommandError{"NOSCRIPT No matching script. Please use EVAL."};
            script = known_.emplace(digest_of(words[1]), words[1]).first;
        }
        return scripts_.run(commands, script->second, words.subspan(3, keys), words.subspan(3 + keys));
    } catch (const CommandError& failure) {
        return Reply::of(Reply::Kind::error, failure.text);
    }

    static std::string digest_of(std::string_view text) {
        const auto digest = sha1_hex(text);
        return {digest.data(), digest.size()};
    }

    // What RedLock and Client::check_server() read: a server that keeps its data and evicts nothing.
    std::string info() const {
        const auto uptime = std::chrono::floor<std::chrono::seconds>(keyspace.now() - started).count();
        return "# Server\r\nredis_version:7.0.0\r\nuptime_in_seconds:" + std::to_string(uptime) +
               "\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n# Persistence\r\naof_enabled:1\r\n"
               "# Replication\r\nrole:master\r\nconnected_slaves:0\r\n";
    }

    static Reply config(Words words) {
        if (words.size() != 3 || lowered(words[1]) != "get")
            return Reply::of(Reply::Kind::error, "ERR the modelled server knows only CONFIG GET with one name");
        Reply pair{Reply::Kind::array, 0, {}, {}};
        if (words[2] == "min-replicas-to-write" || words[2] == "save" || words[2] == "client-output-buffer-limit")
            pair.elements = {Reply::of(std::string(words[2])),
                             Reply::of(std::string(words[2] == "min-replicas-to-write" ? "0" : ""))};
        return pair;
    }

    ScriptHost& scripts_;
    std::map<std::string, std::string, std::less<>> known_;  // the texts of the scripts, by digest
};

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
