// SPDX-License-Identifier: MIT
// ctest: timeout=600 long without=address
// Another server has become the master, or has the slot: the time until all clients work again.
#include "faults/cluster_kit.hpp"
#include "faults/recovery_kit.hpp"
#include "support/sentinels.hpp"

using namespace redlatch;
using namespace redlatch::fault;

TEST_CASE("fault: frozen master replaced: clients stop waiting for it once another is the master") {
    constexpr auto bound = patient(500ms);
    CHECK(best_of(3, bound, [&] {
              Sentinels3 setup;
              Fleet fleet{setup.url(), as_it_is, 1900ms};
              REQUIRE(fleet.works());
              setup.master().stop();
              REQUIRE(setup.is_master_by(setup.replica(), failover));
              return fleet.slowest(monotonic_ns());
          }) <= bound);
}

TEST_CASE("fault: frozen cluster node replaced: clients stop waiting for it once another has its slots") {
    CHECK(best_of(3, soon_after, [&] {
              ClusterServers cluster{{.args = {"--user", "locker", "on", ">geheim", "~*", "&*", "+@all"}}};
              RedisServer& victim = cluster.node(0);
              Fleet fleet{"redis-cluster://locker:geheim@" + cluster.hosts(),
                          [&](const std::string& name) { return cluster.key_on(victim, name); }};
              REQUIRE(fleet.works());
              const std::string probe = cluster.key_on(victim, "probe");
              victim.stop();
              REQUIRE(cluster.is_served(probe, failover));
              return fleet.slowest(monotonic_ns());
          }) <= soon_after);
}

TEST_CASE("fault: slot migration that takes long: the slowest client works again within a second") {
    ClusterServers cluster;
    const std::string tag = cluster.key_on(cluster.node(0), "t");
    Fleet fleet{cluster.url(), [&](const std::string& name) { return "{" + tag + "}" + name; }};
    REQUIRE(fleet.works());
    CHECK(best_of(3, soon_after, [&] {
              RedisServer& from = cluster.master_of(tag);
              cluster.migrate(cluster.slot_of(tag), cluster.node(&from == &cluster.node(0) ? 1 : 0),
                              [] { std::this_thread::sleep_for(5s); });
              return fleet.slowest(monotonic_ns());
          }) <= soon_after);
}
