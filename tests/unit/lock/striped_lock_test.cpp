// SPDX-License-Identifier: MIT
// StripedLock: which stripe a name has, the keys of the stripes, and what it refuses.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "support/code_of.hpp"
#include "support/scripted_transport.hpp"

using namespace redlatch;
using namespace redlatch::test;

namespace {

struct Fixture {
    ScriptedRedis redis;
    Client client{redis.transport(), {}};
};

}  // namespace

// A process of another version, compiler or platform must find the same stripes. So these numbers never change.
TEST_CASE("the stripe of a name is its FNV-1a hash, folded, modulo the number of stripes") {
    // The first three are published test vectors of FNV-1a: cbf29ce484222325, af63dc4c8601ec8c, 85944171f73967e8.
    CHECK(StripedLock::stripe_of("", 4096) == ((0xcbf29ce4U ^ 0x84222325U) % 4096));
    CHECK(StripedLock::stripe_of("a", 4096) == ((0xaf63dc4cU ^ 0x8601ec8cU) % 4096));
    CHECK(StripedLock::stripe_of("foobar", 1000) == ((0x85944171U ^ 0xf73967e8U) % 1000));
    // A byte above 127 counts as such, whether char is signed or not.
    CHECK(StripedLock::stripe_of("\xff", 4096) == ((0xaf64724cU ^ 0x8602eb6eU) % 4096));
    CHECK(StripedLock::stripe_of("anything", 1) == 0);
}

TEST_CASE("names spread over all stripes") {
    for (const std::size_t stripes : {std::size_t(16), std::size_t(64), std::size_t(100)}) {
        CAPTURE(stripes);
        std::vector<int> names_of(stripes);
        for (int i = 0; i < 10'000; ++i) ++names_of[StripedLock::stripe_of("user:" + std::to_string(i), stripes)];
        const int fair = 10'000 / static_cast<int>(stripes);
        CHECK(*std::ranges::min_element(names_of) > fair / 2);
        CHECK(*std::ranges::max_element(names_of) < fair * 2);
    }
}

TEST_CASE("a name has the lock of its stripe, whose key is the name of the object and the number of the stripe") {
    Fixture fixture;
    StripedLock accounts(fixture.client, "accounts", 64);
    CHECK(accounts.name() == "accounts");
    CHECK(accounts.stripes() == 64);
    const std::size_t stripe = accounts.stripe_of("alice");
    CHECK(stripe == StripedLock::stripe_of("alice", 64));
    CHECK(&accounts.lock_for("alice") == &accounts.stripe(stripe));
    CHECK(accounts.lock_for("alice").name() == "accounts:" + std::to_string(stripe));
    CHECK(&accounts.lock_for("") == &accounts.stripe(accounts.stripe_of("")));
    CHECK(fixture.redis.history().empty());
}

TEST_CASE("a lock for several names has each of their stripes once, in the order of the stripes' names") {
    Fixture fixture;
    StripedLock accounts(fixture.client, "accounts", 4);
    const std::vector<std::string> names{"a", "b", "c", "d", "e", "f", "g", "h"};
    std::set<std::string> stripes;
    for (const std::string& name : names) stripes.insert(accounts.lock_for(name).name());
    std::string all;
    for (const std::string& stripe : stripes) all += (all.empty() ? "" : ", ") + stripe;
    CHECK(stripes.size() > 1);
    CHECK(accounts.locks_for(names).name() == all);
    CHECK(accounts.locks_for({"h", "g", "f", "e", "d", "c", "b", "a"}).name() == all);
    CHECK(accounts.locks_for({"a", "a"}).name() == accounts.lock_for("a").name());
}

TEST_CASE("what cannot work is refused before anything is sent") {
    Fixture fixture;
    for (const std::size_t stripes : {std::size_t(0), StripedLock::max_stripes() + 1})
        CHECK(code_of([&] { StripedLock(fixture.client, "accounts", stripes); }) == errc::invalid_argument);
    CHECK(code_of([&] { StripedLock(fixture.client, "", 4); }) == errc::invalid_argument);
    CHECK(code_of([&] { StripedLock(fixture.client, "a{b", 4); }) == errc::invalid_argument);
    CHECK(code_of([&] { StripedLock(fixture.client, std::string(1023, 'x'), 4); }) == errc::invalid_argument);
    StripedLock accounts(fixture.client, "accounts", 4);
    CHECK(code_of([&] { static_cast<void>(accounts.stripe(4)); }) == errc::invalid_argument);
    CHECK(code_of([&] { static_cast<void>(accounts.locks_for(std::vector<std::string>())); }) ==
          errc::invalid_argument);
    CHECK(fixture.redis.history().empty());
}
