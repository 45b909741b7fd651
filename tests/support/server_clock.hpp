// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "shared_memory.hpp"
#include "temp_dir.hpp"

namespace redlatch::test {

/// The wall clock of one server, which a test may set forward and back, also while the server runs; and for how long the
/// machine seems to have been suspended, to a server or another process. Needs the library that clock_shim.cpp is built
/// to; REDLATCH_CLOCK_SHIM is its path.
///     ServerClock clock;
///     RedisServer server{{.environment = clock.environment(REDLATCH_CLOCK_SHIM)}};
///     clock.set(std::chrono::hours{-1});
class ServerClock {
public:
    std::map<std::string, std::string> environment(const std::string& shim) const {
        return {{"LD_PRELOAD", shim}, {"REDLATCH_CLOCK_OFFSET", file()}};
    }

    /// In microseconds: what the library that is preloaded finds in the file.
    struct Offsets {
        std::atomic<std::int64_t> wall;
        std::atomic<std::int64_t> suspended;  // CLOCK_BOOTTIME is ahead by it, as if the machine had slept for so long
    };

    std::string file() const { return dir_.file("offset"); }

    /// By how much it differs from the machine's clock from now on.
    void set(std::chrono::microseconds offset) { offsets_->wall = offset.count(); }

    std::chrono::microseconds offset() const { return std::chrono::microseconds{offsets_->wall.load()}; }

private:
    TempDir dir_;
    SharedMemory<Offsets> offsets_ = SharedMemory<Offsets>::create(file());
};

}  // namespace redlatch::test
