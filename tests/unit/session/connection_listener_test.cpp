// SPDX-License-Identifier: MIT
// ConnectionListener and Events: what a session makes of what its transport tells it.
#include <doctest/doctest.h>

#include <redlatch/redlatch.hpp>

#include <mutex>
#include <string>
#include <vector>

#include "support/wait.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using redlatch::test::eventually;

namespace {

using Kind = Event::Kind;
using Kinds = std::vector<Kind>;

struct Fixture {
    std::mutex mutex;  // guards kinds, which the thread of the notifier writes
    Kinds kinds;
    const ClientOptions options{.require_replicas = all_replicas, .on_event = [this](const Event& event) {
                                    const std::lock_guard lock(mutex);
                                    kinds.push_back(event.kind);
                                }};
    Events events{options};
    Subscriptions subscriptions{[](const std::string&, bool) {}, [] {}};
    Registry registry;
    RemoteClock clock;
    ReplicaAcks replicas{options};
    TrackedKeys tracked{true};
    ConnectionListener listener{subscriptions, events, registry, clock, replicas, tracked};

    // Raises a last event, and returns those before it.
    Kinds raised() {
        events.raise(Kind::hold_lost, "last", {});
        Kinds found;
        CHECK(eventually([&] {
            const std::lock_guard lock(mutex);
            found = kinds;
            return !found.empty() && found.back() == Kind::hold_lost;
        }));
        found.pop_back();
        return found;
    }
};

}  // namespace

TEST_CASE("the first confirmation is no event") {
    Fixture fixture;
    fixture.listener.subscribed("channel");
    CHECK(fixture.raised().empty());
}

TEST_CASE("only a change of the connection is an event") {
    Fixture fixture;
    fixture.listener.disconnected();
    fixture.listener.disconnected();
    fixture.listener.subscribed("channel");
    fixture.listener.subscribed("channel");
    fixture.listener.disconnected();
    CHECK(fixture.raised() == Kinds{Kind::disconnected, Kind::reconnected, Kind::disconnected});
}

TEST_CASE("an interruption of one channel is no lost connection") {
    Fixture fixture;
    fixture.listener.interrupted("channel");
    CHECK(fixture.raised().empty());
}

TEST_CASE("after a failover the clock and the replicas of the server are unknown") {
    Fixture fixture;
    const Instant now = Clock::now();
    fixture.clock.learn(0, SendTime(now), now, 1'000);
    Reply role{Reply::Kind::array, 0, {}, {Reply::of(1), Reply::of(1), Reply::of(1)}, true};
    role.elements[2] = {Reply::Kind::array, 0, {}, {Reply::of(1)}, true};
    fixture.replicas.learn(0, role);
    REQUIRE(fixture.clock.at(0, now));
    REQUIRE_FALSE(fixture.replicas.are_unknown({.required = all_replicas}, 0));
    fixture.listener.on_failover();
    CHECK_FALSE(fixture.clock.at(0, now));
    CHECK(fixture.replicas.are_unknown({.required = all_replicas}, 0));
    CHECK(fixture.raised() == Kinds{Kind::moved});
}

TEST_CASE("without a handler there are no events, and no thread for them") {
    const ClientOptions options;
    Events events(options);
    events.start();
    events.raise(Kind::hold_lost, "orders", {});
    events.on_disconnect("no reply");
    events.on_reconnect();
}
