// SPDX-License-Identifier: MIT
#pragma once

#include <sched.h>
#include <sys/types.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "support/socket.hpp"

namespace redlatch::bench {

/// Where client and server run. A round trip between two CPUs is dominated by waking the other one, on one CPU by the
/// software; left free, the scheduler flips between the two, so one-thread figures are only comparable when pinned.
enum class Placement { free, cross, same };

inline std::string_view name_of(Placement placement) {
    switch (placement) {
        case Placement::cross: return "cross";
        case Placement::same: return "same";
        case Placement::free: break;
    }
    return "free";
}

/// Returns the CPUs that this process was started on, in order.
inline const std::vector<std::size_t>& usable_cpus() {
    static const std::vector<std::size_t> cpus = [] {
        cpu_set_t set;
        CPU_ZERO(&set);
        if (::sched_getaffinity(0, sizeof set, &set) != 0) test::throw_errno("sched_getaffinity");
        std::vector<std::size_t> result;
        for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu)
            if (CPU_ISSET(cpu, &set)) result.push_back(cpu);
        return result;
    }();
    return cpus;
}

inline bool possible(Placement placement) { return placement != Placement::cross || usable_cpus().size() > 1; }

namespace detail {

inline void pin(pid_t thread, const std::vector<std::size_t>& cpus) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const std::size_t cpu : cpus) CPU_SET(cpu, &set);
    if (::sched_setaffinity(thread, sizeof set, &set) != 0) test::throw_errno("sched_setaffinity");
}

}  // namespace detail

/// Places the calling thread and the threads that it starts later.
inline void place_client(Placement placement) {
    const auto& cpus = usable_cpus();
    if (placement == Placement::free) return detail::pin(0, cpus);
    detail::pin(0, {placement == Placement::cross ? cpus.at(1) : cpus.at(0)});
}

/// Places every thread of the server.
inline void place_server(pid_t server, Placement placement) {
    const auto& cpus = usable_cpus();
    const std::filesystem::path threads = "/proc/" + std::to_string(server) + "/task";
    for (const auto& thread : std::filesystem::directory_iterator{threads}) {
        const auto id = static_cast<pid_t>(std::stol(thread.path().filename().string()));
        detail::pin(id, placement == Placement::free ? cpus : std::vector{cpus.at(0)});
    }
}

}  // namespace redlatch::bench
