// SPDX-License-Identifier: MIT
// ctest: timeout=600 long without=address
// What stands on locks, in a cluster and with sentinels: before a failover, during it and after it.
#include <atomic>
#include <optional>
#include <stop_token>
#include <string>

#include "faults/cluster_kit.hpp"
#include "support/sentinels.hpp"

using namespace redlatch;
using namespace redlatch::fault;

namespace {

// A leader whose server fails over to a replica that has its lock, an observer, and a candidate.
struct Election {
    Election(const std::string& url, const std::string& name)
        : client(url, steady()),
          other(url, steady()),
          left(client, name, "left"),
          right(other, name, "right"),
          term(left.campaign()) {
        seen = right.leader();
        REQUIRE(seen);
        CHECK(seen->name == "left");
        observing = start([this] { return right.wait_change_for(failover, seen); });
        waiting = start([this] { return right.campaign_for(failover); });
        REQUIRE(eventually([this] { return other.stats().waiting == 2; }, soon));
    }

    // The term has survived the failover. Then it ends, and the observer and the candidate go on.
    void go_on() {
        CHECK(eventually([this] { return left.leader().has_value(); }, failover));
        CHECK(term.is_leader());
        CHECK_FALSE(ready(waiting, 0ms));
        CHECK_FALSE(ready(observing, 0ms));
        const std::int64_t token = term.token();
        CHECK_FALSE(term.resign(failover));
        REQUIRE(ready(waiting, failover));
        Term next = waiting.get();
        REQUIRE(next);
        CHECK(next.token() > token);
        CHECK(left.leader()->name == "right");
        REQUIRE(ready(observing, failover));
        CHECK(observing.get());
        CHECK_FALSE(next.resign(failover));
    }

    Client client;
    Client other;
    LeaderElection left;
    LeaderElection right;
    Term term;
    std::optional<Leader> seen{};
    std::future<bool> observing{};
    std::future<Term> waiting{};
};

}  // namespace

TEST_CASE("fault: master of a cluster dies: the leader on it leads on, observers and candidates continue") {
    ClusterServers cluster;
    RedisServer& victim = cluster.node(0);
    Election election{cluster.url(), cluster.key_on(victim, "scheduler")};
    RawRedis replica{cluster.node(3)};
    replica.text("READONLY");
    REQUIRE(eventually([&] { return replica.exists(election.left.name()); }, soon));
    victim.kill();
    REQUIRE(cluster.is_served(election.left.name(), failover));
    election.go_on();
}

TEST_CASE("elections work in any slot of a cluster, with a tag or without") {
    ClusterServers cluster{{.replicas = 0}};
    Client client{cluster.url(), steady()}, other{cluster.url(), steady()};
    for (const char* name : {"scheduler", "jobs:{nightly}:leader", "{a}", "b c"}) {
        CAPTURE(name);
        LeaderElection left{client, name, "left"}, right{other, name, "right"};
        Term term = left.campaign();
        std::optional<Leader> seen;
        CHECK(right.wait_change_for(soon, seen));
        CHECK(seen->token == term.token());
        auto waiting = start([&] { return right.campaign_for(soon); });
        REQUIRE(eventually([&] { return other.stats().waiting == 1; }, soon));
        CHECK_FALSE(term.resign());
        REQUIRE(ready(waiting, soon));
        CHECK(waiting.get());
    }
}

TEST_CASE("fault: master with sentinels dies: the leader leads on at the new one, observers and candidates continue") {
    Sentinels3 setup;
    Election election{setup.url(), "scheduler"};
    REQUIRE(eventually([&] { return RawRedis{setup.replica()}.exists("scheduler"); }, soon));
    setup.master().kill();
    REQUIRE(setup.is_master_by(setup.replica(), failover));
    election.go_on();
}

TEST_CASE("fault: master dies before the lock reaches its replica: the leader is told, and another term begins") {
    Sentinels3 setup;
    Client client{setup.url(), steady()};
    LeaderElection election{client, "scheduler", "left"};
    std::atomic<int> terms{0};
    setup.cut_replication();
    auto leading = start([&] {
        return election.lead([&](const std::stop_token& ending) {
            if (++terms == 2) return;
            eventually([&] { return ending.stop_requested(); }, failover);
        });
    });
    REQUIRE(eventually([&] { return terms == 1; }, soon));
    setup.master().kill();
    REQUIRE(setup.is_master_by(setup.replica(), failover));
    REQUIRE(ready(leading, failover));
    CHECK(leading.get());
    CHECK(terms == 2);
}

TEST_CASE("work is done once, and a value computed once, in any slot of a cluster") {
    ClusterServers cluster{{.replicas = 0}};
    Client client{cluster.url(), steady()}, other{cluster.url(), steady()};
    for (const char* name : {"migration", "jobs:{nightly}:once", "{a}", "b c"}) {
        CAPTURE(name);
        int done = 0;
        for (Client* one : {&client, &other}) call_once(*one, name, [&] { ++done; });
        CHECK(done == 1);
        const std::string report = std::string(name) + ":report";
        for (Client* one : {&client, &other}) {
            SingleFlight flight{*one, report, 1min};
            CHECK(flight.get([&] { return std::to_string(++done); }).value == "2");
        }
        CHECK(done == 2);
    }
}

TEST_CASE("fault: master with sentinels dies during the work: it is done once, and the others learn of it") {
    Sentinels3 setup;
    Client client{setup.url(), steady()}, other{setup.url(), steady()};
    OnceFlag mine{client, "migration"}, theirs{other, "migration"};
    std::atomic<int> begun{0};
    std::atomic<bool> may_end{false};
    const auto work = [&] {
        ++begun;
        eventually([&] { return may_end.load(); }, failover);
    };
    auto working = start([&] { return mine.call_for(failover, work); });
    REQUIRE(eventually([&] { return begun == 1 && RawRedis{setup.replica()}.exists("migration"); }, soon));
    auto waiting = start([&] { return theirs.call_for(failover, work); });
    REQUIRE(eventually([&] { return other.stats().waiting == 1; }, soon));
    setup.master().kill();
    REQUIRE(setup.is_master_by(setup.replica(), failover));
    may_end = true;
    REQUIRE(ready(working, failover));
    CHECK(working.get());
    REQUIRE(ready(waiting, failover));
    CHECK(waiting.get());
    CHECK(begun == 1);
    CHECK(theirs.is_done());
}
