// SPDX-License-Identifier: MIT
// What the programs in tests/fuzz have found, once more.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <cstdint>
#include <limits>

#include "support/scripted_transport.hpp"

using namespace redlatch;
using namespace redlatch::test;
using namespace std::chrono_literals;

// One more than told is the time to ask again, and one more than the largest number is the smallest: a waiter asked
// without a pause.
TEST_CASE("a waiter that is told of a next expiry at the end of time does not ask in a loop") {
    ScriptedRedis redis;
    Client client{redis.transport()};
    PermitExpirableSemaphore seats{client, "seats"};
    redis.always("acquire by id", array({number(0), number(std::numeric_limits<std::int64_t>::max())}));
    CHECK_FALSE(seats.try_acquire_for(100ms));
    CHECK(redis.count("acquire by id") <= 3);
}
