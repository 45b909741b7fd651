// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "raw_redis.hpp"
#include "wait.hpp"

namespace redlatch::test {

/// Counts exactly the commands that clients send, by name, without those that scripts call. It reads the server's
/// MONITOR stream, where each line names its sender: a client or "lua".
///
/// MONITOR does not show administration (CONFIG, CLIENT KILL, ...) and commands that are refused before they run
/// (unknown, wrong number of arguments, NOAUTH, OOM). It slows the server down, so do not measure with it.
class CommandMonitor {
public:
    explicit CommandMonitor(const RedisServer& server) : CommandMonitor(server.url()) {}
    explicit CommandMonitor(const std::string& url) : stream_(url), marker_(url) {
        if (stream_.call("MONITOR").is_error()) throw std::runtime_error("MONITOR was refused");
    }

    /// Returns the calls since the last take, by lower-case name. Includes all commands that have been answered.
    std::map<std::string, long long> take() {
        std::map<std::string, long long> calls;
        for (const std::string& line : take_lines()) ++calls[name_of(line)];
        return calls;
    }

    /// Returns the name of the command in a line of take_lines(), in lower case.
    static std::string name_of(const std::string& line) {
        const auto begin = line.find("] \"") + 3;
        std::string name = line.substr(begin, line.find('"', begin) - begin);
        for (char& letter : name)
            letter = letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
        return name;
    }

    /// Repeats take() until at least that many calls of these names have come, or the deadline has passed. Returns
    /// whether they have.
    bool take_until(const std::map<std::string, long long>& wanted, std::chrono::milliseconds deadline) {
        std::map<std::string, long long> calls;
        const auto have_come = [&] {
            for (const auto& [name, count] : take()) calls[name] += count;
            return std::ranges::all_of(wanted, [&](const auto& want) { return calls[want.first] >= want.second; });
        };
        return eventually(have_come, deadline);
    }

    /// Waits until so many calls of this command have come that contain the word. Returns false if the deadline passes.
    bool take_until(const std::string& name, const std::string& word, int count, std::chrono::milliseconds deadline) {
        return eventually(
            [&] {
                for (const std::string& line : take_lines())
                    if (name_of(line) == name && line.find(word) != std::string::npos) --count;
                return count <= 0;
            },
            deadline);
    }

    /// Returns how many commands clients sent since the last take.
    long long take_total() { return static_cast<long long>(take_lines().size()); }

    /// Returns the same, as the server printed it: `1700000000.123456 [0 unix:/path] "evalsha" "..." ...`.
    std::vector<std::string> take_lines() {
        const std::string end = "end of take " + std::to_string(++takes_);
        marker_.text("ECHO", end);
        std::vector<std::string> lines;
        while (true) {
            std::string line = stream_.receive().string;
            if (line.find(end) != std::string::npos) return lines;
            if (line.find(" lua] \"") == std::string::npos) lines.push_back(std::move(line));
        }
    }

private:
    RawRedis stream_;
    RawRedis marker_;
    long long takes_ = 0;
};

}  // namespace redlatch::test
