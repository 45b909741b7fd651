// SPDX-License-Identifier: MIT
#pragma once

#include <chrono>
#include <cstdlib>

namespace redlatch::test {

/// How long a stress test goes on: REDLATCH_STRESS_SECONDS, or as long as it usually does.
inline std::chrono::seconds stress_duration(std::chrono::seconds usual) {
    const char* wanted = std::getenv("REDLATCH_STRESS_SECONDS");
    const int seconds = wanted != nullptr ? std::atoi(wanted) : 0;
    return seconds > 0 ? std::chrono::seconds{seconds} : usual;
}

}  // namespace redlatch::test
