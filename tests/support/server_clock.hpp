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

/// The wall clock of one server, which a test may set forward and back, also while the server runs. Needs the library
/// that clock_shim.cpp is built to; REDLATCH_CLOCK_SHIM is its path.
///     ServerClock clock;
///     RedisServer server{{.environment = clock.environment(REDLATCH_CLOCK_SHIM)}};
///     clock.set(std::chrono::hours{-1});
class ServerClock {
public:
    std::map<std::string, std::string> environment(const std::string& shim) const {
        return {{"LD_PRELOAD", shim}, {"REDLATCH_CLOCK_OFFSET", dir_.file("offset")}};
    }

    /// By how much it differs from the machine's clock from now on.
    void set(std::chrono::microseconds offset) { *offset_ = offset.count(); }

    std::chrono::microseconds offset() const { return std::chrono::microseconds{offset_->load()}; }

private:
    TempDir dir_;
    SharedMemory<std::atomic<std::int64_t>> offset_ =
        SharedMemory<std::atomic<std::int64_t>>::create(dir_.file("offset"));
};

}  // namespace redlatch::test
