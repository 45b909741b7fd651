// SPDX-License-Identifier: MIT
// When the next attempt to connect may begin, and why there is no connection.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <chrono>

using namespace redlatch;
using namespace redlatch::detail;
using namespace std::chrono_literals;

namespace {

const Instant start = Instant{} + 1h;
const Reply no_route = Reply::of(Reply::Kind::not_sent, "no route");
const Reply closed = Reply::of(Reply::Kind::not_sent, "closed");

}  // namespace

TEST_CASE("the first attempt may begin at once, and who has no time for it learns so") {
    ReconnectPolicy policy;
    CHECK(policy.may_begin(start));
    CHECK(policy.failures() == 0);
    CHECK(policy.why_not().kind == Reply::Kind::not_sent);
    CHECK(policy.why_not_in_time().kind == Reply::Kind::no_time);
}

TEST_CASE("pauses after failed attempts grow, up to their bound, until one succeeds") {
    ReconnectPolicy policy;
    Clock::duration longest{};
    for (int i = 0; i < 20; ++i) {
        policy.attempt_failed(no_route, start, false);
        CHECK_FALSE(policy.may_begin(start));
        CHECK(policy.may_begin(policy.next_attempt()));
        longest = policy.next_attempt() - start;
        CHECK(longest <= longest_pause);
    }
    CHECK(longest >= longest_pause / 2);
    CHECK(policy.failures() == 20);
    policy.connected();
    CHECK(policy.may_begin(start));
    policy.attempt_failed(no_route, start, false);
    CHECK(policy.next_attempt() - start <= 10ms);
    policy.attempt_failed(no_route, start, false);
    policy.start_over();
    CHECK(policy.may_begin(start));
    policy.attempt_not_begun(start);
    CHECK_FALSE(policy.may_begin(start));
    CHECK(policy.next_attempt() - start <= 10ms);
}

TEST_CASE("a failure for want of time shows nothing about the server") {
    ReconnectPolicy policy;
    policy.attempt_failed(no_route, start, true);
    CHECK(policy.why_not().text == "no route");
    CHECK(policy.why_not().kind == Reply::Kind::not_sent);
    CHECK(policy.why_not_in_time().kind == Reply::Kind::no_time);
    CHECK(policy.why_not_in_time().text == "no route");
    policy.attempt_failed(no_route, start, false);
    CHECK(policy.why_not_in_time().kind == Reply::Kind::not_sent);
}

TEST_CASE("a connection that ends without any reply is followed by a short pause, another one by none") {
    ReconnectPolicy policy;
    policy.connected();
    policy.connection_ended(closed, start);
    CHECK_FALSE(policy.may_begin(start));
    CHECK(policy.next_attempt() - start <= 1ms);
    CHECK(policy.why_not_in_time().kind == Reply::Kind::not_sent);
    for (int i = 0; i < 20; ++i) {
        policy.connected();
        policy.connection_ended(closed, start);
    }
    CHECK(policy.next_attempt() - start > 20ms);
    CHECK(policy.next_attempt() - start <= 50ms);

    policy.connected();
    CHECK(policy.replied());
    CHECK_FALSE(policy.replied());
    policy.connection_ended(closed, start);
    CHECK(policy.may_begin(start));
    CHECK(policy.why_not().text == "closed");
    CHECK(policy.why_not_in_time().kind == Reply::Kind::no_time);

    policy.connected();
    policy.connection_ended(closed, start);
    CHECK(policy.next_attempt() - start <= 1ms);
    policy.connected();
    CHECK(policy.replied());
}

TEST_CASE("a pause is ended once") {
    ReconnectPolicy policy;
    CHECK_FALSE(policy.end_pause(start));
    policy.attempt_failed(no_route, start, false);
    CHECK(policy.end_pause(start));
    CHECK(policy.may_begin(start));
    CHECK_FALSE(policy.end_pause(start));
    policy.attempt_failed(no_route, start, false);
    CHECK_FALSE(policy.end_pause(policy.next_attempt()));
}

TEST_CASE("a refusal counts as a failure for those who wait, but makes no pause") {
    ReconnectPolicy policy;
    policy.refuse(Reply::of(Reply::Kind::not_sent, "another server does it"));
    CHECK(policy.failures() == 1);
    CHECK(policy.may_begin(start));
    CHECK(policy.why_not().text == "another server does it");
}
