// SPDX-License-Identifier: MIT
// Regression tests for the findings of tests/fuzz.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdint>
#include <limits>

#include "support/scripted_transport.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

// The waiter asks one millisecond after the reported time. One more than the largest number overflowed to the smallest,
// so the waiter asked without a pause.
TEST_CASE("next expiry at the largest time: the waiter does not ask in a tight loop") {
    ScriptedRedis redis;
    Client client{redis.transport()};
    PermitExpirableSemaphore seats{client, "seats"};
    redis.always("acquire by id", array({number(0), number(std::numeric_limits<std::int64_t>::max())}));
    CHECK_FALSE(seats.try_acquire_for(100ms));
    CHECK(redis.count("acquire by id") <= 3);
}
