// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdlib>

namespace redlatch::test {

/// Returns how long a stress test runs: REDLATCH_STRESS_SECONDS, or its usual duration.
inline std::chrono::seconds stress_duration(std::chrono::seconds usual) {
    const char* wanted = std::getenv("REDLATCH_STRESS_SECONDS");
    const int seconds = wanted != nullptr ? std::atoi(wanted) : 0;
    return seconds > 0 ? std::chrono::seconds{seconds} : usual;
}

}  // namespace redlatch::test
