// SPDX-License-Identifier: MIT
// ctest: without=address,thread
// suspended(): for how long the machine was suspended, which the steady clock does not show.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <chrono>
#include <span>
#include <string>

#include "support/process.hpp"
#include "support/server_clock.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

// Runs in a process whose clocks report that the machine was suspended meanwhile.
const Role sleeper{"suspended: sleeper", [](std::span<const std::string> args) {
                       const auto clocks = SharedMemory<ServerClock::Offsets>::open(args[0]);
                       const auto before = suspended();
                       const auto steady = Clock::now();
                       clocks->suspended += std::chrono::microseconds(1h).count();
                       const auto grown = suspended() - before;
                       const bool stood_still = Clock::now() - steady < 30min;
                       return stood_still && grown > 1h - 1ms && grown < 1h + 1ms ? 0 : 1;
                   }};

// The server tells its time, and the machine is suspended before the reply arrives.
const Role asker{"suspended: asks for the time", [](std::span<const std::string> args) {
                     const auto clocks = SharedMemory<ServerClock::Offsets>::open(args[0]);
                     RemoteClock clock;
                     clock.learn(0, SendTime(), Clock::now(), 5'000);
                     if (!clock.bounds_at(0, Clock::now())) return 1;
                     const SendTime asked;
                     clocks->suspended += std::chrono::microseconds(10min).count();
                     clock.learn(0, asked, Clock::now(), 5'000);
                     return clock.bounds_at(0, Clock::now()) ? 2 : 0;
                 }};

}  // namespace

TEST_CASE("on a running machine the suspended time does not grow") {
    const auto first = suspended();
    CHECK(first >= 0ns);
    auto least = first;
    auto most = first;
    for (int i = 0; i < 10'000; ++i) {
        const auto now = suspended();
        least = std::min(least, now);
        most = std::max(most, now);
    }
    CHECK(most - least < 1ms);
}

TEST_CASE("an hour of suspension is measured, although the steady clock stood still") {
    ServerClock clock;
    ChildProcess child = spawn_self("suspended: sleeper", {clock.file()}, clock.environment(REDLATCH_CLOCK_SHIM));
    CHECK(child.wait(30s) == ExitStatus{0, 0});
}

TEST_CASE("a reading of the server's clock that a suspension interrupts vouches for nothing") {
    ServerClock clock;
    ChildProcess child =
        spawn_self("suspended: asks for the time", {clock.file()}, clock.environment(REDLATCH_CLOCK_SHIM));
    CHECK(child.wait(30s) == ExitStatus{0, 0});
}
