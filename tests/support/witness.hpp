// SPDX-License-Identifier: MIT
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

namespace redlatch::test {

// What the command under a lock sees, in a file that the test maps: see witness.cpp. Times are nanoseconds of
// CLOCK_BOOTTIME; 0: not yet.
struct Witness {
    std::atomic<std::int64_t> begun{0};
    std::atomic<std::int64_t> last_alive{0};  // written every millisecond: where it ends, the process has ended
    std::atomic<std::int64_t> term{0};        // when the first SIGTERM came
    std::atomic<std::int64_t> token{0};
    std::atomic<std::int32_t> process{0};
    std::atomic<std::int32_t> parent{0};  // the guardian
    std::atomic<std::int32_t> signals[65]{};
};

inline std::int64_t boot_time() {
    timespec now{};
    ::clock_gettime(CLOCK_BOOTTIME, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace redlatch::test
