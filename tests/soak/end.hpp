// SPDX-License-Identifier: MIT
#pragma once

#include <array>

#include "crowd.hpp"
#include "setting.hpp"
#include "support/redis_server.hpp"
#include "verdict.hpp"

namespace redlatch::soak {

// When all workers have come to their end: every lock can be taken, every permit is there, and nothing is left but what
// is documented.
void judge_end(const test::RedisServer& server, const std::array<test::RedisServer, steady_servers>& steady,
               Shared& shared, const Crowd& crowd, ReplyClass& verdict);

}  // namespace redlatch::soak
