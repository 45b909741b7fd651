// SPDX-License-Identifier: MIT
// The age of a server according to its INFO, which decides whether it may vote for a RedLock.
#include <doctest/doctest.h>

#include <chrono>

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;

TEST_CASE("the age of a server is read from its INFO") {
    CHECK(read_uptime("# Server\r\nrun_id:1\r\nuptime_in_seconds:47\r\nuptime_in_days:0\r\n") == 47s);
    CHECK(read_uptime("uptime_in_seconds:0\r\n") == 0s);
    CHECK_FALSE(read_uptime("uptime_in_days:3\r\n"));
    CHECK_FALSE(read_uptime("uptime_in_seconds:\r\n"));
    CHECK_FALSE(read_uptime("uptime_in_seconds:99999999999999999999\r\n"));
}

// Redis computes it by its wall clock. An error here would fail the whole RedLock, whatever its other servers reply.
TEST_CASE("a server whose clock was set back before its start counts as just started") {
    CHECK(read_uptime("uptime_in_seconds:-1\r\n") == 0s);
    CHECK(read_uptime("uptime_in_seconds:-3600\r\n") == 0s);
}
