// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "raw_redis.hpp"

/// Checks of the state at the end: only documented keys may be left, and enough must have happened before.
namespace redlatch::test {

/// A kind of key that may stay on the server.
struct Documented {
    std::string prefix;
    bool only_with_ttl = true;
};

/// The keys that redlatch leaves behind by design: token counters, the last leader, and marks against late copies, which
/// expire.
inline std::vector<Documented> documented_keys() {
    return {{"redisson_unlock_latch:"},     {"redisson_lock_token:", false}, {"redlatch_semaphore_requests:"},
            {"redlatch_permit_requests:"},  {"redlatch_latch_requests:"},    {"redlatch_latch_round:"},
            {"redlatch_leader:", false},    {"redlatch_once:", false},       {"redlatch_flight:"},
            {"redlatch_barrier_requests:"}, {"redlatch_condition_requests:"}};
}

/// Returns the keys that should not be there, each with its type and TTL.
inline std::vector<std::string> leftover_keys(RawRedis& redis, const std::vector<Documented>& documented) {
    std::vector<std::string> left;
    for (const std::string& key : redis.keys()) {
        const long long ttl = redis.pttl(key);
        if (ttl == -2) continue;  // expired meanwhile
        bool allowed = false;
        for (const Documented& kind : documented)
            allowed = allowed || (key.starts_with(kind.prefix) && (ttl >= 0 || !kind.only_with_ttl));
        if (!allowed)
            left.push_back("key " + key + " (" + redis.text("TYPE", key) + ", TTL " + std::to_string(ttl) + " ms)");
    }
    return left;
}

/// Returns everything of the clients that should be gone: keys, subscriptions, and connections beyond `connections`.
inline std::vector<std::string> leftovers(RawRedis& redis, const std::vector<Documented>& documented,
                                          long long connections = 0) {
    std::vector<std::string> left = leftover_keys(redis, documented);
    for (const std::string& channel : redis.pubsub_channels()) left.push_back("subscription to " + channel);
    const long long open = redis.connected_clients() - connections;
    if (open > 0) left.push_back(std::to_string(open) + " connections");
    return left;
}

/// The resources that a process uses.
struct Vitals {
    std::size_t descriptors = 0;
    std::size_t threads = 0;
    std::size_t resident_kb = 0;

    static Vitals of(pid_t pid) {
        const std::filesystem::path process = "/proc/" + std::to_string(pid);
        Vitals vitals;
        for ([[maybe_unused]] const auto& fd : std::filesystem::directory_iterator{process / "fd"})
            ++vitals.descriptors;
        std::ifstream status{process / "status"};
        for (std::string line; std::getline(status, line);) {
            if (line.starts_with("Threads:")) vitals.threads = std::stoul(line.substr(8));
            if (line.starts_with("VmRSS:")) vitals.resident_kb = std::stoul(line.substr(6));
        }
        return vitals;
    }
};

/// Returns descriptions of the values that have grown between two measurements. Memory may grow by `grace_kb`.
inline std::vector<std::string> growth(const Vitals& before, const Vitals& after, std::size_t grace_kb) {
    std::vector<std::string> grown;
    const auto compare = [&](const char* what, std::size_t first, std::size_t last) {
        if (last > first)
            grown.push_back(std::string{what} + ": " + std::to_string(first) + " to " + std::to_string(last));
    };
    compare("descriptors", before.descriptors, after.descriptors);
    compare("threads", before.threads, after.threads);
    compare("resident kB", before.resident_kb + grace_kb, after.resident_kb);
    return grown;
}

/// Returns descriptions of the events that happened too rarely for the checks to prove anything.
inline std::vector<std::string> find_vacuous(const std::map<std::string, std::uint64_t>& counts,
                                             const std::map<std::string, std::uint64_t>& least) {
    std::vector<std::string> vacuous;
    for (const auto& [what, number] : least) {
        const auto found = counts.find(what);
        const std::uint64_t had = found == counts.end() ? 0 : found->second;
        if (had < number)
            vacuous.push_back(what + ": " + std::to_string(had) + " of at least " + std::to_string(number));
    }
    return vacuous;
}

}  // namespace redlatch::test
