// SPDX-License-Identifier: MIT
// ctest: timeout=600 long
// A Redis Cluster whose masters die or freeze: the effect on holds and waiters. cluster_test.cpp covers slots that
// move.
#include "faults/cluster_kit.hpp"

using namespace redlatch;
using namespace redlatch::detail;
using namespace redlatch::fault;

TEST_CASE("fault: a master dies: holds survive on its replica, waiters get the lock, and other shards are unaffected") {
    ClusterServers cluster;
    EventLog log;
    Client client{cluster.url(), log.in(steady())}, other{cluster.url(), steady()};
    RedisServer& victim = cluster.node(0);
    RedisServer& successor = cluster.node(3);
    const std::string name = cluster.key_on(victim, "orders"), far = cluster.key_on(cluster.node(1), "far");
    RLock orders{client, name}, wanted{other, name}, elsewhere{client, far}, fresh{other, cluster.key_on(victim, "x")};
    orders.lock();
    elsewhere.lock();
    const std::stop_token lost = orders.lost();
    auto waiting = start([&] {
        wanted.lock();
        wanted.unlock();
    });
    REQUIRE(is_listened_to(victim, name));
    RawRedis replica{successor};
    replica.text("READONLY");
    REQUIRE(eventually([&] { return replica.exists(name); }, soon));
    victim.kill();
    elsewhere.unlock();
    elsewhere.lock();
    CHECK(fresh.try_lock_for(failover));
    fresh.unlock();
    CHECK(is_listened_to(successor, name));
    CHECK_FALSE(lost.stop_requested());
    // The client notices when it contacts the node, if only to renew the hold.
    CHECK(orders.is_held());
    CHECK(eventually([&] { return log.count(Event::Kind::moved) == 1; }, soon));
    CHECK(waiting.wait_for(0s) == std::future_status::timeout);
    orders.unlock();
    REQUIRE(ready(waiting, soon));
    CHECK(log.count(Event::Kind::hold_lost) == 0);
    CHECK(elsewhere.is_held());
    elsewhere.unlock();
    // The node comes back as a replica and gets its slots again. So the client leaves the new master without a loss,
    // too.
    victim.restart();
    REQUIRE(cluster.is_well(failover));
    orders.lock();
    REQUIRE(eventually([&] { return RawRedis{victim}.text("CLUSTER", "FAILOVER") == "OK"; }, soon));
    CHECK(eventually([&] { return &cluster.master_of(name) == &victim; }, failover));
    CHECK(orders.is_held());
    CHECK(eventually([&] { return log.count(Event::Kind::moved) == 2; }, soon));
    orders.unlock();
    CHECK(log.count(Event::Kind::hold_lost) == 0);
}

TEST_CASE("fault: a master dies before it replicates a lock: the hold is reported lost") {
    ClusterServers cluster{{.args = {"--user", "repl", "on", ">secret", "+psync", "+replconf", "+ping", "--masteruser",
                                     "repl", "--masterauth", "secret"}}};
    EventLog log;
    Client client{cluster.url(), log.in(steady())};
    RedisServer& victim = cluster.node(0);
    RLock doomed{client, cluster.key_on(victim, "doomed")}, far{client, cluster.key_on(cluster.node(1), "far")};
    RawRedis{victim}.integer("ACL", "DELUSER", "repl");
    REQUIRE(eventually([&] { return RawRedis{victim}.command({"ROLE"}).elements.at(2).elements.empty(); }, soon));
    doomed.lock();
    far.lock();
    const std::stop_token lost = doomed.lost();
    victim.kill();
    REQUIRE(cluster.is_served(doomed.name(), failover));
    // Nothing is sent to the dead node before this.
    CHECK_FALSE(doomed.is_held());
    CHECK(eventually([&] { return lost.stop_requested(); }, soon));
    CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 1; }, soon));
    CHECK(far.is_held());
    far.unlock();
    std::error_code ec;
    doomed.unlock(ec);
    CHECK(ec == errc::hold_lost);
}

TEST_CASE("fault: a frozen master without a replica: its holds are lost, those of other nodes are renewed in time") {
    ClusterServers cluster{{.replicas = 0, .args = {"--cluster-require-full-coverage", "no"}}};
    EventLog log;
    ClientOptions options = quick();
    options.watchdog_timeout = paced(6s);
    Client client{cluster.url(), log.in(options)};
    std::vector<std::unique_ptr<RLock>> locks;
    for (int i = 0; i < 12; ++i) {
        RedisServer& home = cluster.node(static_cast<std::size_t>(i % 3));
        locks.push_back(std::make_unique<RLock>(client, cluster.key_on(home, "k" + std::to_string(i) + ".")));
        locks.back()->lock();
    }
    cluster.node(0).stop();
    const auto before = client.stats().renewals;
    CHECK(eventually([&] { return log.count(Event::Kind::hold_lost) == 4; }, 60s));
    CHECK(eventually([&] { return client.stats().renewals >= before + 24; }, 60s));
    CHECK(log.count(Event::Kind::hold_lost) == 4);
    for (std::size_t i = 0; i < locks.size(); ++i)
        if (i % 3 != 0) CHECK(locks[i]->is_held());
    cluster.node(0).cont();
    REQUIRE(cluster.is_served(locks[0]->name(), failover));
    std::error_code ec;
    for (const auto& lock : locks) lock->unlock(ec);
    CHECK(locks[0]->try_lock_for(soon));
    locks[0]->unlock();
}

TEST_CASE("fault: password changed in a cluster: clients continue without the connections that they fail to open") {
    ClusterServers cluster{{.args = {"--user", "locker", "on", ">before", "~*", "&*", "+@all"}}};
    const auto set_password = [&](const char* password) {
        for (std::size_t i = 0; i < cluster.size(); ++i)
            RawRedis{cluster.node(i)}.text("ACL", "SETUSER", "locker", "resetpass", password);
    };
    for (const unsigned replicas : {0U, 1U}) {
        CAPTURE(replicas);
        set_password(">before");
        ClientOptions options = unhurried(paced(9s));
        options.require_replicas = replicas;
        Client client{"redis-cluster://locker:before@" + cluster.hosts(), options};
        const std::string name = cluster.key_on(cluster.node(0), "orders");
        RLock orders{client, name};
        orders.lock();
        set_password(">after");
        const auto before = client.stats().renewals;
        CHECK(eventually([&] { return client.stats().renewals >= before + 3; }, soon));
        // Several at once, where each needs a connection of its own to wait for a replica.
        std::vector<std::future<std::error_code>> others;
        for (int i = 0; i < 8; ++i)
            others.push_back(start([&, other = cluster.key_on(cluster.node(0), "other" + std::to_string(i))] {
                RLock lock{client, other};
                std::error_code ec;
                for (int round = 0; round < 20 && !ec; ++round)
                    if (lock.lock(ec); !ec) lock.unlock(ec);
                return ec;
            }));
        for (auto& one : others) CHECK_FALSE(one.get());
        CHECK_FALSE(code_of([&] { orders.unlock(); }));
        CHECK(client.stats().lost_holds == 0);
        CHECK_FALSE(RawRedis{cluster.node(0)}.exists(name));
    }
}
