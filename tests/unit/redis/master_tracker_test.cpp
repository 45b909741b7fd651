// SPDX-License-Identifier: MIT
// MasterTracker: the votes of sentinels, the order of candidates, and when the master has moved.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include "support/scripted_transport.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;

namespace {

const HostPort a{"10.0.0.1", 6379}, b{"10.0.0.2", 6379}, c{"10.0.0.3", 6379};
const Instant now = Clock::now();

Reply address(const std::string& host, const std::string& port) { return array({text(host), text(port)}); }

Reply details(const std::string& epoch) {
    return array({text("name"), text("orders"), text("config-epoch"), text(epoch)});
}

std::vector<HostPort> order(const std::vector<MasterVote>& votes, const std::optional<HostPort>& known = {}) {
    std::vector<HostPort> hosts;
    for (const MasterVote& vote : ranked(votes, known)) hosts.push_back(vote.master);
    return hosts;
}

}  // namespace

TEST_CASE("the vote of a sentinel is an address with the epoch of its failover") {
    const auto vote = read_vote(address("10.0.0.1", "6379"), details("7"));
    REQUIRE(vote);
    CHECK(vote->master == a);
    CHECK(vote->config_epoch == 7);
    // Without permission to query the epoch, the vote counts all the same.
    CHECK(read_vote(address("10.0.0.1", "6379"), error("NOPERM no"))->config_epoch == 0);
    CHECK(read_vote(address("::1", "1"), nil())->master == HostPort{"::1", 1});
}

TEST_CASE("a reply that is not a valid address is not a vote") {
    for (const Reply& reply :
         {nil(), number(1), error("NOAUTH"), array({}), array({text("h")}), address("", "1"), address("h", "0"),
          address("h", "65536"), address("h", "x"), address("h", "-1"), address(std::string(256, 'h'), "1")})
        CHECK_FALSE(read_vote(reply, nil()));
    CHECK(read_vote(address("h", "1"), details("x"))->config_epoch == 0);
    CHECK(read_vote(address("h", "1"), array({text("config-epoch")}))->config_epoch == 0);
}

TEST_CASE("candidates in order: by the latest failover, then by the most votes, then the known master") {
    CHECK(order({{a, 1}, {a, 1}, {b, 2}}) == std::vector{b, a});
    CHECK(order({{a, 1}, {b, 1}, {b, 1}}) == std::vector{b, a});
    CHECK(order({{a, 1}, {b, 1}}, b) == std::vector{b, a});
    CHECK(order({{a, 1}}, c) == std::vector{a, c});
    CHECK(order({}, c) == std::vector{c});
    CHECK(order({}).empty());
}

TEST_CASE("a sentinel's message announces a new master only if it names ours") {
    CHECK(read_announcement("+switch-master", "orders 10.0.0.1 6379 10.0.0.2 6379", "orders") == b);
    CHECK(read_announcement("+promoted-slave", "slave 10.0.0.2:6379 10.0.0.2 6379 @ orders 10.0.0.1 6379", "orders") ==
          b);
    CHECK_FALSE(read_announcement("+switch-master", "others 10.0.0.1 6379 10.0.0.2 6379", "orders"));
    CHECK_FALSE(read_announcement("+promoted-slave", "slave x 10.0.0.2 6379 @ others 10.0.0.1 6379", "orders"));
    CHECK_FALSE(read_announcement("+sdown", "orders 10.0.0.1 6379 10.0.0.2 6379", "orders"));
    CHECK_FALSE(read_announcement("+switch-master", "", "orders"));
    CHECK_FALSE(read_announcement("+switch-master", "orders 10.0.0.1 6379 10.0.0.2", "orders"));
    CHECK_FALSE(read_announcement("+switch-master", "orders 10.0.0.1 6379 10.0.0.2 x", "orders"));
    CHECK_FALSE(read_announcement("+switch-master", std::string(10'000, ' '), "orders"));
}

TEST_CASE("only a reply to ROLE that begins with \"master\" counts as one of a master") {
    CHECK(says_master(array({text("master"), number(0), array({})})));
    CHECK_FALSE(says_master(array({text("slave"), text("h"), number(1)})));
    CHECK_FALSE(says_master(array({text("sentinel")})));
    CHECK_FALSE(says_master(array({})));
    CHECK_FALSE(says_master(text("master")));
    CHECK_FALSE(says_master(error("NOPERM")));
}

TEST_CASE("an announced master begins a new epoch and is tried first until it is proven or rejected") {
    MasterTracker view;
    CHECK_FALSE(view.guess(now));
    CHECK(view.prove({a, 1}, view.epoch(), now) == 1);
    CHECK(view.known() == a);
    CHECK_FALSE(view.announce(a));
    CHECK(view.epoch() == 1);
    CHECK(view.announce(b));
    CHECK_FALSE(view.announce(b));  // repeated by the other sentinels
    CHECK(view.epoch() == 2);
    CHECK(view.guess(now) == b);
    CHECK(view.known() == a);
    SUBCASE("it proves to be the master") {
        CHECK(view.prove({b, 0}, 2, now) == 2);
        CHECK(view.known() == b);
        CHECK_FALSE(view.announce(b));
    }
    SUBCASE("it is not the master") {
        view.reject(b);
        CHECK_FALSE(view.guess(now));
        CHECK(view.prove({a, 1}, 2, now) == 2);
        CHECK(view.known() == a);
    }
}

TEST_CASE("a connection begun before the master moved does not count") {
    MasterTracker view;
    REQUIRE(view.prove({a, 1}, 1, now) == 1);
    REQUIRE(view.announce(b));
    CHECK_FALSE(view.prove({a, 1}, 1, now));
    CHECK(view.known() == a);
}

TEST_CASE("a master found at another address without an announcement begins a new epoch, too") {
    MasterTracker view;
    REQUIRE(view.prove({a, 1}, 1, now) == 1);
    CHECK(view.prove({b, 2}, 1, now) == 2);
    CHECK(view.epoch() == 2);
}

TEST_CASE("a sentinel's reply reports a move only if its failover is later than the known one") {
    MasterTracker view;
    CHECK_FALSE(view.hear({b, 9}));  // nothing is connected yet
    REQUIRE(view.prove({a, 3}, 1, now) == 1);
    CHECK_FALSE(view.hear({b, 2}));  // this sentinel was disconnected meanwhile
    CHECK_FALSE(view.hear({b, 3}));
    CHECK_FALSE(view.hear({a, 4}));
    CHECK(view.epoch() == 1);
    CHECK(view.hear({b, 5}));
    CHECK(view.epoch() == 2);
}

TEST_CASE("a proven master is tried without a query for a moment, unless it is doubted") {
    MasterTracker view;
    REQUIRE(view.prove({a, 1}, 1, now) == 1);
    CHECK(view.guess(now) == a);
    CHECK_FALSE(view.guess(now + Milliseconds(600)));
    CHECK_FALSE(view.doubt(7));
    CHECK(view.doubt(1));
    CHECK_FALSE(view.doubt(1));  // by the other commands that were refused together with the first
    CHECK(view.epoch() == 2);
    CHECK_FALSE(view.guess(now));
    // It is found at another address, and no connection was made in the new epoch before.
    CHECK(view.prove({b, 2}, 2, now) == 2);
}
