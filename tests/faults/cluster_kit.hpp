// SPDX-License-Identifier: MIT
#pragma once

#include <string>

#include "faults/fault_kit.hpp"
#include "support/cluster_servers.hpp"

// Shared by the fault tests of a cluster.
namespace redlatch::fault {

using namespace redlatch::detail;

// An upper bound: a failover takes about three seconds.
inline constexpr auto failover = 120s;
inline constexpr auto soon = 20s;

// Leases longer than a failover, so that no hold ends by expiry.
inline ClientOptions steady() {
    ClientOptions options = quick();
    options.watchdog_timeout = 180s;
    options.unreachable_timeout = 180s;
    return options;
}

inline bool is_listened_to(RedisServer& node, const std::string& name) {
    return eventually([&] { return RawRedis{node}.lock_listeners(channel_of(name), true) == 1; }, soon);
}

}  // namespace redlatch::fault
