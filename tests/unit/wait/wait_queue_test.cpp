// SPDX-License-Identifier: MIT
// Who of a process waits, who asks the server, and when.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>

using namespace redlatch;
using namespace std::chrono_literals;

namespace {

constexpr Instant past{};

Instant at(Milliseconds t) { return Instant(1h + t); }

struct Person : Waiter {
    explicit Person(OwnerNumber number) : Waiter{.owner = number, .lease = {}} {}
};

}  // namespace

TEST_CASE("nobody stands in an empty line") {
    const WaitQueue line;
    CHECK(line.empty());
    CHECK(line.front() == nullptr);
    CHECK(line.heir() == nullptr);
}

TEST_CASE("waiters stand in the order of their arrival") {
    WaitQueue line;
    Person a(1), b(2), c(3);
    line.join(a);
    line.join(b);
    line.join(c);
    CHECK(line.front() == &a);
    CHECK(line.is_front(a));
    CHECK_FALSE(line.is_front(b));
    line.leave(b);
    line.leave(a);
    CHECK(line.front() == &c);
    line.leave(c);
    CHECK(line.empty());
    line.leave(c);
    CHECK(line.empty());
}

TEST_CASE("one whose turn came to nothing stands first again") {
    WaitQueue line;
    Person a(1), b(2);
    line.join(a);
    line.join_first(b);
    CHECK(line.front() == &b);
}

TEST_CASE("a hold goes to the first who is not asking the server for it already") {
    WaitQueue line;
    Person a(1), b(2);
    line.join(a);
    line.join(b);
    CHECK(line.heir() == &a);
    a.trying = true;
    CHECK(line.heir() == &b);
    b.trying = true;
    CHECK(line.heir() == nullptr);
}

TEST_CASE("who has not asked yet asks") {
    const WaitQueue line;
    CHECK(line.step(at(0ms), past).ask);
}

TEST_CASE("who was told to be blocked sleeps until the holder's lease is over, and one millisecond more") {
    WaitQueue line;
    line.blocked(line.generation(), 400ms, at(0ms));
    const auto step = line.step(at(1ms), past);
    CHECK_FALSE(step.ask);
    CHECK(step.sleep_until == at(401ms));
    CHECK_FALSE(line.step(at(400ms), past).ask);
    CHECK(line.step(at(401ms), past).ask);
}

TEST_CASE("news wakes, whenever it comes") {
    WaitQueue line;
    line.blocked(line.generation(), 10s, at(0ms));
    CHECK_FALSE(line.step(at(1ms), past).ask);
    line.news();
    CHECK(line.step(at(1ms), past).ask);
}

TEST_CASE("news that comes between the question and its answer is not lost") {
    WaitQueue line;
    const auto generation = line.generation();
    line.news();
    line.blocked(generation, 10s, at(0ms));
    CHECK(line.step(at(1ms), past).ask);
    line.blocked(line.generation(), 10s, at(2ms));
    CHECK_FALSE(line.step(at(3ms), past).ask);
}

TEST_CASE("several pieces of news are answered by one question") {
    WaitQueue line;
    line.news();
    line.news();
    line.news();
    line.blocked(line.generation(), 10s, at(0ms));
    CHECK_FALSE(line.step(at(1ms), past).ask);
}

TEST_CASE("a holder without a TTL is asked for slowly") {
    WaitQueue line;
    line.blocked(line.generation(), -1ms, at(0ms));
    CHECK_FALSE(line.step(at(4s), past).ask);
    CHECK(line.step(at(1ms), past).sleep_until == at(WaitQueue::slow_poll + 1ms));
    CHECK(line.step(at(WaitQueue::slow_poll + 1ms), past).ask);
}

TEST_CASE("nobody sleeps longer than half a minute, whatever a server says") {
    WaitQueue line;
    for (const Milliseconds told : {Milliseconds(31s), Milliseconds(24h), Milliseconds::max()}) {
        line.blocked(line.generation(), told, at(0ms));
        CHECK(line.step(at(1ms), past).sleep_until == at(WaitQueue::longest_sleep + 1ms));
    }
    line.blocked(line.generation(), Milliseconds::min(), at(0ms));
    CHECK(line.step(at(1ms), past).sleep_until == at(WaitQueue::slow_poll + 1ms));
}

TEST_CASE("who asks after pauses of its own does so, whatever others were told meanwhile") {
    WaitQueue line;
    line.blocked(line.generation(), 10s, at(0ms));
    CHECK_FALSE(line.step(at(1ms), past, at(8ms)).ask);
    CHECK(line.step(at(1ms), past, at(8ms)).sleep_until == at(8ms));
    CHECK(line.step(at(8ms), past, at(8ms)).ask);
    CHECK_FALSE(line.step(at(8ms), at(30s), at(8ms)).ask);
}

TEST_CASE("while a thread of this process holds the lock, nobody asks") {
    WaitQueue line;
    line.blocked(line.generation(), 10ms, at(0ms));
    line.held_here();
    const auto step = line.step(at(1s), at(30s));
    CHECK_FALSE(step.ask);
    CHECK(step.sleep_until == at(30s));
}

TEST_CASE("a hold of this process makes older news meaningless, but not later news") {
    WaitQueue line;
    line.news();
    line.held_here();
    CHECK_FALSE(line.step(at(0ms), at(30s)).ask);
    line.news();
    CHECK(line.step(at(0ms), at(30s)).ask);
}

TEST_CASE("when a hold of this process runs out without news, the next one asks") {
    WaitQueue line;
    line.held_here();
    CHECK_FALSE(line.step(at(29s), at(30s)).ask);
    CHECK(line.step(at(30s), at(30s)).ask);
    CHECK(line.step(at(31s), past).ask);
}

TEST_CASE("the answer to a question from before a hold of this process does not hide later news") {
    WaitQueue line;
    const auto generation = line.generation();
    line.held_here();
    line.news();
    line.blocked(generation, 10s, at(0ms));
    CHECK(line.step(at(1ms), past).ask);
}

TEST_CASE("what the first knew is still known when the next takes its place") {
    WaitQueue line;
    Person a(1), b(2);
    line.join(a);
    line.join(b);
    line.blocked(line.generation(), 10s, at(0ms));
    line.news();
    line.leave(a);
    CHECK(line.is_front(b));
    CHECK(line.step(at(1ms), past).ask);
}
