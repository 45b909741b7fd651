// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "setting.hpp"

// Plans which faults come when. A plan depends only on the seed and the time, so that a failure can be reproduced.
namespace redlatch::soak {

enum class Lane : std::uint32_t { server, network, late, workers };

// The cost of a fault, apart from time.
enum class Cost : std::uint32_t {
    nothing,  // waiters must wake as promptly as ever, and every guarantee holds
    time,     // servers, connections or processes stand still: no wake-up can be prompt meanwhile
    holds     // holds end at the server before their lease: overlaps, until the losses are reported
};

enum class FaultKind : std::uint32_t {
    restart_with_data,
    restart_without_data,
    restart_with_cut_tail,
    server_frozen,
    pause_all,
    pause_writes,
    busy_script,
    server_sleeps,
    no_memory,
    failed_snapshot,
    no_replicas,
    scripts_forbidden,
    right_missing,
    script_flush,
    flush_all,
    key_deleted,
    force_unlock,
    clock_forward,
    clock_back,
    kill_normal,
    kill_pubsub,
    kill_everybody,
    garbage_published,
    queues_lost,
    connections_cut,
    delayed,
    request_dropped,
    reply_dropped,
    reply_swallowed,
    request_cut,
    reply_cut,
    client_half_closed,
    server_half_closed,
    blackhole,
    one_byte_segments,
    throttled,
    connections_refused,
    grant_lost,
    grant_late,
    acquire_held_back,
    release_held_back,
    worker_killed,
    worker_frozen,
    grantee_killed,
    grantee_frozen
};

struct FaultInfo {
    FaultKind kind;
    std::string_view name;
    Lane lane;
    Cost cost;
    std::int64_t least_ms;  // how long it lasts
    std::int64_t most_ms;
};

inline constexpr std::array fault_kinds{
    FaultInfo{FaultKind::restart_with_data, "restart_with_data", Lane::server, Cost::time, 0, 400},
    FaultInfo{FaultKind::restart_without_data, "restart_without_data", Lane::server, Cost::holds, 0, 200},
    FaultInfo{FaultKind::restart_with_cut_tail, "restart_with_cut_tail", Lane::server, Cost::holds, 0, 200},
    FaultInfo{FaultKind::server_frozen, "server_frozen", Lane::server, Cost::time, 50, 1800},
    FaultInfo{FaultKind::pause_all, "pause_all", Lane::server, Cost::time, 50, 1200},
    FaultInfo{FaultKind::pause_writes, "pause_writes", Lane::server, Cost::time, 50, 1800},
    FaultInfo{FaultKind::busy_script, "busy_script", Lane::server, Cost::time, 100, 700},
    FaultInfo{FaultKind::server_sleeps, "server_sleeps", Lane::server, Cost::time, 50, 900},
    FaultInfo{FaultKind::no_memory, "no_memory", Lane::server, Cost::time, 50, 900},
    FaultInfo{FaultKind::failed_snapshot, "failed_snapshot", Lane::server, Cost::time, 50, 500},
    FaultInfo{FaultKind::no_replicas, "no_replicas", Lane::server, Cost::time, 50, 1800},
    FaultInfo{FaultKind::scripts_forbidden, "scripts_forbidden", Lane::server, Cost::time, 20, 300},
    FaultInfo{FaultKind::right_missing, "right_missing", Lane::server, Cost::time, 50, 1200},
    FaultInfo{FaultKind::script_flush, "script_flush", Lane::server, Cost::nothing, 0, 0},
    FaultInfo{FaultKind::flush_all, "flush_all", Lane::server, Cost::holds, 0, 0},
    FaultInfo{FaultKind::key_deleted, "key_deleted", Lane::server, Cost::holds, 0, 0},
    FaultInfo{FaultKind::force_unlock, "force_unlock", Lane::server, Cost::holds, 0, 0},
    FaultInfo{FaultKind::clock_forward, "clock_forward", Lane::server, Cost::holds, 0, 0},
    FaultInfo{FaultKind::clock_back, "clock_back", Lane::server, Cost::holds, 200, 900},
    FaultInfo{FaultKind::kill_normal, "kill_normal", Lane::server, Cost::nothing, 0, 0},
    FaultInfo{FaultKind::kill_pubsub, "kill_pubsub", Lane::server, Cost::nothing, 0, 0},
    FaultInfo{FaultKind::kill_everybody, "kill_everybody", Lane::server, Cost::nothing, 0, 0},
    FaultInfo{FaultKind::garbage_published, "garbage_published", Lane::server, Cost::nothing, 0, 0},
    // As in a failover to a replica that lags behind.
    FaultInfo{FaultKind::queues_lost, "queues_lost", Lane::server, Cost::time, 0, 0},
    FaultInfo{FaultKind::connections_cut, "connections_cut", Lane::network, Cost::nothing, 0, 0},
    FaultInfo{FaultKind::delayed, "delayed", Lane::network, Cost::time, 50, 1200},
    FaultInfo{FaultKind::request_dropped, "request_dropped", Lane::network, Cost::time, 300, 600},
    FaultInfo{FaultKind::reply_dropped, "reply_dropped", Lane::network, Cost::time, 300, 600},
    FaultInfo{FaultKind::reply_swallowed, "reply_swallowed", Lane::network, Cost::time, 300, 600},
    FaultInfo{FaultKind::request_cut, "request_cut", Lane::network, Cost::time, 300, 600},
    FaultInfo{FaultKind::reply_cut, "reply_cut", Lane::network, Cost::time, 300, 600},
    FaultInfo{FaultKind::client_half_closed, "client_half_closed", Lane::network, Cost::time, 0, 0},
    FaultInfo{FaultKind::server_half_closed, "server_half_closed", Lane::network, Cost::time, 0, 0},
    FaultInfo{FaultKind::blackhole, "blackhole", Lane::network, Cost::time, 100, 2500},
    FaultInfo{FaultKind::one_byte_segments, "one_byte_segments", Lane::network, Cost::time, 100, 800},
    FaultInfo{FaultKind::throttled, "throttled", Lane::network, Cost::time, 100, 800},
    FaultInfo{FaultKind::connections_refused, "connections_refused", Lane::network, Cost::time, 100, 1000},
    // The message that tells a waiter of its grant.
    FaultInfo{FaultKind::grant_lost, "grant_lost", Lane::network, Cost::time, 300, 600},
    FaultInfo{FaultKind::grant_late, "grant_late", Lane::network, Cost::time, 300, 600},
    FaultInfo{FaultKind::acquire_held_back, "acquire_held_back", Lane::late, Cost::time, 300, 600},
    FaultInfo{FaultKind::release_held_back, "release_held_back", Lane::late, Cost::time, 300, 600},
    FaultInfo{FaultKind::worker_killed, "worker_killed", Lane::workers, Cost::time, 0, 0},
    FaultInfo{FaultKind::worker_frozen, "worker_frozen", Lane::workers, Cost::time, 50, 3000},
    // A worker that has been granted a lock or a permit, before it has the message.
    FaultInfo{FaultKind::grantee_killed, "grantee_killed", Lane::workers, Cost::time, 300, 600},
    FaultInfo{FaultKind::grantee_frozen, "grantee_frozen", Lane::workers, Cost::time, 500, 3000},
};

constexpr const FaultInfo& info(FaultKind kind) { return fault_kinds[static_cast<std::size_t>(kind)]; }

constexpr bool loses_data(FaultKind kind) {
    return kind == FaultKind::restart_without_data || kind == FaultKind::restart_with_cut_tail ||
           kind == FaultKind::flush_all;
}

struct PlannedFault {
    FaultKind kind{};
    std::int64_t at_ms = 0;
    std::int64_t lasts_ms = 0;
    std::uint64_t target = 0;  // the number of a worker, proxy or lock, modulo how many there are
    std::uint64_t draw = 0;    // for the details
};

// Plans storms, in which every lane has one fault after another. Between them are calm times with faults that cost
// nothing, in which waiters must be prompt. Sorted by time. In each lane every kind comes once before any comes again.
// `only` is the name of the only kind that comes; if it is empty, all kinds come.
std::vector<PlannedFault> make_plan(std::uint64_t seed, std::int64_t seconds, std::string_view only = {});

}  // namespace redlatch::soak
