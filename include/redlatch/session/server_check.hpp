// SPDX-License-Identifier: MIT
#pragma once

#include "redlatch/base/names.hpp"
#include "redlatch/base/quoted.hpp"
#include "redlatch/options.hpp"
#include "redlatch/scripts/server_check.hpp"
#include "redlatch/session/queries.hpp"
#include "redlatch/session/session.hpp"
#include "redlatch/transport/server_errors.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

// Finds the properties of a server that endanger the locks on it, as text. warnings_about() does no I/O.
namespace redlatch {
inline namespace REDLATCH_ABI {
namespace detail {

// What the server reports about itself. A reply is an error where the user may not query it.
struct ServerFacts {
    Reply info;                             // INFO
    Reply min_replicas;                     // CONFIG GET min-replicas-to-write
    Reply save;                             // CONFIG GET save
    Reply output_buffers;                   // CONFIG GET client-output-buffer-limit
    std::optional<Reply> refused_commands;  // the reply of scripts::server_check, which a replica does not carry out
    std::optional<Reply> wait;              // WAIT, if replicas are required, but no disk
    std::optional<Reply> wait_aof;          // WAITAOF, if a disk is required
    std::optional<Reply> fsync;             // CONFIG GET appendfsync, likewise
};

// Returns a field of INFO, or nothing if there is none.
inline std::optional<std::string> info_field(const Reply& info, std::string_view field) {
    if (info.kind != Reply::Kind::text) return std::nullopt;
    std::istringstream lines(info.text);
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with(field) || line.size() <= field.size() || line[field.size()] != ':') continue;
        line.erase(0, field.size() + 1);
        if (line.ends_with('\r')) line.pop_back();
        return line;
    }
    return std::nullopt;
}

inline bool is_replica(const Reply& info) { return info_field(info, "role") == "slave"; }

// Returns the value in a reply to CONFIG GET.
inline std::optional<std::string> config_value(const Reply& reply) {
    if (reply.kind != Reply::Kind::array || reply.elements.size() != 2) return std::nullopt;
    return reply.elements[1].text;
}

// Returns the hard and the soft limit of subscribers' output buffers; 0 means no limit.
inline std::array<std::uint64_t, 2> pubsub_limits(const std::string& limits) {
    std::istringstream words(limits);
    for (std::string word; words >> word;) {
        if (word != "pubsub") continue;
        std::array<std::uint64_t, 2> found{};
        words >> found[0] >> found[1];
        return found;
    }
    return {};
}

inline std::vector<std::string> warnings_about(const ServerFacts& facts, const ClientOptions& options) {
    using detail::info_field;
    std::vector<std::string> warnings;
    const auto warn_if = [&](bool bad, const std::string& text) {
        if (bad) warnings.push_back(text);
    };
    if (facts.info.kind == Reply::Kind::text) {
        warn_if(is_replica(facts.info),
                "this server is a replica, so it refuses every lock; " + std::string(find_master));
        const std::string policy = info_field(facts.info, "maxmemory_policy").value_or("noeviction");
        warn_if(policy != "noeviction",
                "maxmemory-policy is " + escaped(policy) +
                    ", so the server may evict held locks when memory is short; set it to noeviction");
        unsigned replicas = 0;
        const std::string count = info_field(facts.info, "connected_slaves").value_or("0");
        std::from_chars(count.data(), count.data() + count.size(), replicas);
        warn_if(replicas > 0 && detail::config_value(facts.min_replicas) == "0",
                "min-replicas-to-write is 0, so an isolated master keeps granting locks while a replica is promoted; "
                "set it to 1 or more, and min-replicas-max-lag below the leases");
        unsigned version = 0;  // major version; Valkey reports the Redis version that it is compatible with
        const std::string versions = info_field(facts.info, "redis_version").value_or("7");
        std::from_chars(versions.data(), versions.data() + versions.size(), version);
        warn_if(
            replicas > 0 && version < 7,
            "the server is older than Redis 7, so scripts ignore min-replicas-to-write and an isolated master keeps "
            "granting locks; use Redis 7 or newer");
        if (options.require_replicas > 0) {
            const unsigned wanted = options.require_replicas == all_replicas ? 1 : options.require_replicas;
            warn_if(replicas < wanted, "the master has fewer replicas (" + std::to_string(replicas) +
                                           ") than require_replicas demands, so every acquire will fail; start "
                                           "replicas or lower require_replicas");
        }
        const bool has_log = info_field(facts.info, "aof_enabled") == "1";
        const auto save = detail::config_value(facts.save);
        if (options.require_fsync)
            warn_if(!has_log,
                    "appendonly is off, which require_fsync needs, so every acquire will fail; set appendonly yes");
        warn_if(!has_log && save == "",
                "persistence is off, so a restart loses all locks, which breaks RedLock; set appendonly yes");
        warn_if(!has_log && save != "",
                "appendonly is off, so a restart loses the locks since the last snapshot; set appendonly yes");
    } else {
        warnings.push_back("this user may not call INFO, so memory policy, persistence and replicas are unknown");
    }
    warn_if(facts.min_replicas.is_error() || facts.save.is_error() || facts.output_buffers.is_error(),
            "this user may not call CONFIG GET, so min-replicas-to-write, save and client-output-buffer-limit are "
            "unknown");
    if (const auto limits = detail::config_value(facts.output_buffers)) {
        const auto [hard, soft] = detail::pubsub_limits(*limits);
        warn_if((hard > 0 && hard < 1'000'000) || (soft > 0 && soft < 250'000),
                "client-output-buffer-limit for pubsub is small, so a brief delay can disconnect waiting clients; "
                "raise it");
    }
    if (facts.refused_commands && facts.refused_commands->kind == Reply::Kind::array) {
        std::string names;
        for (const Reply& name : facts.refused_commands->elements) {
            if (names.find(name.text) != std::string::npos) continue;
            names += (names.empty() ? "" : ", ") + escaped(name.text);
        }
        warn_if(!names.empty(), "this user may not call " + names +
                                    " on the keys and channels of locks, so scripts will fail; grant the rights that "
                                    "the guide to access rights lists");
    } else if (facts.refused_commands) {
        warnings.push_back("the server refuses scripts, so only a Mutex works: " +
                           in_quotes(facts.refused_commands->text, 160));
    }
    warn_if(facts.wait && facts.wait->is_error(),
            "this user may not call WAIT, which require_replicas needs, so every acquire will fail");
    if (facts.wait_aof && facts.wait_aof->is_error())
        warnings.push_back((lacking_on_disk(*facts.wait_aof, 0) == Reply::Lacking::command
                                ? std::string("the server does not have WAITAOF (Redis 7.2, Valkey)")
                                : std::string("this user may not call WAITAOF")) +
                           ", which require_fsync needs, so every acquire will fail");
    warn_if(facts.fsync && detail::config_value(*facts.fsync) == "no",
            "appendfsync is no, so the server confirms no write on its disk and every acquire will fail; set it to "
            "always or everysec");
    return warnings;
}

// Queries the server and returns the warnings. A refused query is a warning of its own. Throws
// Error(errc::unreachable).
inline std::vector<std::string> check_server(Session& session) {
    const Instant give_up = deadline_after(Clock::now(), session.options().unreachable_timeout);
    const auto answer = [&](auto send) {
        Retry retry = session.retry(give_up);
        Reply reply;
        do reply = send(retry.deadline());
        while (retry.again(reply));
        if (!reply.answered()) throw error_of(reply, {});
        return reply;
    };
    const auto ask = [&](std::initializer_list<std::string_view> words) {
        return answer([&](Instant deadline) { return session.call({{words.begin(), words.size()}, 0}, deadline); });
    };
    ServerFacts facts;
    facts.info = ask({"INFO"});
    facts.min_replicas = ask({"CONFIG", "GET", "min-replicas-to-write"});
    facts.save = ask({"CONFIG", "GET", "save"});
    facts.output_buffers = ask({"CONFIG", "GET", "client-output-buffer-limit"});
    const std::string key = session.options().key_prefix + "redlatch_check:" + session.uuid();
    const std::string channel = prefixed_key("redisson_lock__channel", key);
    if (!is_replica(facts.info))
        facts.refused_commands = answer([&](Instant deadline) {
            return session.call(Call(digested<scripts::server_check>, {key}, {channel, PublishCommand()}), deadline);
        });
    if (session.options().require_fsync) {
        facts.wait_aof = ask({"WAITAOF", "0", "0", "1"});
        facts.fsync = ask({"CONFIG", "GET", "appendfsync"});
    } else if (session.options().require_replicas > 0) {
        facts.wait = ask({"WAIT", "0", "1"});
    }
    return warnings_about(facts, session.options());
}

}  // namespace detail
}  // namespace REDLATCH_ABI
}  // namespace redlatch
