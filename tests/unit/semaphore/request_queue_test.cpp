// SPDX-License-Identifier: MIT
// RequestQueue: the threads of a process that wait for permits or for a count, and when their representative asks.
// RequestLanes.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>
#include <vector>

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;

namespace {

using Line = RequestQueue<int>;
using Member = Line::Member;

Instant at(Milliseconds t) { return Instant(1h + t); }

}  // namespace

TEST_CASE("callers queue up in order of arrival, and are found by number while they wait") {
    Line line;
    CHECK(line.empty());
    CHECK(line.front() == nullptr);
    Member a{1}, b{2}, c{3};
    line.join(a);
    line.join(b);
    line.join(c);
    CHECK(line.is_front(a));
    CHECK(line.first(2) == std::vector<Member*>{&a, &b});
    CHECK(line.first(9) == std::vector<Member*>{&a, &b, &c});
    line.leave(a);
    CHECK(line.is_front(b));
    CHECK(line.find(a.number) == nullptr);
    CHECK(line.find(b.number) == &b);
    const auto first_number = a.number;
    line.join(a);
    // A new wait has a new number, even of the same object.
    CHECK(line.find(first_number) == nullptr);
    CHECK(line.find(a.number) == &a);
}

TEST_CASE("a refused representative sleeps until a notification") {
    Line line;
    Member a{1};
    line.join(a);
    CHECK(line.step(at(0ms)).ask);
    const auto generation = line.generation();
    line.refused(a, generation, Milliseconds::max(), at(0ms));
    CHECK_FALSE(line.step(at(0ms)).ask);
    CHECK_FALSE(line.step(at(4999ms)).ask);
    line.notify();
    CHECK(line.step(at(1ms)).ask);
}

TEST_CASE("a notification during a query makes the representative ask again") {
    Line line;
    Member a{1};
    line.join(a);
    const auto generation = line.generation();
    line.notify();
    line.refused(a, generation, Milliseconds::max(), at(0ms));
    CHECK(line.step(at(0ms)).ask);
}

TEST_CASE("without a notification the representative asks again after 5 to 10 seconds") {
    for (int i = 0; i < 100; ++i) {
        Line line;
        Member a{1};
        line.join(a);
        line.refused(a, line.generation(), Milliseconds::max(), at(0ms));
        const auto step = line.step(at(1ms));
        REQUIRE_FALSE(step.ask);
        CHECK(step.sleep_until >= at(5s));
        CHECK(step.sleep_until <= at(10s));
        CHECK(line.step(step.sleep_until).ask);
    }
}

TEST_CASE("a refusal with a hint makes the representative ask again at that time") {
    Line line;
    Member a{1};
    line.join(a);
    line.refused(a, line.generation(), 300ms, at(0ms));
    CHECK(line.step(at(0ms)).sleep_until == at(300ms));
}

TEST_CASE("a waiter that becomes the front without having asked asks") {
    Line line;
    Member a{1}, b{2};
    line.join(a);
    line.join(b);
    line.refused(a, line.generation(), Milliseconds::max(), at(0ms));
    CHECK_FALSE(line.step(at(0ms)).ask);
    line.leave(a);
    CHECK(line.step(at(0ms)).ask);
    // Not if it was refused after the waiters before it were served.
    line.refused(b, line.generation(), Milliseconds::max(), at(0ms));
    CHECK_FALSE(line.step(at(0ms)).ask);
}

TEST_CASE("a lane has one request at a time, and is reused when that is settled") {
    RequestLanes lanes;
    const RequestId a = lanes.take(1);
    const RequestId b = lanes.take(2);
    CHECK(a.lane == 0);
    CHECK(b.lane == 1);
    lanes.give_back(a);
    const RequestId c = lanes.take(3);
    CHECK(c.lane == 0);
    CHECK(c.request == 3);
    CHECK(lanes.take(4).lane == 2);
}

namespace {

struct Interest {
    std::int64_t n;
    std::int64_t amount() const { return n; }
};

}  // namespace

TEST_CASE(
    "front waiter that wants more than was recently seen: it takes turns with those behind it, ever longer ones") {
    RequestQueue<Interest> line;
    RequestWaiter<Interest> big{{5}}, small{{1}};
    line.join(big);
    CHECK_FALSE(line.lets_pass(big.want, at(0ms)));  // not before it was refused
    line.refused(big, line.generation(), Milliseconds::max(), at(0ms), 2);
    line.join(small);
    CHECK(line.step(at(1ms)).sleep_until == at(1s));
    CHECK_FALSE(line.lets_pass(big.want, at(999ms)));
    CHECK(line.step(at(1s)).ask);
    CHECK(line.lets_pass(big.want, at(1s)));
    CHECK_FALSE(line.lets_pass(small.want, at(1s)));  // two were seen there, so it is worth waiting
    CHECK_FALSE(line.step(at(1s)).ask);
    RequestWaiter<Interest> later{{1}};
    line.join(later);
    CHECK(line.step(at(1500ms)).ask);
    CHECK_FALSE(line.lets_pass(big.want, at(2s)));
    CHECK_FALSE(line.lets_pass(big.want, at(3999ms)));
    CHECK(line.lets_pass(big.want, at(4s)));
    CHECK(line.lets_pass(big.want, at(5999ms)));
    CHECK_FALSE(line.lets_pass(big.want, at(6s)));
    // More than before is available: permits that come back piece by piece are kept for it.
    line.refused(big, line.generation(), Milliseconds::max(), at(11s), 3);
    CHECK_FALSE(line.lets_pass(big.want, at(11999ms)));
    CHECK(line.lets_pass(big.want, at(12s)));
}

TEST_CASE("front waiter that wants no more than was recently seen: it holds back those behind it all the time") {
    RequestQueue<Interest> line;
    RequestWaiter<Interest> first{{5}}, big{{5}}, small{{1}};
    line.join(first);
    line.refused(first, line.generation(), Milliseconds::max(), at(0ms), 5);
    line.leave(first);
    line.join(big);
    line.join(small);
    line.refused(big, line.generation(), Milliseconds::max(), at(1s), 0);
    CHECK_FALSE(line.lets_pass(big.want, at(2s)));
    CHECK_FALSE(line.lets_pass(big.want, at(9min)));
    CHECK(line.step(at(2s)).sleep_until > at(5s));
    // An amount seen long ago may never be available again.
    CHECK(line.lets_pass(big.want, at(10min + 2s)));
}

TEST_CASE("front waiter that wants one: it takes no turns, because nobody can want less") {
    RequestQueue<Interest> line;
    RequestWaiter<Interest> front{{1}}, other{{1}};
    line.join(front);
    line.join(other);
    line.refused(front, line.generation(), Milliseconds::max(), at(0ms), 0);
    CHECK_FALSE(line.lets_pass(front.want, at(1500ms)));
    CHECK_FALSE(line.step(at(1500ms)).ask);
    CHECK(line.step(at(1500ms)).sleep_until >= at(5s));
}
