// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "raw_redis.hpp"
#include "shared_memory.hpp"
#include "temp_dir.hpp"
#include "wait.hpp"

namespace redlatch::test {

/// The wall clock of one server, which a test may move forward and back, also while the server runs. It can also make
/// the machine appear to have been suspended, for a server or another process. Needs the library built from
/// clock_shim.cpp, whose path is REDLATCH_CLOCK_SHIM.
///     ServerClock clock;
///     RedisServer server{{.environment = clock.environment(REDLATCH_CLOCK_SHIM)}};
///     clock.set(std::chrono::hours{-1});
class ServerClock {
public:
    std::map<std::string, std::string> environment(const std::string& shim) const {
        return {{"LD_PRELOAD", shim}, {"REDLATCH_CLOCK_OFFSET", file()}};
    }

    /// In microseconds. The preloaded library reads them from the file.
    struct Offsets {
        std::atomic<std::int64_t> wall;
        std::atomic<std::int64_t>
            suspended;  // CLOCK_BOOTTIME is ahead by it, as if the machine had been suspended for that time
        std::atomic<std::int64_t> frozen;  // since 1970; the wall clock stands still there, unless it is 0
    };

    std::string file() const { return dir_.file("offset"); }

    /// Sets how far the clock is ahead of the machine's clock from now on.
    void set(std::chrono::microseconds offset) { offsets_->wall = offset.count(); }

    /// Moves the clock of a running server. Returns true once the server shows that: Valkey 9.1 reads its clock once a
    /// millisecond.
    bool jump(RawRedis& redis, std::chrono::seconds by) {
        using std::chrono::milliseconds;
        const auto ahead = [&] {
            return milliseconds{redis.now()} - std::chrono::steady_clock::now().time_since_epoch();
        };
        const auto before = ahead();
        set(offset() + by);
        return eventually([&] { return std::chrono::abs(ahead() - before - by) < milliseconds{500}; },
                          std::chrono::seconds{5});
    }

    /// Stops the clock at this time since 1970.
    void freeze_at(std::chrono::microseconds time) { offsets_->frozen = time.count(); }

    std::chrono::microseconds offset() const { return std::chrono::microseconds{offsets_->wall.load()}; }

private:
    TempDir dir_;
    SharedMemory<Offsets> offsets_ = SharedMemory<Offsets>::create(file());
};

}  // namespace redlatch::test
