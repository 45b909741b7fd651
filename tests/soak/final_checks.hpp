// SPDX-License-Identifier: MIT
#pragma once

#include <array>

#include "crowd.hpp"
#include "findings.hpp"
#include "setting.hpp"
#include "support/redis_server.hpp"

namespace redlatch::soak {

// Call this when all workers have ended. Checks that every lock can be acquired, that every permit is there, and that
// only documented keys are left.
void run_final_checks(const test::RedisServer& server, const std::array<test::RedisServer, steady_servers>& steady,
                      Shared& shared, const Crowd& crowd, Findings& findings);

}  // namespace redlatch::soak
