// SPDX-License-Identifier: MIT
// The list of connections for commands that delay others.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::test;
using namespace std::chrono_literals;

namespace {

const Url url = Url::parse("redis://127.0.0.1:1");

std::unique_ptr<CommandConnection> unconnected() {
    return std::make_unique<CommandConnection>(
        url, [](Connection& one, Instant deadline) { return one.open(url, deadline); }, 1s, [] {});
}

}  // namespace

TEST_CASE("each use has a connection of its own, which later uses share") {
    int made = 0;
    OwnConnections own([&] {
        ++made;
        return unconnected();
    });
    own.with_one([&](CommandConnection& outer) {
        own.with_one([&](CommandConnection& inner) { CHECK(&outer != &inner); });
        CHECK(made == 2);
    });
    own.with_one([](CommandConnection&) {});
    CHECK(made == 2);
    int visited = 0;
    own.each([&](CommandConnection&) { ++visited; });
    CHECK(visited == 2);
}

// A forked child visits them to close what it inherited. A thread of its parent may have held the mutex at the fork.
TEST_CASE("connections can be visited while another thread makes one") {
    std::atomic<bool> is_making{false}, may_end{false};
    OwnConnections own([&] {
        is_making = true;
        eventually([&] { return may_end.load(); }, 20s);
        return unconnected();
    });
    std::thread maker([&] { own.with_one([](CommandConnection&) {}); });
    REQUIRE(eventually([&] { return is_making.load(); }));
    std::atomic<bool> visited{false};
    std::thread visitor([&] {
        own.each([](CommandConnection&) {});
        visited = true;
    });
    CHECK(eventually([&] { return visited.load(); }, 10s));
    may_end = true;
    visitor.join();
    maker.join();
}
