// SPDX-License-Identifier: MIT
// LockQueue: the waiting threads of a process, and when their representative asks the server.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <vector>

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;

namespace {

constexpr Instant past{};

Instant at(Milliseconds t) { return Instant(1h + t); }

// Has its request with it.
struct Request {
    explicit Request(OwnerNumber who) { request.owner = who; }
    LockRequest request;
};
struct Person : private Request, public LockWaiter {
    explicit Person(OwnerNumber who) : Request(who), LockWaiter(Request::request) {}
};

}  // namespace

TEST_CASE("an empty queue has no front and no successor") {
    const LockQueue line;
    CHECK(line.empty());
    CHECK(line.front() == nullptr);
    CHECK(line.successor() == nullptr);
}

TEST_CASE("waiters queue up in the order of their arrival") {
    LockQueue line;
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

TEST_CASE("whoever leaves takes nobody along, and may join again") {
    LockQueue line;
    Person a(1), b(2), c(3), stranger(4);
    line.leave(stranger);
    CHECK(line.empty());
    for (Person* one : {&a, &b, &c}) line.join(*one);
    line.leave(c);
    line.leave(c);
    CHECK(line.size() == 2);
    line.join(c);
    CHECK(line.first(9) == std::vector<LockWaiter*>{&a, &b, &c});
    line.leave(a);
    line.join(a);
    line.leave(b);
    line.join_first(b);
    REQUIRE(line.first(9) == std::vector<LockWaiter*>{&b, &c, &a});
    // One that was served, and lost its hold before it left, stands in front again.
    line.join_first(c);
    line.join_first(c);
    REQUIRE(line.first(9) == std::vector<LockWaiter*>{&c, &b, &a});
    CHECK(line.size() == 3);
    std::vector<const LockWaiter*> seen;
    line.for_each([&](const LockWaiter& one) { seen.push_back(&one); });
    CHECK(seen == std::vector<const LockWaiter*>{&c, &b, &a});
}

TEST_CASE("join_first() puts a waiter at the front again") {
    LockQueue line;
    Person a(1), b(2);
    line.join(a);
    line.join_first(b);
    CHECK(line.front() == &b);
}

TEST_CASE("a hold goes to the first waiter that is not asking the server already") {
    LockQueue line;
    Person a(1), b(2);
    line.join(a);
    line.join(b);
    CHECK(line.successor() == &a);
    a.phase = Waiter::Phase::asking;
    CHECK(line.successor() == &b);
    b.phase = Waiter::Phase::asking;
    CHECK(line.successor() == nullptr);
}

TEST_CASE("a queue that has not asked yet asks") {
    const LockQueue line;
    CHECK(line.step(at(0ms), past).ask);
}

TEST_CASE("a blocked waiter sleeps until one millisecond after the end of the holder's lease") {
    LockQueue line;
    line.blocked(line.generation(), 400ms, at(0ms));
    const auto step = line.step(at(1ms), past);
    CHECK_FALSE(step.ask);
    CHECK(step.sleep_until == at(401ms));
    CHECK_FALSE(line.step(at(400ms), past).ask);
    CHECK(line.step(at(401ms), past).ask);
}

TEST_CASE("a notification makes a sleeping waiter ask") {
    LockQueue line;
    line.blocked(line.generation(), 10s, at(0ms));
    CHECK_FALSE(line.step(at(1ms), past).ask);
    line.notify();
    CHECK(line.step(at(1ms), past).ask);
}

TEST_CASE("a notification between the query and its reply is not lost") {
    LockQueue line;
    const auto generation = line.generation();
    line.notify();
    line.blocked(generation, 10s, at(0ms));
    CHECK(line.step(at(1ms), past).ask);
    line.blocked(line.generation(), 10s, at(2ms));
    CHECK_FALSE(line.step(at(3ms), past).ask);
}

TEST_CASE("several notifications need one query") {
    LockQueue line;
    line.notify();
    line.notify();
    line.notify();
    line.blocked(line.generation(), 10s, at(0ms));
    CHECK_FALSE(line.step(at(1ms), past).ask);
}

TEST_CASE("a holder without a TTL: slow polling") {
    LockQueue line;
    line.blocked(line.generation(), -1ms, at(0ms));
    CHECK_FALSE(line.step(at(4s), past).ask);
    CHECK(line.step(at(1ms), past).sleep_until == at(LockQueue::slow_poll + 1ms));
    CHECK(line.step(at(LockQueue::slow_poll + 1ms), past).ask);
}

TEST_CASE("a sleep is limited to half a minute, whatever lease the server reported") {
    LockQueue line;
    for (const Milliseconds told : {Milliseconds(31s), Milliseconds(24h), Milliseconds::max()}) {
        line.blocked(line.generation(), told, at(0ms));
        CHECK(line.step(at(1ms), past).sleep_until == at(LockQueue::longest_sleep + 1ms));
    }
    line.blocked(line.generation(), Milliseconds::min(), at(0ms));
    CHECK(line.step(at(1ms), past).sleep_until == at(LockQueue::slow_poll + 1ms));
}

TEST_CASE("a waiter with pauses of its own asks at their end, whatever other threads learned meanwhile") {
    LockQueue line;
    line.blocked(line.generation(), 10s, at(0ms));
    CHECK_FALSE(line.step(at(1ms), past, at(8ms)).ask);
    CHECK(line.step(at(1ms), past, at(8ms)).sleep_until == at(8ms));
    CHECK(line.step(at(8ms), past, at(8ms)).ask);
    CHECK_FALSE(line.step(at(8ms), at(30s), at(8ms)).ask);
}

TEST_CASE("while a thread of this process holds the lock, no thread asks") {
    LockQueue line;
    line.blocked(line.generation(), 10ms, at(0ms));
    line.acquired_locally();
    const auto step = line.step(at(1s), at(30s));
    CHECK_FALSE(step.ask);
    CHECK(step.sleep_until == at(30s));
}

TEST_CASE("a hold of this process voids older notifications, not later ones") {
    LockQueue line;
    line.notify();
    line.acquired_locally();
    CHECK_FALSE(line.step(at(0ms), at(30s)).ask);
    line.notify();
    CHECK(line.step(at(0ms), at(30s)).ask);
}

TEST_CASE("when a hold of this process runs out without a notification, the next waiter asks") {
    LockQueue line;
    line.acquired_locally();
    CHECK_FALSE(line.step(at(29s), at(30s)).ask);
    CHECK(line.step(at(30s), at(30s)).ask);
    CHECK(line.step(at(31s), past).ask);
}

TEST_CASE("the reply to a query from before a local hold does not hide later notifications") {
    LockQueue line;
    const auto generation = line.generation();
    line.acquired_locally();
    line.notify();
    line.blocked(generation, 10s, at(0ms));
    CHECK(line.step(at(1ms), past).ask);
}

TEST_CASE("the next representative keeps what the first one knew") {
    LockQueue line;
    Person a(1), b(2);
    line.join(a);
    line.join(b);
    line.blocked(line.generation(), 10s, at(0ms));
    line.notify();
    line.leave(a);
    CHECK(line.is_front(b));
    CHECK(line.step(at(1ms), past).ask);
}
